//! Drafts by prompt lookup: they save passes where a text repeats itself, cost nothing where it does not, and change no text.

use super::*;
use llama_batch::backend::sim::{Fault, Latency};
use llama_batch::core::{Begin, Compiled, Constraint, MemoryKind, Stats, TokenRules};
use llama_batch::grammar::GrammarSource;
use llama_batch::options::{BatchStrategy, Key, StrategyOption};
use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;

const MS: fn(u64) -> Duration = Duration::from_millis;

/// A machine on which another row costs a tenth of a pass.
fn narrow() -> Latency {
    Latency { fixed: MS(18), per_row: MS(2), ..Latency::default() }
}

/// A model that says the same again and again, or never.
fn speaking(repeat: u32, latency: Latency, n_parallel: u32) -> Simulation {
    let config = SimConfig { repeat, latency, ..config(n_parallel, 16_384) };
    Simulation::new(config, SchedulerOptions { max_queue: 0, ..options(n_parallel) })
}

fn drafting(id: u64, n_draft: u32, max_tokens: u32) -> Request {
    Request { n_draft, ..request(id, tokens(id, 20), max_tokens) }
}

/// What streams said, beside each other from the beginning to the end; how long it took, and the figures.
fn run_streams(mut sim: Simulation, n_streams: u64, n_draft: u32) -> (Seen, Duration, Stats) {
    for id in 1..=n_streams {
        // A llama is four tokens, which come in this order every time.
        let rules = TokenRules { bias: vec![(300, f32::NEG_INFINITY)], ..TokenRules::default() };
        let mut r = drafting(id, n_draft, 256);
        r.sampling.tokens = Some(Arc::new(rules));
        sim.submit(r).expect("room");
    }
    let seen = run_all(&mut sim);
    (seen, sim.now() - llama_batch::core::Time(0), sim.stats())
}

#[test]
fn a_text_that_repeats_itself_takes_fewer_passes_and_less_time_and_is_the_same() {
    for n_streams in [1, 4] {
        let run = |n_draft| run_streams(speaking(960, narrow(), 4), n_streams, n_draft);
        let ((plain, slow, without), (drafted, fast, with)) = (run(0), run(8));
        assert_eq!(plain.text, drafted.text);
        assert_eq!((without.n_draft_tokens, without.n_accepted_tokens), (0, 0));
        assert!(with.n_accepted_tokens * 2 > with.n_draft_tokens, "{with:?}");
        assert!(with.n_ticks * 3 < without.n_ticks * 2, "{} passes, not {}", with.n_ticks, without.n_ticks);
        assert!(fast.mul_f64(1.3) < slow, "{n_streams}: {fast:?}, not {slow:?}");
        for (id, end) in &drafted.ends {
            assert_eq!(end.usage.generated_tokens, 256, "request {id}");
            assert!(end.usage.accepted_tokens > 0 && end.usage.accepted_tokens <= end.usage.draft_tokens);
        }
        let told: u32 = drafted.ends.values().map(|end| end.usage.draft_tokens).sum();
        assert_eq!(u64::from(told), with.n_draft_tokens);
    }
}

#[test]
fn a_text_that_does_not_repeat_itself_takes_no_longer() {
    for n_streams in [1, 4, 16] {
        for latency in [narrow(), Latency::default(), Latency { noise: 30, ..narrow() }] {
            let run = |n_draft| run_streams(speaking(0, latency, 16), n_streams, n_draft);
            let ((plain, slow, _), (drafted, fast, with)) = (run(0), run(8));
            assert_eq!(plain.text, drafted.text);
            assert!(fast <= slow.mul_f64(1.01), "{n_streams} {latency:?}: {fast:?}, not {slow:?}; {with:?}");
        }
    }
}

#[test]
fn where_a_row_costs_what_a_token_does_nothing_is_drafted() {
    let dear = Latency { fixed: MS(1), per_row: MS(10), ..Latency::default() };
    let run = |n_draft| run_streams(speaking(960, dear, 16), 16, n_draft);
    let ((_, slow, _), (_, fast, with)) = (run(0), run(8));
    assert!(with.n_draft_tokens * 100 < with.n_generated_tokens, "{with:?}");
    assert!(fast <= slow.mul_f64(1.01), "{fast:?}, not {slow:?}");
}

#[test]
fn nothing_is_drafted_before_costs_are_known_nor_where_a_tail_cannot_be_cut_nor_beside_a_strategy_of_ones_own() {
    let free = Latency { fixed: Duration::ZERO, per_row: Duration::ZERO, ..Latency::default() };
    assert_eq!(run_streams(speaking(1000, free, 4), 4, 8).2.n_draft_tokens, 0);
    let split = (MemoryKind::Full, false);
    let others =
        [MemoryKind::SlidingWindow(16), MemoryKind::Recurrent, MemoryKind::Hybrid].map(|memory| (memory, true));
    for (memory, kv_unified) in others.into_iter().chain([split]) {
        let config = SimConfig { memory, kv_unified, repeat: 960, ..config(2, 2048) };
        let stats = run_streams(Simulation::new(config, options(2)), 2, 8).2;
        assert_eq!((stats.n_draft_tokens, stats.n_generated_tokens), (0, 512), "{memory:?} {kv_unified}");
    }
    let own = SchedulerOptions { batch_strategy: StrategyOption::Callable(1), ..options(2) };
    let stats = run_streams(Simulation::new(SimConfig { repeat: 960, ..config(2, 2048) }, own), 2, 8).2;
    assert_eq!((stats.n_draft_tokens, stats.n_generated_tokens), (0, 512));
}

#[test]
fn a_stream_waits_no_longer_for_the_drafts_of_another_than_it_may() {
    let worst = |max_itl_ms| {
        let config = SimConfig { repeat: 960, latency: narrow(), ..config(4, 4096) };
        let mut sim = Simulation::new(config, SchedulerOptions { max_itl: MS(max_itl_ms), ..options(4) });
        (1..=4).for_each(|id| sim.submit(drafting(id, 8, 200)).expect("room"));
        let seen = run_all(&mut sim);
        let evals = seen.events.iter().filter_map(|event| match event {
            Event::Tick { eval, prefill_tokens: 0, .. } => Some(*eval),
            _ => None,
        });
        (evals.max().unwrap_or_default(), sim.stats().n_accepted_tokens)
    };
    let ((bound, n_few), (free, n_many)) = (worst(36), worst(0));
    assert!(bound <= MS(36) && free > MS(36), "{bound:?} {free:?}");
    assert!(0 < n_few && n_few < n_many, "{n_few} {n_many}");
    assert_eq!(worst(20).1, 0, "a pass without drafts takes 26 ms");
}

#[test]
fn a_pass_counts_its_rows_by_what_they_are_and_tokens_of_one_pass_come_at_once() {
    let (seen, took, stats) = run_streams(speaking(960, narrow(), 1), 1, 8);
    let (mut n_draft, mut wait) = (0, Duration::ZERO);
    for event in &seen.events {
        match event {
            Event::Tick { batch_size, decode_tokens, draft_tokens, prefill_tokens, .. } => {
                assert_eq!(*batch_size, decode_tokens + draft_tokens + prefill_tokens);
                assert!(*draft_tokens <= 8 && *decode_tokens <= 1);
                n_draft += u64::from(*draft_tokens);
            }
            Event::Token { wait: next, .. } => wait += *next,
            _ => {}
        }
    }
    assert_eq!((n_draft, wait), (stats.n_draft_tokens, took));
}

#[test]
fn where_the_backend_has_no_room_a_pass_goes_without_drafts_before_anybody_loses_anything() {
    let mut sim = speaking(960, narrow(), 1);
    sim.submit(request(1, tokens(9, 40), 1)).expect("room");
    run_all(&mut sim);
    sim.submit(drafting(2, 8, 200)).expect("room");
    let mut seen = Seen::default();
    while sim.stats().n_accepted_tokens == 0 {
        assert!(sim.step());
    }
    sim.inject(Fault::KvFull);
    run_on(&mut sim, &mut seen);
    assert_eq!(seen.text[&2], repeating_alone(&drafting(2, 0, 200)));
    assert_eq!(sim.stats().n_evicted, 0);
}

/// The text of a request that runs alone, and drafts nothing.
fn repeating_alone(r: &Request) -> String {
    let mut sim = Simulation::new(SimConfig { repeat: 960, ..config(1, 8192) }, options(1));
    sim.submit(Request { n_draft: 0, ..r.clone() }).expect("it fits");
    run_all(&mut sim).text.remove(&r.id.0).unwrap_or_default()
}

#[test]
fn the_next_turn_finds_what_it_would_have_found_without_drafts() {
    // How the answer ends, with drafts behind it that nobody needs.
    let ends = |id: u64, n_draft: u32| {
        let stop = StopRules { strings: [" w3".to_string()].into(), ..StopRules::default() };
        let late = SamplingParams { min_tokens: 150, ..request(id, vec![1], 1).sampling };
        let r = drafting(id, n_draft, 211);
        [r.clone(), Request { stop, sampling: late, ..r }]
    };
    for which in 0..2 {
        let run = |n_draft: u32| {
            let mut sim = speaking(960, narrow(), 1);
            let first = &ends(1, n_draft)[which];
            sim.submit(first.clone()).expect("room");
            let mut seen = run_all(&mut sim);
            let said = seen
                .events
                .iter()
                .filter_map(|e| if let Event::Chunk { tokens, .. } = e { Some(tokens) } else { None });
            let history = [first.prompt.to_vec(), said.flatten().copied().collect(), vec![7, 8, 9]].concat();
            let n_cells = sim.stats().kv_cells_used;
            sim.submit(Request { n_draft, ..request(2, history, 50) }).expect("room");
            run_on(&mut sim, &mut seen);
            (seen.text, n_cells, seen.ends[&2].usage.prefix_cache_tokens, sim.stats().n_accepted_tokens > 0)
        };
        let (plain, drafted) = (run(0), run(8));
        assert_eq!((plain.0, plain.1, plain.2), (drafted.0, drafted.1, drafted.2));
        assert!(drafted.3 && !plain.3);
    }
}

/// What a request may ask for that several tokens at once must not break.
fn asked() -> impl Strategy<Value = Request> {
    let ends = (1u32..120, 0u32..40, prop::bool::weighted(0.3), prop::bool::weighted(0.3), any::<bool>());
    let grammar = prop::option::weighted(0.3, prop::sample::select(vec!["( w[0-9]{3})+", "( w[0-9]{3}){9,23}"]));
    (ends, grammar, 1u32..40, 0u64..3, prop::option::weighted(0.3, 0u32..3), any::<bool>()).prop_map(
        |((max_tokens, min_tokens, strings, stops, include), grammar, n_prompt, session, drawn, repeats)| {
            let mut r = request(1, tokens(session, n_prompt), max_tokens);
            if repeats {
                r.prompt = [&r.prompt[..], &[310, 320, 330, 340], &r.prompt[..]].concat().into();
            }
            r.stop = StopRules {
                strings: if strings { ["3 w4".to_string(), "77".to_string()].into() } else { Arc::default() },
                include,
                tokens: if stops { [333, 404].into() } else { Arc::default() },
            };
            r.session = Some(Key(format!("session {session}")));
            r.sampling.min_tokens = min_tokens;
            r.sampling.telling.drawn = drawn;
            let constraint = |regex: &str| Constraint {
                source: GrammarSource::Regex(regex.into()),
                begin: Begin::default(),
                compiled: Compiled::default(),
            };
            r.sampling.constraint = grammar.map(|regex| Arc::new(constraint(regex)));
            r
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Whoever comes when, and however short cells are: with drafts each says what it says without, and ends as it does.
    #[test]
    fn with_drafts_every_request_says_and_ends_the_same(
        arrivals in prop::collection::vec((asked(), 0u32..30, 0u32..12), 1..9),
        (n_parallel, n_ctx, n_batch) in (1u32..5, 200u32..600, 2u32..40),
        (repeat, eog_every, ram) in (prop::sample::select(vec![500, 900, 980]), prop::sample::select(vec![0, 40]), any::<bool>()),
        strategy in prop::sample::select(vec![BatchStrategy::DecodeMaximal, BatchStrategy::Balanced]),
    ) {
        let run = |drafts: bool| {
            let ram_bytes = if ram { 1 << 20 } else { 0 };
            let config = SimConfig { repeat, eog_every, n_batch, ram_bytes, ..config(n_parallel, n_ctx) };
            let batch_strategy = StrategyOption::Builtin(strategy);
            let mut sim = Simulation::new(config, SchedulerOptions { n_batch, batch_strategy, ..options(n_parallel) });
            let mut seen = Seen::default();
            for (id, (asked, n_steps, n_draft)) in (1..).zip(&arrivals) {
                let n_draft = if drafts { *n_draft } else { 0 };
                sim.submit(Request { id: RequestId(id), n_draft, ..asked.clone() }).expect("it fits");
                for _ in 0..*n_steps {
                    sim.step();
                    sim.check();
                }
                seen.take(&mut sim);
            }
            run_on(&mut sim, &mut seen);
            let ends: Vec<_> = seen.ends.values().map(|end| {
                (end.end.clone(), end.stopped_by.clone(), end.usage.prompt_tokens, end.usage.generated_tokens)
            }).collect();
            (seen.text, ends, seen.n_told)
        };
        prop_assert_eq!(run(true), run(false));
    }
}
