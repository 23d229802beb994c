//! Texts that become vectors, through the whole engine.

use super::*;
use llama_batch::options::{EmbedOptions, QueueFullPolicy};

fn embed(engine: &Engine, texts: &[&str]) -> Ticket {
    let texts = texts.iter().map(|text| Prompt::Text((*text).into())).collect();
    engine.embed(texts, &EmbedOptions::default()).unwrap()
}

fn n_vectors(ticket: &Ticket) -> usize {
    assert_eq!(end(ticket).end, Ok(FinishReason::Embedded));
    ticket.mailbox().embedded().unwrap().vectors.len()
}

#[test]
fn vectors_arrive_before_the_end_and_streams_go_on() {
    let engine = ready(options(1), None);
    let stream = submit(&engine, "prompt", 50);
    let tickets: Vec<_> = (0..20).map(|_| embed(&engine, &["one", "two"])).collect();
    assert!(tickets.iter().all(|ticket| n_vectors(ticket) == 2));
    assert_eq!(read(stream.mailbox()).2.end, Ok(FinishReason::MaxTokens));
    let stats = engine.stats().unwrap().core;
    assert_eq!((stats.n_embedded_texts, stats.embedding_requests, stats.n_finished), (40, 0, 21));
}

#[test]
fn a_pass_over_texts_that_nobody_wants_any_more_is_aborted() {
    let gate = Arc::new(Gate::default());
    let engine = ready(options(1), Some(&gate));
    let ticket = embed(&engine, &["one", "two"]);
    gate.wait_for_arrival();
    ticket.cancel();
    assert_eq!(end(&ticket).end, Ok(FinishReason::Cancelled));
    assert!(ticket.mailbox().embedded().is_none());
    gate.open();
    assert_eq!(n_vectors(&embed(&engine, &["three"])), 1);
}

#[test]
fn they_wait_for_the_model_and_for_room_as_all_requests_do() {
    let load_gate = Arc::new(Gate::default());
    let bounds = StartOptions { max_queue: 1, ..options(1) };
    let engine = engine(StartOptions { queue_full: QueueFullPolicy::Wait, ..bounds.clone() });
    engine.load(loader(1, None, Some(&load_gate)));
    let tickets: Vec<_> = (0..9).map(|_| embed(&engine, &["one"; 7])).collect();
    let wrong = embed(&engine, &["one", ""]);
    tickets[4].cancel();
    assert_eq!(end(&tickets[4]).end, Ok(FinishReason::Cancelled));
    load_gate.open();
    assert!(tickets.iter().enumerate().all(|(i, ticket)| i == 4 || n_vectors(ticket) == 7));
    assert_eq!(end(&wrong).end, Err(Error::EmptyPrompt));
    let gate = Arc::new(Gate::default());
    let full = ready(bounds, Some(&gate));
    let tickets: Vec<_> = (0..3).map(|_| embed(&full, &["one"; 7])).collect();
    assert_eq!(end(&tickets[2]).end, Err(queue_full(1)));
    gate.open();
    assert!(tickets[..2].iter().all(|ticket| n_vectors(ticket) == 7));
}

#[test]
fn they_end_with_the_engine_however_that_ends() {
    let gate = Arc::new(Gate::default());
    let engine = ready(options(1), Some(&gate));
    let tickets: Vec<_> = (0..3).map(|_| embed(&engine, &["one"])).collect();
    gate.wait_for_arrival();
    assert_eq!(engine.close(false, None), Ok(true));
    assert!(tickets.iter().all(|ticket| end(ticket).end == Ok(FinishReason::Cancelled)));
    assert_eq!(end(&embed(&engine, &["late"])).end, Err(Error::EngineClosed));
    let crashing = super::engine(options(1));
    let fault = Some(Fault::Panic);
    crashing.load(Box::new(SimLoader { config: config(1), fault, pass_gate: None, load_gate: None }));
    let tickets: Vec<_> = (0..3).map(|_| embed(&crashing, &["one"])).collect();
    assert!(tickets.iter().all(|ticket| matches!(end(ticket).end, Err(Error::EngineCrashed(_)))));
}
