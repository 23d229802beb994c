//! What its end is to the requests.

use super::*;
use llama_batch::backend::sim::Fault;
use llama_batch::core::{BackendEvent, Event};
use llama_batch::engine::Received;

#[test]
fn who_runs_fails_with_how_it_died_and_the_next_one_is_answered() {
    let (engine, pids) = started(options(1), fast());
    let events = engine.subscribe().unwrap();
    let (running, waiting) = (submit(&engine, 100_000), submit(&engine, 5));
    assert!(generates(&running));
    kill(last(&pids), Signal::KILL);
    assert!(why_lost(&running).contains("signal 9"), "{}", why_lost(&running));
    assert_eq!(end(&waiting).end, Ok(FinishReason::MaxTokens), "who waited is served by the next one");
    assert_eq!(engine.state(), State::Ready);
    let stats = engine.stats().unwrap();
    assert_eq!((stats.n_backend_restarts, stats.is_backend_lost), (1, false));
    assert!(engine.close(true, None).unwrap());
    let mut told = Vec::new();
    while let Received::Event(event) = events.recv(None) {
        if let Event::Backend(event) = &event.event {
            told.push(event.clone());
        }
    }
    let [
        BackendEvent::Lost { reason, endpoint },
        BackendEvent::Retry { attempt: 1, reason: again, .. },
        BackendEvent::Restored { attempts: 1, .. },
    ] = &told[..]
    else {
        panic!("{told:?}")
    };
    assert!(reason.contains("signal 9") && endpoint.is_empty());
    assert_eq!(again, reason, "why it is made again");
}

#[test]
fn one_that_dies_idle_is_made_again_before_anybody_asks() {
    let (engine, pids) = started(options(1), fast());
    is_served(&engine);
    kill(last(&pids), Signal::KILL);
    wait_until(|| engine.stats().unwrap().n_backend_restarts == 1);
    is_served(&engine);
}

#[test]
fn a_request_that_comes_with_its_death_loses_nothing() {
    let (engine, pids) = started(options(2), fast());
    for _ in 0..5 {
        kill(last(&pids), Signal::KILL);
        is_served(&engine);
        wait_until(|| !engine.stats().unwrap().is_backend_lost);
    }
    assert!(engine.stats().unwrap().n_backend_restarts >= 5);
}

#[test]
fn one_that_hangs_is_killed_when_its_time_is_over() {
    let (engine, pids) = started(StartOptions { backend_timeout: 4.0, ..options(1) }, fast());
    let running = submit(&engine, 100_000);
    assert!(generates(&running));
    let hung = last(&pids);
    kill(hung, Signal::STOP);
    assert!(why_lost(&running).contains("backend_timeout"), "{}", why_lost(&running));
    assert!(!exists(hung));
    is_served(&engine);
}

#[test]
fn a_panic_in_it_is_told_in_its_own_words() {
    let panics =
        Recipe::Simulated { config: Box::new(fast()), load: Duration::ZERO, fails: None, fault: Some(Fault::Panic) };
    let (engine, _) = loading(options(1), (launch("serve"), panics), (launch("serve"), recipe(fast())));
    let why = why_lost(&submit(&engine, 5));
    assert!(why.contains("exited with code") && why.contains("injected: the backend panics"), "{why}");
    is_served(&engine);
}

#[test]
fn an_abort_reaches_it_in_the_middle_of_a_pass() {
    let (engine, _) = started(options(1), passes_of(PATIENCE * 10));
    let running = submit(&engine, 5);
    wait_until(|| engine.stats().unwrap().core.active_slots == 1);
    running.cancel();
    assert_eq!(end(&running).end, Ok(FinishReason::Cancelled));
    assert!(engine.close(false, Some(PATIENCE)).unwrap());
}

#[test]
fn the_engine_gives_up_after_so_many_restarts() {
    let options = StartOptions { max_backend_restarts: 2, ..options(1) };
    let (engine, pids) = loading(options, (launch("serve"), recipe(fast())), (launch("exit"), recipe(fast())));
    assert_eq!(engine.wait_ready(Some(PATIENCE)), Ok(true));
    let running = submit(&engine, 100_000);
    assert!(generates(&running));
    let waiting = submit(&engine, 5);
    kill(last(&pids), Signal::KILL);
    why_lost(&running);
    let Err(Error::ModelLoad(why)) = &end(&waiting).end else { panic!("{:?}", end(&waiting)) };
    assert!(why.contains("no room on the device") && why.contains("2 restarts"), "{why}");
    assert_eq!(failed_with(&engine), Error::ModelLoad(why.clone()));
}

#[test]
fn an_engine_without_restarts_fails_with_its_first_backend() {
    let (engine, pids) = started(StartOptions { max_backend_restarts: 0, ..options(1) }, fast());
    kill(last(&pids), Signal::KILL);
    assert!(matches!(failed_with(&engine), Error::ModelLoad(_)));
}

#[test]
fn closing_ends_a_reload_and_leaves_no_process() {
    let slow = Recipe::Simulated { config: Box::new(fast()), load: PATIENCE * 10, fails: None, fault: None };
    let (engine, pids) = loading(options(1), (launch("serve"), recipe(fast())), (launch("serve"), slow));
    assert_eq!(engine.wait_ready(Some(PATIENCE)), Ok(true));
    kill(last(&pids), Signal::KILL);
    wait_until(|| engine.stats().unwrap().is_backend_lost);
    let waiting = submit(&engine, 5);
    assert!(engine.close(false, Some(PATIENCE)).unwrap(), "it does not wait for the model");
    assert_eq!(end(&waiting).end, Ok(FinishReason::Cancelled));
    assert!(!exists(last(&pids)));
}

#[test]
fn closing_an_engine_whose_process_hangs_waits_for_no_pass() {
    let (engine, pids) = started(StartOptions { backend_timeout: 1e6, ..options(1) }, fast());
    let running = submit(&engine, 100_000);
    assert!(generates(&running));
    kill(last(&pids), Signal::STOP);
    assert!(engine.close(false, Some(PATIENCE)).unwrap());
    assert_eq!(end(&running).end, Ok(FinishReason::Cancelled));
    assert!(!exists(last(&pids)));
}
