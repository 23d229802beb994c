//! Cancellation: at once, by call or by letting go, and without harm to anybody else.

use super::*;
use llama_batch::backend::sim::FaultRates;
use llama_batch::core::RequestId;

#[test]
fn a_queued_request_ends_at_once_while_a_pass_is_under_way() {
    let gate = Arc::new(Gate::default());
    let engine = ready(options(1), Some(&gate));
    let running = submit(&engine, "running", 3);
    gate.wait_for_arrival();
    let queued = submit(&engine, "queued", 3);
    engine.cancel(queued.id());
    assert_eq!(end(&queued).end, Ok(FinishReason::Cancelled));
    assert_eq!(running.mailbox().end(), None);
    gate.open();
    assert_eq!(end(&running).end, Ok(FinishReason::MaxTokens));
}

#[test]
fn a_pass_that_computes_for_nobody_any_more_is_aborted() {
    let gate = Arc::new(Gate::default());
    let engine = ready(options(2), Some(&gate));
    let tickets = [submit(&engine, "one", 3), submit(&engine, "two", 3)];
    gate.wait_for_arrival();
    tickets.iter().for_each(Ticket::cancel);
    for ticket in &tickets {
        assert_eq!(end(ticket).end, Ok(FinishReason::Cancelled));
    }
}

#[test]
fn a_pass_that_computes_for_others_too_goes_on() {
    let gate = Arc::new(Gate::default());
    let engine = engine(options(2));
    let load_gate = Arc::new(Gate::default());
    engine.load(loader(2, Some(&gate), Some(&load_gate)));
    let (leaves, stays) = (submit(&engine, "leaves", 3), submit(&engine, "stays", 3));
    load_gate.open();
    gate.wait_for_arrival();
    leaves.cancel();
    assert_eq!(gate.n_waiting(), 1, "the pass is still before the gate");
    gate.open();
    assert_eq!(end(&leaves).end, Ok(FinishReason::Cancelled));
    assert_eq!(end(&stays).end, Ok(FinishReason::MaxTokens));
}

#[test]
fn a_cancelled_request_keeps_its_text() {
    let gate = Arc::new(Gate::default());
    let engine = ready(options(1), Some(&gate));
    let ticket = submit(&engine, "prompt", 1_000);
    gate.let_one_pass();
    gate.wait_for_arrival();
    while ticket.mailbox().so_far()[0].tokens.is_empty() {
        gate.let_one_pass();
        gate.wait_for_arrival();
    }
    ticket.cancel();
    let (_, tokens, finished) = read(ticket.mailbox());
    assert_eq!(finished.end, Ok(FinishReason::Cancelled));
    assert!(!tokens.is_empty());
    assert_eq!(tokens.len(), finished.usage.generated_tokens as usize);
}

#[test]
fn letting_go_of_a_ticket_cancels_its_request() {
    let gate = Arc::new(Gate::default());
    let engine = ready(options(1), Some(&gate));
    let ticket = submit(&engine, "prompt", 3);
    gate.wait_for_arrival();
    let mailbox = Arc::clone(ticket.mailbox());
    drop(ticket);
    assert_eq!(mailbox.wait_end(None).unwrap().end, Ok(FinishReason::Cancelled));
}

#[test]
fn ended_and_unknown_requests_are_left_alone() {
    let engine = ready(options(1), None);
    let ticket = submit(&engine, "prompt", 3);
    let finished = end(&ticket);
    ticket.cancel();
    engine.cancel(ticket.id());
    engine.cancel(RequestId(999));
    assert_eq!(end(&ticket), finished);
    drop(ticket);
    assert_eq!(end(&submit(&engine, "next", 3)).end, Ok(FinishReason::MaxTokens));
    assert_eq!(engine.stats().unwrap().core.n_cancelled, 0);
}

/// Six threads that submit, cancel, let go and read, in every mixture.
fn storm(engine: &Engine, check_end: impl Fn(&Finished) + Sync) {
    std::thread::scope(|scope| {
        for thread in 0..6_usize {
            let check_end = &check_end;
            scope.spawn(move || {
                for round in 0..40_usize {
                    let ticket = submit(engine, "a prompt of some length", 8);
                    let mailbox = Arc::clone(ticket.mailbox());
                    match (thread + round) % 4 {
                        0 => drop(ticket),
                        1 => ticket.cancel(),
                        2 => drop((mailbox.wait(None), ticket)),
                        _ => check_end(&end(&ticket)),
                    }
                    read(&mailbox);
                    assert_eq!(mailbox.take(), None);
                }
            });
        }
    });
    assert_eq!(engine.close(true, None), Ok(true));
    let stats = engine.stats().unwrap();
    assert_eq!((stats.in_flight, stats.held), (0, 0));
    assert_eq!(stats.core.n_submitted, stats.core.n_finished);
}

#[test]
fn in_a_storm_of_cancellations_everybody_ends_once_and_those_who_stay_are_served() {
    let engine = ready(StartOptions { max_queue: 0, ..options(4) }, None);
    storm(&engine, |finished| assert_eq!(finished.end, Ok(FinishReason::MaxTokens)));
}

#[test]
fn neither_does_a_failing_backend_leave_anybody_without_an_end() {
    let engine = engine(StartOptions { max_queue: 0, n_ctx: 128, ..options(4) });
    let fault_rates = FaultRates {
        kv_full: 100,
        fail: 100,
        refuse_copy: 100,
        refuse_trim: 100,
        refuse_open: 50,
        fail_draw: 20,
        ..FaultRates::default()
    };
    let config = SimConfig { n_ctx: 128, fault_rates, ..config(4) };
    engine.load(Box::new(SimLoader { config, fault: None, pass_gate: None, load_gate: None }));
    // A backend that has no room for a request that runs alone ends it as a full context does.
    storm(&engine, |finished| {
        let end = &finished.end;
        let allowed = Ok(FinishReason::MaxTokens) == *end || Ok(FinishReason::ContextFull) == *end;
        assert!(allowed || matches!(end, Err(Error::Inference(_))), "{end:?}");
    });
}
