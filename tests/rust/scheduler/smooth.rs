//! Smooth streams: prompts of others do not hold them up, and who reads a prompt is not held up for long by that.

use super::*;
use llama_batch::backend::Backend;
use llama_batch::backend::sim::{Latency, SimBackend};
use llama_batch::core::{Grant, Outcome, Scheduler, Time, Work};
use llama_batch::options::StrategyOption;
use proptest::prelude::*;
use std::time::Duration;

const LONG: u64 = 99;

const fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

/// A small model on a few cores.
const CPU: Latency =
    Latency { fixed: us(4000), per_row: us(2000), per_decode_row: us(500), per_context: us(800), noise: 30 };
/// A large one on the same.
const SLOW_CPU: Latency =
    Latency { fixed: us(200_000), per_row: us(64_000), per_decode_row: us(6000), per_context: us(4000), noise: 30 };
/// A large one on an accelerator.
const GPU: Latency =
    Latency { fixed: us(8000), per_row: us(100), per_decode_row: us(60), per_context: us(2), noise: 30 };

fn paced(latency: Latency, max_itl_ms: u64) -> Simulation {
    let config = SimConfig { latency, ..config(8, 16_384) };
    Simulation::new(config, SchedulerOptions { max_itl: Duration::from_millis(max_itl_ms), ..options(8) })
}

/// Four streams, each with so many tokens at least.
fn with_streams(latency: Latency, max_itl_ms: u64, n_prompt: u32, n_tokens: u64) -> Simulation {
    let mut sim = paced(latency, max_itl_ms);
    for id in 1..=4 {
        sim.submit(request(id, tokens(id, n_prompt), 3000)).expect("room");
    }
    while sim.stats().n_generated_tokens < 4 * n_tokens {
        sim.step();
    }
    sim.events();
    sim
}

fn steps(sim: &mut Simulation, n: u32) {
    for _ in 0..n {
        sim.step();
    }
}

/// What happened until a request had its first token.
#[derive(Debug)]
struct Arrival {
    /// How long that took.
    ttft: Duration,
    /// Of the streams meanwhile, in order.
    gaps: Vec<Duration>,
    /// Decode and prompt rows of the passes meanwhile.
    passes: Vec<(u32, u32)>,
}

impl Arrival {
    fn worst(&self) -> Duration {
        *self.gaps.iter().max().expect("streams go on")
    }
}

fn until_first_token(sim: &mut Simulation, id: u64) -> Arrival {
    let mut arrival = Arrival { ttft: Duration::ZERO, gaps: Vec::new(), passes: Vec::new() };
    for _ in 0..20_000 {
        sim.step();
        for event in sim.events() {
            match event {
                Event::Token { request, is_first: true, wait } if request.0 == id => arrival.ttft = wait,
                Event::Token { request, is_first: false, wait } if request.0 <= 4 => arrival.gaps.push(wait),
                Event::Tick { decode_tokens, prefill_tokens, .. } => {
                    arrival.passes.push((decode_tokens, prefill_tokens));
                }
                _ => {}
            }
        }
        if !arrival.ttft.is_zero() {
            return arrival;
        }
    }
    panic!("it never had a token");
}

fn long(n: u32) -> Request {
    request(LONG, tokens(LONG, n), 5)
}

/// What a gap may be: the bound, or three of what passes take that only decode.
fn allowed(latency: &Latency, max_itl_ms: u64) -> Duration {
    let median = latency.fixed + (latency.per_row + latency.per_decode_row) * 4;
    Duration::from_millis(max_itl_ms).max(median * 3)
}

#[test]
fn a_long_prompt_holds_streams_up_by_no_more_than_the_bound_on_any_machine_warm_or_cold() {
    for (latency, max_itl_ms) in [(CPU, 200), (CPU, 60), (SLOW_CPU, 200), (GPU, 200), (GPU, 20)] {
        for noise in [0, 30] {
            let latency = Latency { noise, ..latency };
            for (n_prompt, n_tokens) in [(200, 100), (3, 1)] {
                let mut sim = with_streams(latency, max_itl_ms, n_prompt, n_tokens);
                sim.submit(long(4000)).expect("room");
                let arrival = until_first_token(&mut sim, LONG);
                let (worst, most) = (arrival.worst(), allowed(&latency, max_itl_ms));
                assert!(worst <= most, "{worst:?} > {most:?}: {latency:?}, {n_tokens} tokens; {:?}", arrival.passes);
            }
        }
    }
}

#[test]
fn without_a_bound_chunks_are_whole_and_with_it_the_prompt_loses_little() {
    let arrive = |max_itl_ms| {
        let mut sim = with_streams(CPU, max_itl_ms, 100, 50);
        sim.submit(long(1500)).expect("room");
        until_first_token(&mut sim, LONG)
    };
    let (unbound, bound) = (arrive(0), arrive(200));
    let chunks: Vec<u32> = unbound.passes.iter().map(|(_, prefill)| *prefill).filter(|n| *n > 0).collect();
    assert_eq!(chunks, [508, 508, 484]);
    assert!(unbound.worst() > Duration::from_secs(1));
    assert!(bound.ttft.as_secs_f64() <= 1.1 * unbound.ttft.as_secs_f64(), "{:?}, {:?}", bound.ttft, unbound.ttft);
}

#[test]
fn a_short_prompt_behind_a_long_one_has_its_first_token_in_a_few_passes() {
    for n_streams in [0, 4] {
        let mut sim = paced(CPU, 200);
        for id in 1..=n_streams {
            sim.submit(request(id, tokens(id, 100), 3000)).expect("room");
        }
        steps(&mut sim, 200);
        sim.submit(long(4000)).expect("room");
        steps(&mut sim, 3);
        sim.submit(request(200, tokens(200, 60), 5)).expect("room");
        sim.events();
        let arrival = until_first_token(&mut sim, 200);
        assert!(arrival.passes.len() <= 4, "{:?}", arrival.passes);
        assert_eq!(sim.stats().prefilling_slots, 1, "the long one is still being read");
    }
}

#[test]
fn another_speed_of_the_machine_is_followed_within_some_passes() {
    let mut sim = with_streams(CPU, 200, 100, 100);
    sim.submit(long(6000)).expect("room");
    steps(&mut sim, 20);
    let slower = Latency {
        fixed: CPU.fixed * 3,
        per_row: CPU.per_row * 3,
        per_decode_row: CPU.per_decode_row * 3,
        per_context: CPU.per_context * 3,
        ..CPU
    };
    sim.set_latency(slower);
    steps(&mut sim, 8);
    sim.events();
    let arrival = until_first_token(&mut sim, LONG);
    assert!(arrival.worst() <= allowed(&slower, 200), "{:?}: {:?}", arrival.worst(), arrival.passes);
    assert!(arrival.passes.len() > 100, "it was still being read");
}

#[test]
fn what_streams_wait_for_between_passes_counts() {
    let rows_after = |pause_ms| {
        let mut sim = with_streams(Latency { noise: 0, ..CPU }, 200, 100, 100);
        sim.submit(long(4000)).expect("room");
        steps(&mut sim, 10);
        sim.events();
        sim.advance(Duration::from_millis(pause_ms));
        sim.step();
        let ticks = sim.events().into_iter();
        ticks.filter_map(|e| if let Event::Tick { prefill_tokens, .. } = e { Some(prefill_tokens) } else { None }).sum()
    };
    let [at_once, later, too_late]: [u32; 3] = [0, 100, 1000].map(rows_after);
    assert!(later < at_once * 2 / 3, "{later} rows after 100 ms, {at_once} at once");
    assert!((1..=later).contains(&too_late), "{too_late} rows where the bound is broken already");
}

#[test]
fn costs_are_told_and_so_is_what_a_pass_was_forecast_to_take() {
    let mut sim = paced(Latency { noise: 0, ..CPU }, 200);
    for id in 1..=4 {
        sim.submit(request(id, tokens(id, 100 * id as u32), 30 * id as u32)).expect("room");
    }
    let seen = run_all(&mut sim);
    let ticks: Vec<(Option<Duration>, Duration)> = seen
        .events
        .iter()
        .filter_map(|e| if let Event::Tick { forecast, eval, .. } = e { Some((*forecast, *eval)) } else { None })
        .collect();
    assert_eq!(ticks[0].0, None, "nothing is known of the first");
    let (told, took) = ticks[ticks.len() - 1];
    let told = told.expect("known").as_secs_f64();
    assert!((told - took.as_secs_f64()).abs() < 0.1 * took.as_secs_f64(), "{told} s, {took:?}");
    let stats = sim.stats();
    assert!(stats.decode_row_cost_ns > 0 && stats.prefill_row_cost_ns > 0, "{stats:?}");
    assert!((1_500_000..2_500_000).contains(&stats.prefill_row_cost_ns), "{stats:?}");
}

#[test]
fn a_strategy_of_the_callers_own_is_done_as_it_says() {
    let mut backend = SimBackend::new(SimConfig { latency: CPU, ..config(2, 8192) });
    let custom = SchedulerOptions {
        max_itl: Duration::from_millis(1),
        batch_strategy: StrategyOption::Callable(1),
        ..options(2)
    };
    let mut scheduler = Scheduler::new(custom, backend.limits());
    scheduler.submit(Time(0), request(1, tokens(1, 3), 500)).expect("room");
    let (mut now, mut most) = (Time(0), 0);
    for turn in 0..60 {
        if turn == 30 {
            scheduler.submit(now, request(2, tokens(2, 3000), 5)).expect("room");
        }
        let Some(work) = scheduler.plan(now) else { break };
        let outcome = match &work {
            Work::Strategy(view) => {
                let rows = view.requests.iter();
                let n_rows = |n_remaining: u32| n_remaining.min(400);
                Outcome::Strategy(Ok(rows
                    .map(|row| Grant { request: row.request, n_rows: n_rows(row.n_remaining) })
                    .collect()))
            }
            Work::Decode(rows) => {
                most = most.max(rows.len());
                let outcome = backend.decode(rows);
                now = now + outcome.eval;
                Outcome::Decode(outcome)
            }
            Work::Prepare(ops) => Outcome::Prepare(backend.prepare(ops)),
            Work::Embed(parts) => Outcome::Embed(backend.embed(parts)),
        };
        scheduler.apply(now, work, outcome);
    }
    assert_eq!(most, 401);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn texts_are_the_same_under_any_bound_and_nobody_starves(
        lens in prop::collection::vec((1u32..900, 0i32..3, 1u32..40), 1..16),
        max_itl_ms in prop::sample::select(vec![1, 30, 100, 200, 1000]),
    ) {
        let texts = |max_itl_ms| {
            let mut sim = paced(CPU, max_itl_ms);
            for (id, (n, priority, max_tokens)) in (1..).zip(&lens) {
                sim.submit(Request { priority: *priority, ..request(id, tokens(id, *n), *max_tokens) }).expect("room");
            }
            let seen = run_all(&mut sim);
            assert!((1..=lens.len() as u64).all(|id| seen.end(id) == &Ok(FinishReason::MaxTokens)));
            seen.text
        };
        prop_assert_eq!(texts(max_itl_ms), texts(0));
    }
}
