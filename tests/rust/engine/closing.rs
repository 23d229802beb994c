//! The end of an engine, in whatever state it is.

use super::*;
use llama_batch::backend::sim::Fault;
use llama_batch::engine::{Interest, Signal, State, Waker};
use std::time::Duration;

#[test]
fn draining_serves_everybody_who_is_in_and_refuses_the_rest() {
    let gate = Arc::new(Gate::default());
    let engine = ready(options(1), Some(&gate));
    let tickets: Vec<_> = (0..5).map(|_| submit(&engine, "prompt", 3)).collect();
    std::thread::scope(|scope| {
        let closing = scope.spawn(|| engine.close(true, None));
        while engine.state() != State::Closed {
            std::thread::yield_now();
        }
        assert_eq!(end(&submit(&engine, "late", 3)).end, Err(Error::EngineClosed));
        gate.open();
        assert_eq!(closing.join().unwrap(), Ok(true));
    });
    assert!(tickets.iter().all(|ticket| end(ticket).end == Ok(FinishReason::MaxTokens)));
}

#[test]
fn closing_cancels_everybody_who_is_in() {
    let gate = Arc::new(Gate::default());
    let engine = ready(options(2), Some(&gate));
    let tickets: Vec<_> = (0..5).map(|_| submit(&engine, "prompt", 3)).collect();
    gate.wait_for_arrival();
    assert_eq!(engine.close(false, None), Ok(true));
    assert!(tickets.iter().all(|ticket| end(ticket).end == Ok(FinishReason::Cancelled)));
    assert_eq!(engine.model().err(), Some(Error::EngineClosed));
}

#[test]
fn a_drain_whose_time_runs_out_cancels_the_rest() {
    let gate = Arc::new(Gate::default());
    let engine = ready(options(1), Some(&gate));
    let ticket = submit(&engine, "prompt", 3);
    gate.wait_for_arrival();
    assert_eq!(engine.close(true, Some(Duration::ZERO)), Ok(false));
    assert_eq!(end(&ticket).end, Ok(FinishReason::Cancelled));
    assert_eq!(engine.close(true, None), Ok(true));
}

#[test]
fn anybody_may_close_at_any_time_and_again() {
    let gate = Arc::new(Gate::default());
    for loads in [false, true] {
        let engine = engine(options(2));
        if loads {
            engine.load(loader(2, Some(&gate), None));
        }
        let tickets: Vec<_> = (0..4).map(|_| submit(&engine, "prompt", 3)).collect();
        std::thread::scope(|scope| {
            for i in 0..8 {
                let engine = engine.clone();
                scope.spawn(move || assert_eq!(engine.close(i == 0, None), Ok(true)));
            }
        });
        assert!(tickets.iter().all(|ticket| end(ticket).end == Ok(FinishReason::Cancelled)));
        assert_eq!(engine.close(false, None), Ok(true));
        assert_eq!(engine.state(), State::Closed);
    }
}

#[test]
fn only_the_last_clone_takes_the_engine_with_it() {
    let gate = Arc::new(Gate::default());
    let engine = ready(options(1), Some(&gate));
    drop(engine.clone());
    let ticket = submit(&engine, "prompt", 3);
    gate.wait_for_arrival();
    assert_eq!(ticket.mailbox().end(), None);
    drop(engine);
    assert_eq!(end(&ticket).end, Ok(FinishReason::Cancelled));
}

#[test]
fn a_panic_of_the_backend_is_told_to_everybody_and_poisons_nothing() {
    let gate = Arc::new(Gate::default());
    let engine = engine(options(1));
    engine.load(Box::new(SimLoader {
        fault: Some(Fault::Panic),
        config: config(1),
        pass_gate: Some(Arc::clone(&gate)),
        load_gate: None,
    }));
    let tickets: Vec<_> = (0..3).map(|_| submit(&engine, "prompt", 3)).collect();
    gate.open();
    for ticket in &tickets {
        assert!(matches!(&end(ticket).end, Err(Error::EngineCrashed(text)) if text.contains("the backend panics")));
    }
    assert!(matches!(engine.state(), State::Failed(Error::EngineCrashed(_))));
    assert!(matches!(end(&submit(&engine, "late", 3)).end, Err(Error::EngineCrashed(_))));
    assert_eq!(engine.stats().unwrap().in_flight, 0);
    assert_eq!(engine.close(true, None), Ok(true));
}

/// Closes the engine from whatever thread wakes it, and lets go of it there.
struct ClosingWaker(Mutex<Option<Engine>>);

impl Waker for ClosingWaker {
    fn mark(&self, _: u64) {}

    fn wake(&self) {
        if let Some(engine) = self.0.lock().unwrap().take() {
            assert_eq!(engine.close(true, None), Ok(false));
        }
    }
}

#[test]
fn the_engine_thread_never_waits_for_itself() {
    let gate = Arc::new(Gate::default());
    let engine = ready(options(1), Some(&gate));
    let (first, second) = (submit(&engine, "first", 1), submit(&engine, "second", 3));
    gate.wait_for_arrival();
    let waker: Arc<dyn Waker> = Arc::new(ClosingWaker(Mutex::new(Some(engine))));
    assert!(!first.mailbox().subscribe(Interest::End, Signal::new(waker, 0)));
    gate.open();
    assert_eq!(end(&first).end, Ok(FinishReason::MaxTokens));
    assert_eq!(end(&second).end, Ok(FinishReason::Cancelled));
}
