//! The bound on requests in flight: refused at once, or held back in order.

use super::*;
use llama_batch::core::Event;
use llama_batch::engine::Received;
use llama_batch::error::TimeoutKind;
use llama_batch::options::QueueFullPolicy;

fn bounded(policy: QueueFullPolicy) -> StartOptions {
    StartOptions { max_queue: 2, queue_full: policy, ..options(1) }
}

#[test]
fn slots_and_queue_take_what_they_hold_and_refuse_one_more_at_once() {
    let gate = Arc::new(Gate::default());
    let engine = ready(bounded(QueueFullPolicy::Raise), Some(&gate));
    let tickets: Vec<_> = (0..3).map(|_| submit(&engine, "prompt", 3)).collect();
    let refused = submit(&engine, "prompt", 3);
    assert_eq!(end(&refused).end, Err(queue_full(2)));
    assert_eq!(engine.stats().unwrap().in_flight, 3);
    tickets[2].cancel();
    let late = submit(&engine, "prompt", 3);
    gate.open();
    assert_eq!(end(&late).end, Ok(FinishReason::MaxTokens));
    assert_eq!(end(&tickets[1]).end, Ok(FinishReason::MaxTokens));
}

#[test]
fn without_a_bound_all_are_taken_in() {
    let gate = Arc::new(Gate::default());
    let engine = ready(StartOptions { max_queue: 0, ..options(1) }, Some(&gate));
    let tickets: Vec<_> = (0..300).map(|_| submit(&engine, "prompt", 1)).collect();
    gate.open();
    assert!(tickets.iter().all(|ticket| end(ticket).end == Ok(FinishReason::MaxTokens)));
}

#[test]
fn who_waits_for_room_gets_it_in_order() {
    let gate = Arc::new(Gate::default());
    let engine = ready(bounded(QueueFullPolicy::Wait), Some(&gate));
    let events = engine.subscribe().unwrap();
    let tickets: Vec<_> = (0..20).map(|_| submit(&engine, "prompt", 2)).collect();
    let stats = engine.stats().unwrap();
    assert_eq!((stats.in_flight, stats.held), (3, 17));
    gate.open();
    assert!(tickets.iter().all(|ticket| end(ticket).end == Ok(FinishReason::MaxTokens)));
    assert_eq!(engine.close(true, None), Ok(true));
    let mut started = Vec::new();
    while let Received::Event(event) = events.recv(None) {
        if let Event::Started { request, .. } = event.event {
            started.push(request);
        }
    }
    assert_eq!(started, tickets.iter().map(Ticket::id).collect::<Vec<_>>());
}

#[test]
fn who_waits_for_room_can_leave_and_makes_none() {
    let gate = Arc::new(Gate::default());
    let engine = ready(bounded(QueueFullPolicy::Wait), Some(&gate));
    let tickets: Vec<_> = (0..5).map(|_| submit(&engine, "prompt", 2)).collect();
    tickets[4].cancel();
    assert_eq!(end(&tickets[4]).end, Ok(FinishReason::Cancelled));
    let stats = engine.stats().unwrap();
    assert_eq!((stats.in_flight, stats.held), (3, 1));
    gate.open();
    assert!(tickets[..4].iter().all(|ticket| end(ticket).end == Ok(FinishReason::MaxTokens)));
}

#[test]
fn who_waits_for_room_may_run_out_of_time() {
    let gate = Arc::new(Gate::default());
    let engine = ready(bounded(QueueFullPolicy::Wait), Some(&gate));
    let tickets: Vec<_> = (0..3).map(|_| submit(&engine, "prompt", 2)).collect();
    let request = RequestOptions { queue_timeout: Some(0.0), ..RequestOptions::default() };
    let late = engine.submit(Prompt::Text("prompt".into()), request, Mode::Generate).unwrap();
    gate.open();
    let timeout = Error::RequestTimeout { kind: TimeoutKind::Queue, limit_s: 0.0 };
    assert_eq!(end(&late).end, Err(timeout));
    assert!(tickets.iter().all(|ticket| end(ticket).end == Ok(FinishReason::MaxTokens)));
}

#[test]
fn a_request_that_cannot_be_computed_is_refused_and_leaves_no_trace() {
    let engine = ready(bounded(QueueFullPolicy::Raise), None);
    let submit_tokens = |tokens: Vec<Token>| {
        let ticket = engine.submit(Prompt::Tokens(tokens), RequestOptions::default(), Mode::Generate).unwrap();
        end(&ticket).end.clone()
    };
    for _ in 0..5 {
        assert_eq!(submit_tokens(vec![]), Err(Error::EmptyPrompt));
        assert_eq!(submit_tokens(vec![65; 8192]), Err(Error::ContextFull { n_prompt_tokens: 8192, n_ctx: 8192 }));
        assert!(matches!(submit_tokens(vec![-1]), Err(Error::Prompt(_))));
        assert!(matches!(submit_tokens(vec![512]), Err(Error::Prompt(_))));
    }
    assert_eq!(engine.stats().unwrap().in_flight, 0);
    assert_eq!(submit_tokens(vec![65]), Ok(FinishReason::MaxTokens));
}
