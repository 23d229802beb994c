//! Telemetry and custom strategies.

use super::*;
use llama_batch::core::{Event, Grant, StrategyView};
use llama_batch::engine::{Callables, EVENT_QUEUE_LEN, Received};
use llama_batch::options::StrategyOption;
use std::time::Duration;

/// Every event up to the engine's end.
fn events_of(engine: &Engine, act: impl FnOnce()) -> Vec<Event> {
    let receiver = engine.subscribe().unwrap();
    act();
    assert_eq!(engine.close(true, None), Ok(true));
    let mut events = Vec::new();
    while let Received::Event(event) = receiver.recv(None) {
        assert_eq!((&*event.engine, event.engine_id), ("test", engine.id()));
        events.push(event.event.clone());
    }
    assert_eq!(receiver.n_dropped(), 0);
    events
}

#[test]
fn a_listener_hears_the_life_of_a_request_and_none_of_its_text() {
    let engine = ready(options(1), None);
    let events = events_of(&engine, || drop(end(&submit(&engine, "prompt", 3))));
    assert!(matches!(&events[0], Event::Queued { prompt_tokens: 6, .. }));
    assert!(matches!(&events[1], Event::Started { prompt_tokens: 6, .. }));
    assert_eq!(events.iter().filter(|event| matches!(event, Event::Tick { .. })).count(), 3);
    assert!(!events.iter().any(|event| matches!(event, Event::Chunk { .. })));
    let ends: Vec<_> = events.iter().filter(|event| matches!(event, Event::Finished(_))).collect();
    assert!(matches!(ends[..], [Event::Finished(f)] if f.end == Ok(FinishReason::MaxTokens) && f.seq.is_some()));
}

#[test]
fn requests_that_end_before_they_have_a_slot_are_told_of_once() {
    let gate = Arc::new(Gate::default());
    let engine = ready(options(1), Some(&gate));
    let events = events_of(&engine, || {
        let running = submit(&engine, "running", 3);
        gate.wait_for_arrival();
        let queued = submit(&engine, "queued", 3);
        queued.cancel();
        gate.open();
        end(&running);
    });
    let ends: Vec<_> = events
        .iter()
        .filter_map(|event| if let Event::Finished(finished) = event { Some(finished) } else { None })
        .collect();
    assert_eq!(ends.len(), 2);
    assert_eq!((&ends[0].end, ends[0].seq), (&Ok(FinishReason::Cancelled), None));
    assert_eq!(ends[1].end, Ok(FinishReason::MaxTokens));
}

#[test]
fn who_does_not_listen_loses_events_and_slows_nobody() {
    let engine = ready(StartOptions { prompt_cache_ram_mb: Some(0), n_draft: 0, ..options(1) }, None);
    let receiver = engine.subscribe().unwrap();
    assert_eq!(end(&submit(&engine, "prompt", 5_000)).end, Ok(FinishReason::MaxTokens));
    assert_eq!(engine.close(true, None), Ok(true));
    let mut n_received = 0;
    while let Received::Event(_) = receiver.recv(None) {
        n_received += 1;
    }
    // 5,000 passes, the submission, the start and the end.
    assert_eq!(n_received, EVENT_QUEUE_LEN);
    assert_eq!(receiver.n_dropped(), 5_003 - EVENT_QUEUE_LEN as u64);
    assert_eq!(engine.stats().unwrap().n_events_dropped, receiver.n_dropped());
}

#[test]
fn a_listener_who_comes_too_late_hears_that_it_is_over() {
    let engine = ready(options(1), None);
    let receiver = engine.subscribe().unwrap();
    assert!(matches!(receiver.recv(Some(Duration::ZERO)), Received::Timeout));
    assert_eq!(engine.close(false, None), Ok(true));
    assert!(matches!(engine.subscribe().unwrap().recv(None), Received::Closed));
}

/// Gives one row to everybody, or nothing but trouble.
struct Strategy {
    works: bool,
    n_asked: Mutex<u32>,
}

impl Callables for Strategy {
    fn strategy(&self, id: u64, view: StrategyView, _: Duration) -> Result<Vec<Grant>, String> {
        assert_eq!(id, 7);
        *self.n_asked.lock().unwrap() += 1;
        if !self.works {
            return Err("out of ideas".into());
        }
        Ok(view.requests.iter().map(|row| Grant { request: row.request, n_rows: 1 }).collect())
    }
}

#[test]
fn a_custom_strategy_is_asked_and_its_failure_harms_nobody() {
    for works in [true, false] {
        let callables = Arc::new(Strategy { works, n_asked: Mutex::default() });
        let strategy = StartOptions { batch_strategy: StrategyOption::Callable(7), ..options(2) };
        let asked = Arc::clone(&callables);
        let engine = Engine::new(EngineConfig { name: "test".into(), options: strategy, callables }).unwrap();
        engine.load(loader(2, None, None));
        let events = events_of(&engine, || {
            assert_eq!(end(&submit(&engine, "prompt", 3)).end, Ok(FinishReason::MaxTokens));
        });
        assert!(*asked.n_asked.lock().unwrap() > 0);
        let failed = events.iter().any(|event| matches!(event, Event::StrategyFailed { .. }));
        assert_eq!(failed, !works);
    }
}
