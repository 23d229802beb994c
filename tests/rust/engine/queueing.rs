//! The bound on requests in flight: refused at once, or held back in order.

use super::*;
use llama_batch::core::{Event, RequestId};
use llama_batch::engine::{EventReceiver, Received};
use llama_batch::error::TimeoutKind;
use llama_batch::options::{Key, QueueFullPolicy};

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
    let started = started(&events);
    assert_eq!(started, tickets.iter().map(Ticket::id).collect::<Vec<_>>());
}

/// Who got a slot, in order, in an engine that was closed.
fn started(events: &EventReceiver) -> Vec<RequestId> {
    let mut started = Vec::new();
    while let Received::Event(event) = events.recv(None) {
        if let Event::Started { request, .. } = event.event {
            started.push(request);
        }
    }
    started
}

/// A request of a scope; `fair_scope` goes before `cache_scope`.
fn submit_in(engine: &Engine, scope: &str, n: u32) -> Ticket {
    let (fair_scope, cache_scope) = (Some(Key(scope.into())), Some(Key("all".into())));
    let options =
        RequestOptions { max_tokens: 2, seed: Some(1), fair_scope, cache_scope, n, ..RequestOptions::default() };
    engine.submit(Prompt::Text("prompt".into()), options, Mode::Generate).unwrap()
}

fn bounded_scopes(policy: QueueFullPolicy) -> StartOptions {
    StartOptions { max_queue: 5, max_queue_per_scope: 1, queue_full: policy, ..options(1) }
}

#[test]
fn a_scope_that_is_full_is_refused_at_once_and_the_others_come_in() {
    let gate = Arc::new(Gate::default());
    let engine = engine(bounded_scopes(QueueFullPolicy::Raise));
    let full = Err(Error::QueueFull { bound: QueueBound::Scope, limit: 1 });
    let mut taken = vec![submit_in(&engine, "a", 1), submit_in(&engine, "a", 1)];
    assert_eq!(end(&submit_in(&engine, "a", 1)).end, full, "while the model loads too");
    engine.load(loader(1, Some(&gate), None));
    assert_eq!(engine.wait_ready(None), Ok(true));
    assert_eq!(end(&submit_in(&engine, "a", 1)).end, full);
    taken.extend([submit_in(&engine, "b", 2), submit(&engine, "prompt", 2)]);
    let too_many = end(&submit_in(&engine, "c", 3)).end.clone();
    let Err(Error::Option(said)) = too_many else { panic!("{too_many:?}") };
    assert!(said.contains("at most 2 answers") && said.contains("max_queue_per_scope"), "{said}");
    assert_eq!(engine.stats().unwrap().in_flight, 5);
    taken[1].cancel();
    taken.push(submit_in(&engine, "a", 1));
    assert_eq!(end(&submit_in(&engine, "a", 1)).end, full, "a cancelled one made room for one");
    taken.push(submit_in(&engine, "d", 1));
    assert_eq!(end(&submit_in(&engine, "e", 1)).end, Err(queue_full(5)), "the bound of all holds beside it");
    gate.open();
    let ends: Vec<_> = taken.iter().map(|ticket| end(ticket).end.clone()).collect();
    assert_eq!(ends.iter().filter(|end| **end == Ok(FinishReason::MaxTokens)).count(), taken.len() - 1);
}

#[test]
fn who_waits_for_room_in_a_scope_holds_up_no_other_scope() {
    let gate = Arc::new(Gate::default());
    let engine = ready(bounded_scopes(QueueFullPolicy::Wait), Some(&gate));
    let events = engine.subscribe().unwrap();
    let many: Vec<_> = (0..6).map(|_| submit_in(&engine, "many", 1)).collect();
    let few = [submit_in(&engine, "few", 1), submit_in(&engine, "few", 1)];
    let stats = engine.stats().unwrap();
    assert_eq!((stats.in_flight, stats.held), (4, 4));
    many[3].cancel();
    assert_eq!(end(&many[3]).end, Ok(FinishReason::Cancelled));
    gate.open();
    for ticket in many.iter().chain(&few).filter(|ticket| ticket.id() != many[3].id()) {
        assert_eq!(end(ticket).end, Ok(FinishReason::MaxTokens));
    }
    assert_eq!(engine.stats().unwrap().held, 0);
    assert_eq!(engine.close(true, None), Ok(true));
    let started = started(&events);
    let at = |ticket: &Ticket| started.iter().position(|id| *id == ticket.id());
    let in_order: Vec<_> = many.iter().filter_map(at).collect();
    assert!(in_order.is_sorted() && in_order.len() == 5, "{started:?}");
}

#[test]
fn room_goes_to_the_scope_that_has_fewest_in_the_engine() {
    let gate = Arc::new(Gate::default());
    let engine = ready(bounded(QueueFullPolicy::Wait), Some(&gate));
    let events = engine.subscribe().unwrap();
    let many: Vec<_> = (0..10).map(|_| submit_in(&engine, "many", 1)).collect();
    let one = submit_in(&engine, "one", 1);
    gate.open();
    assert!(many.iter().chain([&one]).all(|ticket| end(ticket).end == Ok(FinishReason::MaxTokens)));
    assert_eq!(engine.close(true, None), Ok(true));
    let at = started(&events).iter().position(|id| *id == one.id());
    assert!(at.is_some_and(|at| at <= 3), "it came in place {at:?}");
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
