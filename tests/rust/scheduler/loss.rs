//! The backend goes, with all that it held, and comes again.

use super::embed::embedding;
use super::*;
use llama_batch::core::{MemoryKind, SessionState};
use llama_batch::options::{Key, OnBackendLoss};
use std::time::Duration;

/// A simulation in which request 1 has drawn some tokens, and 2 waits behind it.
fn one_runs_one_waits(on_backend_loss: OnBackendLoss) -> (Simulation, Seen) {
    let mut sim = Simulation::new(config(1, 1024), SchedulerOptions { on_backend_loss, ..options(1) });
    sim.submit(request(1, tokens(1, 20), 30)).unwrap();
    sim.submit(request(2, tokens(2, 20), 30)).unwrap();
    for _ in 0..6 {
        sim.step();
    }
    let mut seen = Seen::default();
    seen.take(&mut sim);
    assert!(seen.n_tokens[&1] > 0 && !seen.n_tokens.contains_key(&2));
    (sim, seen)
}

fn is_lost(seen: &Seen, id: u64) -> bool {
    matches!(seen.ends.get(&id).map(|finished| &finished.end), Some(Err(Error::BackendLost(_))))
}

#[test]
fn who_runs_fails_and_who_waits_is_served_by_the_next_one() {
    let (mut sim, mut seen) = one_runs_one_waits(OnBackendLoss::Wait);
    sim.begin();
    sim.lose_backend();
    sim.check();
    seen.take(&mut sim);
    assert!(is_lost(&seen, 1) && !seen.ends.contains_key(&2));
    assert!(!sim.step(), "nothing is planned without a backend");
    assert_eq!((sim.stats().kv_cells_used, sim.stats().cached_sequences, sim.stats().queue_depth), (0, 0, 1));
    sim.restore_backend().unwrap();
    run_on(&mut sim, &mut seen);
    assert_eq!(seen.end(2), &Ok(FinishReason::MaxTokens));
    assert_eq!(seen.text[&2], alone(&request(2, tokens(2, 20), 30)));
}

#[test]
fn where_nobody_is_to_wait_all_fail_until_it_is_there_again() {
    let (mut sim, mut seen) = one_runs_one_waits(OnBackendLoss::Fail);
    sim.submit(embedding(3, vec![tokens(3, 9)])).unwrap();
    sim.lose_backend();
    seen.take(&mut sim);
    assert!((1..=3).all(|id| is_lost(&seen, id)));
    let refused = sim.submit(request(4, tokens(4, 9), 3));
    assert!(matches!(refused, Err(Error::BackendLost(_))));
    sim.restore_backend().unwrap();
    sim.submit(request(5, tokens(5, 9), 3)).unwrap();
    run_on(&mut sim, &mut seen);
    assert_eq!(seen.end(5), &Ok(FinishReason::MaxTokens));
}

#[test]
fn a_request_that_finds_it_gone_has_lost_nothing_and_waits_but_not_for_ever() {
    let mut sim = Simulation::new(config(2, 1024), options(2));
    let mut seen = Seen::default();
    sim.submit(request(1, tokens(1, 20), 5)).unwrap();
    sim.submit(request(2, tokens(2, 20), 5)).unwrap();
    assert!(sim.begin(), "both are being prepared");
    sim.cancel(RequestId(2));
    sim.lose_backend();
    sim.check();
    seen.take(&mut sim);
    assert!(!seen.ends.contains_key(&1), "nothing of it had begun");
    assert_eq!(seen.end(2), &Ok(FinishReason::Cancelled));
    sim.restore_backend().unwrap();
    assert!(sim.begin());
    sim.lose_backend();
    seen.take(&mut sim);
    assert!(is_lost(&seen, 1), "it may be the one that ends them");
    assert!(sim.restore_backend().is_ok() && !sim.step());
}

#[test]
fn an_idle_backend_that_goes_takes_the_caches_in_memory_and_leaves_the_disk() {
    let with_disk = SchedulerOptions { disk_bytes: 1 << 20, ..options(1) };
    let mut sim = Simulation::new(config(1, 1024), with_disk);
    sim.submit(request(1, tokens(1, 200), 2)).unwrap();
    let mut seen = run_all(&mut sim);
    assert!(sim.stats().ram_cache_entries > 0 && sim.stats().disk_cache_entries > 0);
    let on_disk = sim.stats().disk_cache_entries;
    sim.lose_backend();
    sim.check();
    let stats = sim.stats();
    assert_eq!((stats.cached_sequences, stats.ram_cache_entries, stats.disk_cache_entries), (0, 0, on_disk));
    sim.restore_backend().unwrap();
    sim.submit(request(2, tokens(1, 200), 2)).unwrap();
    run_on(&mut sim, &mut seen);
    assert!(seen.ends[&2].usage.prefix_cache_tokens > 100, "the disk gives back what it had");
    assert_eq!(seen.text[&2], seen.text[&1]);
}

#[test]
fn texts_in_the_pass_fail_and_others_are_read_by_the_next_one() {
    let mut sim = Simulation::new(config(1, 1024), options(1));
    let mut seen = Seen::default();
    sim.submit(embedding(1, vec![tokens(1, 900)])).unwrap();
    sim.submit(embedding(2, vec![tokens(2, 30)])).unwrap();
    assert!(sim.begin());
    sim.lose_backend();
    sim.check();
    seen.take(&mut sim);
    assert!(is_lost(&seen, 1) && !seen.ends.contains_key(&2));
    sim.restore_backend().unwrap();
    run_on(&mut sim, &mut seen);
    assert_eq!(seen.end(2), &Ok(FinishReason::Embedded));
}

#[test]
fn a_session_on_its_way_gets_an_error_and_the_next_one_too() {
    let (mut sim, mut seen) = one_runs_one_waits(OnBackendLoss::Wait);
    let (session, state) = (Key("chat".into()), SessionState { tokens: tokens(7, 9), parts: Vec::new() });
    sim.load_session(9, None, &session, state.clone()).unwrap();
    sim.lose_backend();
    seen.take(&mut sim);
    let failed = |event: &Event| matches!(event, Event::TransferFailed { transfer, .. } if transfer.0 == 9);
    assert_eq!(seen.events.iter().filter(|event| failed(event)).count(), 1);
    assert!(matches!(sim.load_session(10, None, &session, state), Err(Error::BackendLost(_))));
    assert!(matches!(sim.save_session(11, None, &session), Err(Error::BackendLost(_))));
}

#[test]
fn who_waits_for_a_backend_keeps_its_time_limits() {
    let mut sim = Simulation::new(config(1, 1024), options(1));
    let limited = Request { queue_timeout: Some(Duration::from_secs(2)), ..request(1, tokens(1, 9), 3) };
    sim.lose_backend();
    sim.submit(limited).unwrap();
    sim.advance(Duration::from_secs(3));
    let mut seen = Seen::default();
    seen.take(&mut sim);
    assert!(matches!(seen.end(1), Err(Error::RequestTimeout { .. })));
}

#[test]
fn another_model_than_before_is_refused() {
    let (mut sim, _) = one_runs_one_waits(OnBackendLoss::Wait);
    sim.lose_backend();
    sim.replace_backend(SimConfig { memory: MemoryKind::Recurrent, ..config(1, 1024) });
    assert!(matches!(sim.restore_backend(), Err(Error::ModelLoad(_))));
}

#[test]
fn a_smaller_backend_ends_who_does_not_fit_any_more() {
    let (mut sim, mut seen) = one_runs_one_waits(OnBackendLoss::Wait);
    sim.submit(request(3, tokens(3, 200), 3)).unwrap();
    sim.lose_backend();
    sim.replace_backend(config(1, 128));
    sim.restore_backend().unwrap();
    run_on(&mut sim, &mut seen);
    assert_eq!(seen.end(2), &Ok(FinishReason::MaxTokens));
    assert!(matches!(seen.end(3), Err(Error::ContextFull { n_ctx: 128, .. })));
}
