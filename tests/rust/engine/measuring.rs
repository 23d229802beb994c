//! Histograms and counts.

use super::*;
use llama_batch::engine::EngineMetrics;
use llama_batch::error::RpcReason;

/// What was measured up to the engine's end.
fn measured(engine: &Engine) -> EngineMetrics {
    assert_eq!(engine.close(true, None), Ok(true));
    engine.metrics().unwrap()
}

fn finished(metrics: &EngineMetrics, reason: &str) -> u64 {
    metrics.finished.iter().find(|(word, _)| *word == reason).unwrap().1
}

fn failures(metrics: &EngineMetrics, code: &str) -> u64 {
    metrics.failures.iter().find(|(word, _)| *word == code).unwrap().1
}

fn n_failures(metrics: &EngineMetrics) -> u64 {
    metrics.failures.iter().map(|(_, n)| n).sum()
}

#[test]
fn each_request_and_token_and_pass_is_measured_once() {
    let engine = ready(options(2), None);
    let tickets = [("one", 4), ("another one", 1), ("the third", 7)].map(|(text, n)| submit(&engine, text, n));
    let ends = tickets.each_ref().map(end);
    let metrics = measured(&engine);
    let n_tokens: u64 = ends.iter().map(|end| u64::from(end.usage.generated_tokens)).sum();
    let n_prompt: u64 = ends.iter().map(|end| u64::from(end.usage.prompt_tokens)).sum();
    assert_eq!((finished(&metrics, "max_tokens"), n_failures(&metrics)), (3, 0));
    for histogram in [
        &metrics.time_to_first_token,
        &metrics.e2e_request_latency,
        &metrics.request_queue_time,
        &metrics.request_inference_time,
        &metrics.request_prefill_time,
        &metrics.request_decode_time,
    ] {
        assert_eq!(histogram.count(), 3);
    }
    assert_eq!(metrics.inter_token_latency.count(), n_tokens - 3);
    assert_eq!((metrics.request_generation_tokens.count(), metrics.request_generation_tokens.sum), (3, n_tokens));
    assert_eq!((metrics.request_prompt_tokens.count(), metrics.request_prompt_tokens.sum), (3, n_prompt));
    assert_eq!((metrics.n_prompt_tokens, metrics.n_prefix_cache_queries), (n_prompt, n_prompt));
    let core = &metrics.stats.core;
    assert_eq!(metrics.iteration_tokens.count(), core.n_ticks);
    assert_eq!(
        metrics.iteration_tokens.sum,
        core.n_prefill_tokens + n_tokens - 3,
        "a decode row for each further token"
    );
    assert!(metrics.n_busy_slots >= core.n_ticks && metrics.n_busy_slots <= 2 * core.n_ticks);
    let total: u64 = ends.iter().map(|end| end.timings.total.as_nanos() as u64).sum();
    assert_eq!(metrics.e2e_request_latency.sum, total, "what the callers were told");
    let ttft: u64 = ends.iter().map(|end| end.timings.ttft.as_nanos() as u64).sum();
    assert_eq!(metrics.time_to_first_token.sum, ttft);
}

#[test]
fn what_is_refused_is_a_failure_and_nothing_else() {
    let gate = Arc::new(Gate::default());
    let engine = ready(StartOptions { max_queue: 1, ..options(1) }, Some(&gate));
    let tickets = [submit(&engine, "runs", 2), submit(&engine, "waits", 2)];
    let full = end(&submit(&engine, "has no room", 2));
    assert_eq!(full.end, Err(queue_full(1)));
    gate.open();
    drop(tickets.each_ref().map(end));
    assert_eq!(end(&submit(&engine, "", 2)).end, Err(Error::EmptyPrompt));
    let metrics = measured(&engine);
    assert_eq!((failures(&metrics, "queue_full"), failures(&metrics, "empty_prompt")), (1, 1));
    assert_eq!((n_failures(&metrics), metrics.e2e_request_latency.count()), (2, 2));
    assert_eq!(metrics.finished.iter().map(|(_, n)| n).sum::<u64>(), 2);
}

#[test]
fn who_looks_does_not_wait_for_the_pass_under_way() {
    let gate = Arc::new(Gate::default());
    let engine = ready(options(1), Some(&gate));
    let running = submit(&engine, "running", 3);
    gate.wait_for_arrival();
    let metrics = engine.metrics().unwrap();
    assert_eq!((metrics.stats.core.active_slots, metrics.n_prompt_tokens), (1, 7));
    assert_eq!((metrics.time_to_first_token.count(), metrics.iteration_tokens.count()), (0, 0));
    gate.open();
    end(&running);
    assert_eq!(engine.metrics().unwrap().time_to_first_token.count(), 1);
}

#[test]
fn who_never_had_a_slot_waited_and_did_nothing_else() {
    let gate = Arc::new(Gate::default());
    let engine = ready(options(1), Some(&gate));
    let running = submit(&engine, "running", 3);
    gate.wait_for_arrival();
    submit(&engine, "queued", 3).cancel();
    gate.open();
    end(&running);
    let metrics = measured(&engine);
    assert_eq!((finished(&metrics, "cancelled"), finished(&metrics, "max_tokens")), (1, 1));
    assert_eq!((metrics.e2e_request_latency.count(), metrics.request_queue_time.count()), (2, 2));
    assert_eq!((metrics.request_inference_time.count(), metrics.time_to_first_token.count()), (1, 1));
    assert_eq!((metrics.request_decode_time.count(), metrics.request_generation_tokens.count()), (1, 2));
}

#[test]
fn a_model_that_does_not_come_is_a_failure_of_each_request() {
    let engine = engine(options(1));
    let waiting = [submit(&engine, "one", 1), submit(&engine, "another", 1)];
    engine.fail(&Error::ModelLoad("no such thing".into()));
    drop(waiting.each_ref().map(end));
    end(&submit(&engine, "late", 1));
    let metrics = engine.metrics().unwrap();
    assert_eq!((failures(&metrics, "load_failed"), finished(&metrics, "error")), (3, 2));
    assert_eq!(metrics.time_to_first_token.count(), 0);
}

#[test]
fn a_crash_is_a_failure_of_each_request_and_leaves_what_was_measured() {
    let gate = Arc::new(Gate::default());
    let engine = engine(options(1));
    let (fault, pass_gate) = (Some(Fault::Panic), Some(Arc::clone(&gate)));
    engine.load(Box::new(SimLoader { fault, config: config(1), pass_gate, load_gate: None }));
    let tickets = [submit(&engine, "one", 3), submit(&engine, "another", 3)];
    gate.open();
    drop(tickets.each_ref().map(end));
    end(&submit(&engine, "late", 3));
    let metrics = engine.metrics().unwrap();
    assert_eq!((failures(&metrics, "crashed"), finished(&metrics, "error")), (3, 2));
    assert_eq!((metrics.e2e_request_latency.count(), n_failures(&metrics)), (2, 3));
}

#[test]
fn what_was_found_in_the_cache_is_counted_by_where() {
    let engine = ready(options(1), None);
    let text = "a beginning that both have in common, word for word, up to its end";
    let n_found: u32 = [1, 2].map(|_| end(&submit(&engine, text, 2)).usage.prefix_cache_tokens).iter().sum();
    let metrics = measured(&engine);
    assert!(n_found > 0);
    let hits: u64 = metrics.prefix_cache_hits.iter().map(|(_, n)| n).sum();
    assert_eq!((hits, metrics.stats.core.n_prefix_cache_tokens), (u64::from(n_found), u64::from(n_found)));
    assert_eq!(metrics.n_prefix_cache_queries, metrics.n_prompt_tokens);
}

#[test]
fn every_error_has_its_place_among_the_codes() {
    let text = String::new;
    let errors = [
        Error::Option(text()),
        Error::ModelNotFound(text()),
        Error::ModelLoad(text()),
        Error::EngineNotReady,
        Error::EngineClosed,
        Error::Forked,
        Error::EngineCrashed(text()),
        queue_full(1),
        Error::RequestTimeout { kind: llama_batch::error::TimeoutKind::Total, limit_s: 1.0 },
        Error::EmptyPrompt,
        Error::ContextFull { n_prompt_tokens: 2, n_ctx: 1 },
        Error::TextTooLong { index: 0, n_tokens: 2, n_max: 1, bound: llama_batch::error::TextBound::Pass },
        Error::Unsupported(text()),
        Error::Cancelled,
        Error::Prompt(text()),
        Error::Template(text()),
        Error::Grammar(text()),
        Error::Session(text()),
        Error::SessionNotFound(text()),
        Error::Inference(text()),
        Error::Rpc { reason: RpcReason::Bind, endpoint: text(), text: text() },
        Error::Rpc { reason: RpcReason::Unreachable, endpoint: text(), text: text() },
        Error::Rpc { reason: RpcReason::Lost, endpoint: text(), text: text() },
        Error::BackendLost(text()),
    ];
    assert_eq!(errors.each_ref().map(Error::code), Error::CODES);
}
