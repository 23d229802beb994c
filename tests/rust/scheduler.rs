//! The scheduler over the simulated backend: named promises, and seeded swarms that hold every invariant after every
//! step.

use llama_batch::backend::sim::{Fault, FaultRates, SimConfig};
use llama_batch::core::{
    Event, FinishReason, Finished, MemoryKind, Mode, PrefixSource, Request, RequestId, SamplingParams,
    SchedulerOptions, Token,
};
use llama_batch::error::{Error, TimeoutKind};
use llama_batch::options::{BatchStrategy, Key, StartOptions, StrategyOption};
use llama_batch::sim::Simulation;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;

fn options(n_parallel: u32) -> SchedulerOptions {
    SchedulerOptions { n_parallel, ..SchedulerOptions::from(&StartOptions::default()) }
}

fn config(n_parallel: u32, n_ctx: u32) -> SimConfig {
    SimConfig { n_parallel, n_ctx, ..SimConfig::default() }
}

fn request(id: u64, prompt: Vec<Token>, max_tokens: u32) -> Request {
    Request {
        id: RequestId(id),
        prompt: prompt.into(),
        max_tokens,
        mode: Mode::Generate,
        sampling: SamplingParams {
            temp: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            penalty_repeat: 1.0,
            penalty_freq: 0.0,
            penalty_present: 0.0,
            penalty_last_n: 64,
            seed: 7,
        },
        cache_prompt: true,
        session: None,
        scope: None,
        timeout: None,
        queue_timeout: None,
        stall_timeout: None,
    }
}

fn prompt(n: u32) -> Vec<Token> {
    (0..n).map(|i| (65 + i % 26) as Token).collect()
}

/// What callers saw: the text of each request, and its one end.
#[derive(Default, Debug)]
struct Seen {
    text: BTreeMap<u64, String>,
    n_tokens: BTreeMap<u64, u32>,
    ends: BTreeMap<u64, Finished>,
    events: Vec<Event>,
}

impl Seen {
    fn take(&mut self, sim: &mut Simulation) {
        for event in sim.events() {
            match &event {
                Event::Chunk { request, text, tokens } => {
                    assert!(!self.ends.contains_key(&request.0), "no token after the end of request {request}");
                    self.text.entry(request.0).or_default().push_str(text);
                    *self.n_tokens.entry(request.0).or_default() += tokens.len() as u32;
                }
                Event::Finished(finished) => {
                    let n = self.n_tokens.get(&finished.request.0).copied().unwrap_or_default();
                    assert_eq!(n, finished.usage.generated_tokens, "every counted token was delivered");
                    let twice = self.ends.insert(finished.request.0, (**finished).clone());
                    assert!(twice.is_none(), "request {} ends once", finished.request);
                }
                _ => {}
            }
            self.events.push(event);
        }
    }

    fn end(&self, id: u64) -> &Result<FinishReason, Error> {
        &self.ends[&id].end
    }
}

fn run_all(sim: &mut Simulation) -> Seen {
    let mut seen = Seen::default();
    for _ in 0..100_000 {
        let more = sim.step();
        sim.check();
        seen.take(sim);
        if !more {
            return seen;
        }
    }
    panic!("100,000 steps were not enough");
}

/// The text of a request that runs alone on an empty backend.
fn alone(request: &Request) -> String {
    let mut sim = Simulation::new(config(1, 8192), options(1));
    sim.submit(request.clone()).expect("it fits");
    run_all(&mut sim).text.remove(&request.id.0).unwrap_or_default()
}

#[test]
fn many_requests_share_passes_and_each_gets_the_text_that_it_gets_alone() {
    let mut sim = Simulation::new(config(4, 8192), options(4));
    let requests: Vec<Request> = (1..=12).map(|id| request(id, prompt(id as u32 * 7), 20)).collect();
    for r in &requests {
        sim.submit(r.clone()).expect("there is room");
    }
    let seen = run_all(&mut sim);
    for r in &requests {
        assert_eq!(seen.end(r.id.0), &Ok(FinishReason::MaxTokens));
        assert_eq!(seen.text[&r.id.0], alone(r));
    }
    let most = seen
        .events
        .iter()
        .filter_map(|e| if let Event::Tick { decode_tokens, .. } = e { Some(*decode_tokens) } else { None });
    assert_eq!(most.max(), Some(4), "four requests decode in one pass");
}

#[test]
fn a_prompt_is_read_in_chunks_beside_running_decodes() {
    let mut sim = Simulation::new(config(2, 8192), SchedulerOptions { chunk_size: 100, ..options(2) });
    sim.submit(request(1, prompt(5), 50)).expect("room");
    for _ in 0..5 {
        sim.step();
    }
    sim.submit(request(2, prompt(350), 5)).expect("room");
    let seen = run_all(&mut sim);
    let mixed: Vec<(u32, u32)> = seen
        .events
        .iter()
        .filter_map(|e| {
            if let Event::Tick { decode_tokens, prefill_tokens, .. } = e {
                Some((*decode_tokens, *prefill_tokens))
            } else {
                None
            }
        })
        .filter(|(_, prefill)| *prefill > 1)
        .collect();
    assert_eq!(mixed, [(0, 5), (1, 100), (1, 100), (1, 100), (1, 50)]);
}

#[test]
fn a_finished_prefix_is_forked_by_the_next_turn_and_the_text_is_the_same() {
    let mut sim = Simulation::new(config(2, 8192), options(2));
    let first = request(1, prompt(100), 10);
    sim.submit(first).expect("room");
    run_all(&mut sim);
    let mut longer = prompt(100);
    longer.extend(prompt(30));
    let second = request(2, longer, 10);
    sim.submit(second.clone()).expect("room");
    let seen = run_all(&mut sim);
    assert_eq!(seen.ends[&2].usage.prefix_cache_tokens, 100);
    assert_eq!(seen.ends[&2].prefix_source, PrefixSource::Donor);
    assert_eq!(seen.text[&2], alone(&second));
}

#[test]
fn the_last_token_of_a_prompt_is_always_computed() {
    let mut sim = Simulation::new(config(2, 8192), options(2));
    for id in 1..=2 {
        sim.submit(request(id, prompt(100), 4)).expect("room");
        let seen = run_all(&mut sim);
        assert_eq!(seen.ends[&id].usage.prefix_cache_tokens, if id == 1 { 0 } else { 99 });
    }
}

#[test]
fn another_scope_never_sees_the_prefix_and_the_same_scope_does() {
    let mut sim = Simulation::new(config(2, 8192), options(2));
    let scoped =
        |id: u64, scope: Option<&str>| Request { scope: scope.map(|s| Key(s.into())), ..request(id, prompt(80), 3) };
    let mut cached = Vec::new();
    for (id, scope) in [(1, Some("a")), (2, Some("b")), (3, None), (4, Some("a")), (5, None)] {
        sim.submit(scoped(id, scope)).expect("room");
        cached.push(run_all(&mut sim).ends[&id].usage.prefix_cache_tokens);
    }
    assert_eq!(cached, [0, 0, 0, 79, 79]);
}

#[test]
fn opting_out_neither_reuses_nor_keeps() {
    let mut sim = Simulation::new(config(2, 8192), options(2));
    sim.submit(Request { cache_prompt: false, ..request(1, prompt(80), 3) }).expect("room");
    run_all(&mut sim);
    assert_eq!((sim.stats().cached_sequences, sim.stats().kv_cells_used), (0, 0));
    sim.submit(request(2, prompt(80), 3)).expect("room");
    run_all(&mut sim);
    sim.submit(Request { cache_prompt: false, ..request(3, prompt(80), 3) }).expect("room");
    assert_eq!(run_all(&mut sim).ends[&3].usage.prefix_cache_tokens, 0);
}

#[test]
fn twice_as_many_tokens_as_cells_all_complete_with_their_own_text() {
    let mut sim = Simulation::new(config(4, 256), options(4));
    let requests: Vec<Request> = (1..=8).map(|id| request(id, prompt(40 + id as u32), 100)).collect();
    for r in &requests {
        sim.submit(r.clone()).expect("room in the queue");
    }
    let seen = run_all(&mut sim);
    for r in &requests {
        assert_eq!(seen.end(r.id.0), &Ok(FinishReason::MaxTokens));
        assert_eq!(seen.text[&r.id.0], alone(r));
    }
    assert!(seen.events.iter().any(|e| matches!(e, Event::Parked { .. })), "the run was tight enough to park");
    assert!(seen.events.iter().any(|e| matches!(e, Event::Resumed { .. })));
}

#[test]
fn the_oldest_is_never_parked() {
    let mut sim = Simulation::new(config(4, 200), options(4));
    for id in 1..=6 {
        sim.submit(request(id, prompt(30), 120)).expect("room");
    }
    let seen = run_all(&mut sim);
    let parked: Vec<u64> = seen
        .events
        .iter()
        .filter_map(|e| if let Event::Parked { request, .. } = e { Some(request.0) } else { None })
        .collect();
    assert!(!parked.is_empty() && !parked.contains(&1), "{parked:?}");
}

#[test]
fn a_request_that_fills_its_context_alone_ends_with_all_its_text() {
    let mut sim = Simulation::new(config(2, 64), options(2));
    sim.submit(request(1, prompt(20), 500)).expect("room");
    let seen = run_all(&mut sim);
    assert_eq!(seen.end(1), &Ok(FinishReason::ContextFull));
    assert_eq!(seen.ends[&1].usage.generated_tokens, 64 - 20 + 1, "the last token needs no cell");
}

#[test]
fn a_prompt_that_can_never_fit_is_refused_with_both_numbers() {
    let mut sim = Simulation::new(config(2, 64), options(2));
    let refused = sim.submit(request(1, prompt(64), 5));
    assert_eq!(refused, Err(Error::ContextFull { n_prompt_tokens: 64, n_ctx: 64 }));
    assert_eq!(sim.submit(request(2, vec![], 5)), Err(Error::EmptyPrompt));
    assert!(matches!(sim.submit(request(3, vec![1, 512], 5)), Err(Error::Prompt(_))));
    assert!(matches!(sim.submit(request(4, vec![-1], 5)), Err(Error::Prompt(_))));
    sim.submit(request(5, prompt(63), 5)).expect("one cell is left for the answer");
    assert_eq!(run_all(&mut sim).ends.len(), 1);
}

#[test]
fn the_queue_has_a_bound_and_queued_work_completes() {
    let mut sim = Simulation::new(config(1, 512), SchedulerOptions { max_queue: 1, ..options(1) });
    sim.submit(request(1, prompt(5), 3)).expect("the slot");
    sim.submit(request(2, prompt(5), 3)).expect("the queue");
    assert_eq!(sim.submit(request(3, prompt(5), 3)), Err(Error::QueueFull { max_queue: 1 }));
    assert_eq!(run_all(&mut sim).ends.len(), 2);
}

#[test]
fn no_tokens_asked_for_reads_the_prompt_and_ends() {
    let mut sim = Simulation::new(config(1, 512), options(1));
    sim.submit(request(1, prompt(50), 0)).expect("room");
    let seen = run_all(&mut sim);
    assert_eq!(seen.end(1), &Ok(FinishReason::MaxTokens));
    assert_eq!(seen.ends[&1].usage.generated_tokens, 0);
    sim.submit(request(2, prompt(50), 2)).expect("room");
    assert_eq!(run_all(&mut sim).ends[&2].usage.prefix_cache_tokens, 49, "it warmed the cache");
}

#[test]
fn time_outs_end_requests_in_the_queue_and_in_slots_with_the_option_that_set_them() {
    let mut sim = Simulation::new(config(1, 512), options(1));
    sim.submit(Request { timeout: Some(Duration::from_millis(100)), ..request(1, prompt(5), 400) }).expect("room");
    sim.submit(Request { queue_timeout: Some(Duration::from_millis(50)), ..request(2, prompt(5), 4) }).expect("room");
    sim.submit(request(3, prompt(5), 4)).expect("room");
    let seen = run_all(&mut sim);
    let kind = |id: u64| if let Err(Error::RequestTimeout { kind, .. }) = seen.end(id) { Some(*kind) } else { None };
    assert_eq!((kind(1), kind(2), kind(3)), (Some(TimeoutKind::Total), Some(TimeoutKind::Queue), None));
    assert!(seen.ends[&1].usage.generated_tokens > 0, "what was generated is kept");
}

#[test]
fn a_request_stalls_only_while_it_holds_a_slot_and_makes_no_progress() {
    let mut sim = Simulation::new(config(1, 512), options(1));
    sim.submit(Request { stall_timeout: Some(Duration::from_millis(100)), ..request(1, prompt(5), 40) }).expect("room");
    sim.advance(Duration::from_secs(10));
    sim.step();
    sim.step();
    assert!(sim.begin());
    sim.advance(Duration::from_secs(10));
    let seen = run_all(&mut sim);
    assert!(matches!(seen.end(1), Err(Error::RequestTimeout { kind: TimeoutKind::Stall, .. })));
}

#[test]
fn a_cancelled_request_ends_wherever_it_is() {
    let mut sim = Simulation::new(config(1, 512), options(1));
    for id in 1..=3 {
        sim.submit(request(id, prompt(5), 40)).expect("room");
    }
    sim.cancel(RequestId(2));
    for _ in 0..6 {
        sim.step();
    }
    assert!(sim.begin());
    sim.cancel(RequestId(1));
    sim.cancel(RequestId(1));
    sim.cancel(RequestId(99));
    let seen = run_all(&mut sim);
    assert_eq!(seen.end(1), &Ok(FinishReason::Cancelled));
    assert_eq!(seen.end(2), &Ok(FinishReason::Cancelled));
    assert_eq!(seen.ends[&2].seq, None, "it never had a sequence");
    assert_eq!(seen.end(3), &Ok(FinishReason::MaxTokens));
}

#[test]
fn every_code_of_a_failed_pass_is_survived_once_and_the_text_is_the_same() {
    for code in [2, -1, -2, -3] {
        for memory in [MemoryKind::Full, MemoryKind::Recurrent, MemoryKind::SlidingWindow(32)] {
            let mut sim = Simulation::new(SimConfig { memory, ..config(2, 512) }, options(2));
            let requests = [request(1, prompt(40), 30), request(2, prompt(9), 30)];
            for r in &requests {
                sim.submit(r.clone()).expect("room");
            }
            for _ in 0..10 {
                sim.step();
            }
            sim.inject(Fault::Fail(code));
            let seen = run_all(&mut sim);
            for r in &requests {
                assert_eq!(seen.end(r.id.0), &Ok(FinishReason::MaxTokens), "code {code}, {memory:?}");
                assert_eq!(seen.text.get(&r.id.0).is_some_and(|t| alone(r).ends_with(t.as_str())), true);
            }
        }
    }
}

#[test]
fn two_failures_in_a_row_fail_those_in_the_pass_and_nobody_else() {
    let mut sim = Simulation::new(config(1, 512), options(1));
    sim.submit(request(1, prompt(10), 30)).expect("room");
    sim.submit(request(2, prompt(10), 30)).expect("room");
    sim.inject(Fault::Fail(-3));
    sim.inject(Fault::Fail(-3));
    let seen = run_all(&mut sim);
    assert!(matches!(seen.end(1), Err(Error::Inference(_))));
    assert_eq!(seen.end(2), &Ok(FinishReason::MaxTokens));
}

#[test]
fn refusals_and_failed_samplers_hurt_only_their_own_request() {
    for fault in [Fault::RefuseCopy, Fault::RefuseOpen, Fault::FailDraw, Fault::KvFull] {
        let mut sim = Simulation::new(config(2, 512), options(2));
        sim.submit(request(1, prompt(60), 5)).expect("room");
        run_all(&mut sim);
        sim.inject(fault);
        let second = request(2, prompt(70), 10);
        let third = request(3, prompt(80), 10);
        sim.submit(second.clone()).expect("room");
        sim.submit(third.clone()).expect("room");
        let seen = run_all(&mut sim);
        let n_failed = seen.ends.values().filter(|end| end.end.is_err()).count();
        let hits_one = matches!(fault, Fault::RefuseOpen | Fault::FailDraw);
        assert_eq!(n_failed, usize::from(hits_one), "{fault:?}");
        for r in [second, third] {
            if seen.end(r.id.0).is_ok() {
                assert_eq!(seen.text[&r.id.0], alone(&r));
            }
        }
    }
}

#[test]
fn rewritten_turns_of_a_session_are_told_and_a_shared_system_prompt_is_not() {
    let mut sim = Simulation::new(config(2, 8192), options(2));
    let in_session = |id: u64, session: &str, tokens: Vec<Token>| Request {
        session: Some(Key(session.into())),
        ..request(id, tokens, 3)
    };
    let with_tail = |byte: Token| [prompt(30), vec![byte; 70]].concat();
    sim.submit(in_session(1, "a", with_tail(40))).expect("room");
    sim.submit(in_session(2, "b", with_tail(41))).expect("room");
    let seen = run_all(&mut sim);
    assert!(!seen.events.iter().any(|e| matches!(e, Event::PrefixInstability { .. })));
    sim.submit(in_session(3, "a", with_tail(42))).expect("room");
    let seen = run_all(&mut sim);
    assert!(seen.events.iter().any(|e| matches!(e, Event::PrefixInstability { matched_tokens: 30, .. })));
}

/// One thing that happens in a swarm.
#[derive(Clone, Debug)]
enum Happening {
    Submit { len: u32, shared: u32, max_tokens: u32, scope: u8, cache: bool, timeout_ms: Option<u64> },
    Cancel(u8),
    Begin,
    Step,
    Advance(u64),
    Fault(Fault),
}

fn happening() -> impl Strategy<Value = Happening> {
    let submit = (1u32..90, 0u32..60, 0u32..40, 0u8..3, any::<bool>(), prop::option::weighted(0.1, 1u64..400))
        .prop_map(|(len, shared, max_tokens, scope, cache, timeout_ms)| Happening::Submit {
            len,
            shared,
            max_tokens,
            scope,
            cache,
            timeout_ms,
        });
    let fault = prop::sample::select(vec![
        Fault::KvFull,
        Fault::Fail(2),
        Fault::Fail(-1),
        Fault::Fail(-2),
        Fault::Fail(-3),
        Fault::RefuseCopy,
        Fault::RefuseTrim,
        Fault::RefuseOpen,
        Fault::FailDraw,
    ]);
    prop_oneof![
        4 => submit,
        1 => any::<u8>().prop_map(Happening::Cancel),
        2 => Just(Happening::Begin),
        12 => Just(Happening::Step),
        1 => (1u64..50).prop_map(Happening::Advance),
        1 => fault.prop_map(Happening::Fault),
    ]
}

fn world() -> impl Strategy<Value = (SimConfig, SchedulerOptions)> {
    let memory = prop::sample::select(vec![MemoryKind::Full, MemoryKind::Recurrent, MemoryKind::SlidingWindow(16)]);
    let strategy = prop::sample::select(vec![
        BatchStrategy::DecodeMaximal,
        BatchStrategy::PrefillPriority,
        BatchStrategy::Balanced,
    ]);
    (
        memory,
        any::<bool>(),
        1u32..5,
        64u32..300,
        1u32..64,
        1u32..40,
        strategy,
        prop::option::of(0u32..4),
        any::<u64>(),
        any::<bool>(),
    )
        .prop_map(
            |(memory, kv_unified, n_parallel, n_ctx, n_batch, chunk_size, strategy, n_cache_seqs, seed, eog)| {
                let n_ctx = if kv_unified { n_ctx } else { n_ctx * n_parallel };
                let config = SimConfig {
                    memory,
                    kv_unified,
                    n_parallel,
                    n_ctx,
                    n_batch,
                    seed,
                    eog_every: if eog { 20 } else { 0 },
                    ..SimConfig::default()
                };
                let options = SchedulerOptions {
                    n_parallel,
                    n_batch,
                    chunk_size,
                    max_queue: 8,
                    n_cache_seqs,
                    batch_strategy: StrategyOption::Builtin(strategy),
                };
                (config, options)
            },
        )
}

fn swarm(config: &SimConfig, options: &SchedulerOptions, happenings: &[Happening]) {
    let mut sim = Simulation::new(config.clone(), options.clone());
    let mut seen = Seen::default();
    let mut requests: BTreeMap<u64, Request> = BTreeMap::new();
    let mut next = 1;
    for happening in happenings {
        match happening {
            Happening::Submit { len, shared, max_tokens, scope, cache, timeout_ms } => {
                let tokens =
                    [prompt(*shared), (0..*len).map(|i| ((next * 31 + u64::from(i)) % 250) as Token).collect()]
                        .concat();
                let r = Request {
                    scope: (*scope > 0).then(|| Key(scope.to_string())),
                    cache_prompt: *cache,
                    timeout: timeout_ms.map(Duration::from_millis),
                    ..request(next, tokens, *max_tokens)
                };
                if sim.submit(r.clone()).is_ok() {
                    requests.insert(next, r);
                }
                next += 1;
            }
            Happening::Cancel(which) => sim.cancel(RequestId(u64::from(*which) % next)),
            Happening::Begin => drop(sim.begin()),
            Happening::Step => drop(sim.step()),
            Happening::Advance(ms) => sim.advance(Duration::from_millis(*ms)),
            Happening::Fault(fault) => sim.inject(*fault),
        }
        sim.check();
        seen.take(&mut sim);
    }
    for _ in 0..200_000 {
        let more = sim.step();
        sim.check();
        seen.take(&mut sim);
        if !more {
            break;
        }
    }
    assert_eq!(seen.ends.len(), requests.len(), "every request that was taken ended, and nothing is left");
    for (id, finished) in &seen.ends {
        if matches!(finished.end, Ok(FinishReason::MaxTokens)) {
            let expected = alone_in(config, &requests[id]);
            assert_eq!(seen.text.get(id).cloned().unwrap_or_default(), expected, "request {id} got its own text");
        }
    }
}

/// The text of a request alone, with the same chance of ending.
fn alone_in(like: &SimConfig, r: &Request) -> String {
    let mut sim = Simulation::new(SimConfig { eog_every: like.eog_every, ..config(1, 8192) }, options(1));
    sim.submit(Request { timeout: None, ..r.clone() }).expect("it fits");
    sim.run(10_000);
    let mut seen = Seen::default();
    seen.take(&mut sim);
    seen.text.remove(&r.id.0).unwrap_or_default()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn any_interleaving_keeps_every_invariant_and_every_text(
        (config, options) in world(),
        happenings in prop::collection::vec(happening(), 1..120),
    ) {
        swarm(&config, &options, &happenings);
    }

    #[test]
    fn faults_by_chance_never_lose_a_request(
        (config, options) in world(),
        happenings in prop::collection::vec(happening(), 1..80),
        kv_full in 0u32..200, fail in 0u32..100, refuse in 0u32..300,
    ) {
        let fault_rates = FaultRates { kv_full, fail, refuse_copy: refuse, refuse_trim: refuse, ..FaultRates::default() };
        swarm(&SimConfig { fault_rates, ..config }, &options, &happenings);
    }
}
