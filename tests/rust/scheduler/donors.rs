//! Prefixes of requests that still run: nothing that somebody computes is computed twice.

use super::*;
use llama_batch::backend::sim::Latency;
use llama_batch::core::PrefixSource;
use llama_batch::error::TimeoutKind;
use llama_batch::options::{BatchStrategy, Key, StrategyOption};
use std::time::Duration;

/// A common beginning, and an end of one's own.
fn sharing(id: u64, n_shared: u32, n_own: u32) -> Request {
    let own = (0..n_own).map(|i| ((id * 31 + u64::from(i)) % 60 + 100) as Token);
    request(id, prompt(n_shared).into_iter().chain(own).collect(), 10)
}

fn prefilled(sim: &Simulation) -> u64 {
    sim.stats().n_prefill_tokens
}

#[test]
fn a_burst_with_a_common_beginning_computes_it_once() {
    let mut sim = Simulation::new(config(16, 8192), SchedulerOptions { chunk_size: 64, ..options(16) });
    let burst: Vec<Request> = (1..=16).map(|id| sharing(id, 300, 20)).collect();
    for r in &burst {
        sim.submit(r.clone()).expect("there is room");
    }
    let seen = run_all(&mut sim);
    assert_eq!(prefilled(&sim), 300 + 16 * 20);
    for r in &burst {
        assert_eq!(seen.text[&r.id.0], alone(r));
        let (n_cached, source) = if r.id.0 == 1 { (0, PrefixSource::None) } else { (300, PrefixSource::Donor) };
        assert_eq!(
            (seen.ends[&r.id.0].usage.prefix_cache_tokens, seen.ends[&r.id.0].prefix_source),
            (n_cached, source)
        );
    }
}

#[test]
fn who_comes_while_another_generates_takes_what_is_computed_of_it_answer_and_all() {
    let mut sim = Simulation::new(config(2, 8192), options(2));
    let first = Request { max_tokens: 200, ..sharing(1, 100, 10) };
    sim.submit(first.clone()).expect("room");
    let mut seen = Seen::default();
    while seen.n_tokens.get(&1).copied().unwrap_or_default() < 50 {
        sim.step();
        seen.take(&mut sim);
    }
    let answer: Vec<Token> = seen
        .events
        .iter()
        .filter_map(|e| if let Event::Chunk { tokens, .. } = e { Some(tokens.clone()) } else { None })
        .flatten()
        .collect();
    let second = request(2, [&first.prompt[..], &answer[..40], &[7, 8, 9]].concat(), 10);
    sim.submit(second.clone()).expect("room");
    run_on(&mut sim, &mut seen);
    assert_eq!(seen.ends[&2].usage.prefix_cache_tokens, 150);
    assert_eq!(seen.text[&2], alone(&second));
    assert_eq!(seen.text[&1], alone(&first));
}

#[test]
fn those_who_await_a_prefix_go_on_when_its_computer_is_cancelled() {
    for n_steps in 0..12 {
        let mut sim = Simulation::new(config(4, 8192), SchedulerOptions { chunk_size: 50, ..options(4) });
        let burst: Vec<Request> = (1..=4).map(|id| sharing(id, 300, 20)).collect();
        for r in &burst {
            sim.submit(r.clone()).expect("there is room");
        }
        for _ in 0..n_steps {
            sim.step();
        }
        sim.cancel(RequestId(1));
        let seen = run_all(&mut sim);
        for r in &burst[1..] {
            assert_eq!(seen.text[&r.id.0], alone(r), "request {} after {n_steps} steps", r.id);
        }
        // What the first had computed stays, and the second computes the rest.
        assert!(prefilled(&sim) <= 300 + 4 * 20, "{} tokens after {n_steps} steps", prefilled(&sim));
    }
}

#[test]
fn nobody_awaits_what_another_scope_computes_nor_what_may_not_be_reused() {
    let scoped = |id: u64, scope: &str| Request { scope: Some(Key(scope.into())), ..sharing(id, 200, 5) };
    let private = |id: u64| Request { cache_prompt: false, ..sharing(id, 200, 5) };
    let mut sim = Simulation::new(config(8, 8192), options(8));
    for r in [scoped(1, "a"), scoped(2, "b"), scoped(3, "a"), private(4), private(5), sharing(6, 200, 5)] {
        sim.submit(r).expect("room");
    }
    let seen = run_all(&mut sim);
    let cached = |id: u64| seen.ends[&id].usage.prefix_cache_tokens;
    assert_eq!([1, 2, 3, 4, 5, 6].map(cached), [0, 0, 200, 0, 0, 0]);
}

#[test]
fn who_awaits_a_prefix_does_not_stall_while_it_is_being_computed() {
    let latency = Latency { fixed: Duration::from_millis(100), ..Latency::default() };
    let config = SimConfig { latency, ..config(2, 8192) };
    let mut sim = Simulation::new(config, SchedulerOptions { chunk_size: 20, ..options(2) });
    let stall_timeout = Some(Duration::from_millis(250));
    for id in 1..=2 {
        sim.submit(Request { stall_timeout, ..sharing(id, 300, 5) }).expect("room");
    }
    let seen = run_all(&mut sim);
    for id in 1..=2 {
        assert_eq!(seen.end(id), &Ok(FinishReason::MaxTokens));
    }
    assert_eq!(prefilled(&sim), 310);
}

#[test]
fn who_awaits_a_prefix_stalls_with_its_computer() {
    let latency = Latency { fixed: Duration::from_millis(100), ..Latency::default() };
    let strategy = StrategyOption::Builtin(BatchStrategy::DecodeMaximal);
    // One row a pass: the stream of the first leaves nothing for the second's prompt, which the third awaits.
    let options = SchedulerOptions { n_batch: 1, batch_strategy: strategy, ..options(3) };
    let mut sim = Simulation::new(SimConfig { latency, ..config(3, 8192) }, options);
    sim.submit(Request { max_tokens: 100, cache_prompt: false, ..request(1, vec![9], 100) }).expect("room");
    sim.submit(sharing(2, 100, 5)).expect("room");
    sim.submit(Request { stall_timeout: Some(Duration::from_millis(450)), ..sharing(3, 100, 5) }).expect("room");
    let seen = run_all(&mut sim);
    assert!(matches!(seen.end(3), Err(Error::RequestTimeout { kind: TimeoutKind::Stall, .. })), "{:?}", seen.end(3));
    assert_eq!(seen.end(2), &Ok(FinishReason::MaxTokens));
}

#[test]
fn what_is_awaited_is_handed_over_by_who_ends_and_keeps_nothing() {
    for memory in [
        llama_batch::core::MemoryKind::Full,
        llama_batch::core::MemoryKind::SlidingWindow(16),
        llama_batch::core::MemoryKind::Hybrid,
    ] {
        let mut sim = Simulation::new(
            SimConfig { memory, ram_bytes: 0, ..config(4, 4096) },
            SchedulerOptions { n_cache_seqs: Some(0), ..options(4) },
        );
        for id in 1..=4 {
            sim.submit(request(id, [tokens(9, 300), tokens(id, 5)].concat(), 1)).expect("it may");
        }
        run_all(&mut sim);
        assert_eq!(sim.stats().n_prefill_tokens, 300 + 4 * 5, "{memory:?}");
    }
}
