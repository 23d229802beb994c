//! Seeded swarms: whatever happens in whatever order, every invariant holds after every step, and each request gets the
//! text that it gets alone.

use super::embed::{embedded, embedded_alone, embedding};
use super::*;
use llama_batch::backend::sim::{Fault, FaultRates};
use llama_batch::core::{CellCost, MemoryKind, SamplingParams, Telling};
use llama_batch::options::{BatchStrategy, Key, OnBackendLoss, StrategyOption};
use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;

/// One thing that happens in a swarm.
#[derive(Clone, Debug)]
enum Happening {
    Submit {
        len: u32,
        shared: u32,
        max_tokens: u32,
        scope: u8,
        priority: i32,
        cache: bool,
        timeout_ms: Option<u64>,
        stop: bool,
        telling: Telling,
        n: u32,
        custom: Option<u64>,
    },
    /// Texts to embed: their lengths.
    Embed {
        lens: Vec<u32>,
        priority: i32,
        timeout_ms: Option<u64>,
    },
    Cancel(u8),
    Begin,
    Step,
    Advance(u64),
    Fault(Fault),
    Lose,
    Recover,
    Restart {
        ram: u64,
        disk: u64,
    },
}

fn happening() -> impl Strategy<Value = Happening> {
    let submit = (
        1u32..90,
        0u32..60,
        0u32..40,
        0u8..3,
        0i32..3,
        any::<bool>(),
        prop::option::weighted(0.1, 1u64..400),
        prop::bool::weighted(0.2),
        (prop::option::weighted(0.2, 0u32..3), prop::option::weighted(0.2, 0u32..3)),
        prop_oneof![4 => Just(1u32), 1 => 2u32..4],
        prop::option::weighted(0.2, Just(7u64)),
    )
        .prop_map(|(len, shared, max_tokens, scope, priority, cache, timeout_ms, stop, told, n, custom)| {
            let telling = Telling { drawn: told.0, prompt: told.1, after_sampling: false };
            Happening::Submit { len, shared, max_tokens, scope, priority, cache, timeout_ms, stop, telling, n, custom }
        });
    let embed = (prop::collection::vec(1u32..150, 1..5), 0i32..3, prop::option::weighted(0.1, 1u64..400))
        .prop_map(|(lens, priority, timeout_ms)| Happening::Embed { lens, priority, timeout_ms });
    let fault = prop::sample::select(vec![
        Fault::KvFull,
        Fault::Fail(2),
        Fault::Fail(-1),
        Fault::Fail(-2),
        Fault::Fail(-3),
        Fault::RefuseCopy,
        Fault::RefuseTrim,
        Fault::RefuseSave,
        Fault::RefuseRestore,
        Fault::RefuseStore,
        Fault::RefuseLoad,
        Fault::RefuseOpen,
        Fault::FailDraw,
    ]);
    let budgets = (
        prop::sample::select(vec![0, 1 << 10, 5 << 10, 1 << 20]),
        prop::sample::select(vec![0, 3 << 10, 9 << 10, 1 << 20]),
    );
    prop_oneof![
        4 => submit,
        1 => embed,
        1 => any::<u8>().prop_map(Happening::Cancel),
        2 => Just(Happening::Begin),
        12 => Just(Happening::Step),
        1 => (1u64..50).prop_map(Happening::Advance),
        1 => fault.prop_map(Happening::Fault),
        1 => prop_oneof![Just(Happening::Lose), Just(Happening::Recover), Just(Happening::Recover)],
        1 => budgets.prop_map(|(ram, disk)| Happening::Restart { ram, disk }),
    ]
}

fn memory() -> impl Strategy<Value = MemoryKind> {
    let kinds = vec![MemoryKind::Full, MemoryKind::Recurrent, MemoryKind::Hybrid, MemoryKind::SlidingWindow(16)];
    prop::sample::select(kinds)
}

fn world() -> impl Strategy<Value = (SimConfig, SchedulerOptions)> {
    let strategy = prop::sample::select(vec![
        BatchStrategy::DecodeMaximal,
        BatchStrategy::PrefillPriority,
        BatchStrategy::Balanced,
    ]);
    (
        memory(),
        any::<bool>(),
        1u32..5,
        64u32..300,
        (1u32..64, prop::option::of(1u32..12)),
        (1u32..40, prop::sample::select(vec![0, 1, 15, 40, 200])),
        strategy,
        prop::option::of(0u32..4),
        any::<u64>(),
        ((any::<bool>(), any::<bool>()), prop::sample::select(vec![0u64, 20, 1000])),
        (1u32..40, prop::sample::select(vec![0, 1 << 10, 5 << 10, 1 << 20]), prop::sample::select(vec![0, 1, 5, 1000])),
        prop::sample::select(vec![0, 3 << 10, 9 << 10, 1 << 20]),
    )
        .prop_map(
            |(
                memory,
                kv_unified,
                n_parallel,
                n_ctx,
                (n_batch, n_outputs),
                (chunk_size, max_itl_ms),
                strategy,
                n_cache_seqs,
                seed,
                ((eog, repeats), aging_ms),
                ram,
                disk,
            )| {
                let n_ctx = if kv_unified { n_ctx } else { n_ctx * n_parallel };
                let config = SimConfig {
                    memory,
                    kv_unified,
                    n_parallel,
                    n_ctx,
                    n_batch,
                    n_outputs,
                    seed,
                    block: ram.0,
                    ram_bytes: ram.1,
                    cell_cost: CellCost { idle_ns: ram.2, moved_ns: 10 },
                    eog_every: if eog { 20 } else { 0 },
                    repeat: if repeats { 900 } else { 0 },
                    ..SimConfig::default()
                };
                let options = SchedulerOptions {
                    n_batch,
                    chunk_size,
                    max_queue: 8,
                    max_queue_per_scope: 6,
                    priority_aging: Duration::from_millis(aging_ms),
                    n_cache_seqs,
                    disk_bytes: disk,
                    max_itl: Duration::from_millis(max_itl_ms),
                    batch_strategy: StrategyOption::Builtin(strategy),
                    on_backend_loss: if seed % 4 == 0 { OnBackendLoss::Fail } else { OnBackendLoss::Wait },
                    ..options(n_parallel)
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
            Happening::Submit {
                len,
                shared,
                max_tokens,
                scope,
                priority,
                cache,
                timeout_ms,
                stop,
                telling,
                n,
                custom,
            } => {
                let tokens =
                    [prompt(*shared), (0..*len).map(|i| ((next * 31 + u64::from(i)) % 250) as Token).collect()]
                        .concat();
                let r = Request {
                    scope: (*scope > 0).then(|| Key(scope.to_string())),
                    flow: (*scope > 0).then(|| Key(scope.to_string())),
                    priority: *priority,
                    n_draft: [0, 3, 8][*len as usize % 3],
                    cache_prompt: *cache,
                    stop: StopRules {
                        strings: if *stop { ["3 w4".to_string()].into() } else { Arc::default() },
                        ..StopRules::default()
                    },
                    timeout: timeout_ms.map(Duration::from_millis),
                    sampling: SamplingParams { telling: *telling, custom: *custom, seed: 7, ..SamplingParams::OFF },
                    ..request(next, tokens, *max_tokens)
                };
                for r in r.siblings(*n) {
                    if sim.submit(r.clone()).is_ok() {
                        requests.insert(r.id.0, r);
                    }
                    next += 1;
                }
            }
            Happening::Embed { lens, priority, timeout_ms } => {
                let r = embedding_of(next, lens, *priority, *timeout_ms);
                if sim.submit(r.clone()).is_ok() {
                    requests.insert(next, r);
                }
                next += 1;
            }
            Happening::Restart { ram, disk } => {
                let budgets = SchedulerOptions { ram_bytes: Some(*ram), disk_bytes: *disk, ..options.clone() };
                sim = sim.restarted(budgets);
                requests.retain(|id, _| seen.ends.contains_key(id));
                seen.text.retain(|id, _| seen.ends.contains_key(id));
                seen.n_tokens.retain(|id, _| seen.ends.contains_key(id));
            }
            other => disturb(&mut sim, other, next),
        }
        sim.check();
        seen.take(&mut sim);
    }
    sim.restore_backend().expect("it is of the same kind");
    run_on(&mut sim, &mut seen);
    assert_eq!(seen.ends.len(), requests.len(), "every request that was taken ended, and nothing is left");
    check_results(config, &requests, &seen);
}

/// What happens to all requests, rather than brings one.
fn disturb(sim: &mut Simulation, happening: &Happening, next: u64) {
    match happening {
        Happening::Cancel(which) => sim.cancel(RequestId(u64::from(*which) % next)),
        Happening::Begin => drop(sim.begin()),
        Happening::Step => drop(sim.step()),
        Happening::Advance(ms) => sim.advance(Duration::from_millis(*ms)),
        Happening::Fault(fault) => sim.inject(*fault),
        Happening::Lose => sim.lose_backend(),
        Happening::Recover => sim.restore_backend().expect("it is of the same kind"),
        Happening::Submit { .. } | Happening::Embed { .. } | Happening::Restart { .. } => unreachable!("it brings one"),
    }
}

fn embedding_of(id: u64, lens: &[u32], priority: i32, timeout_ms: Option<u64>) -> Request {
    let texts = (0..).zip(lens).map(|(i, len)| tokens(id * 9 + i, *len)).collect();
    Request { priority, timeout: timeout_ms.map(Duration::from_millis), ..embedding(id, texts) }
}

/// Whoever ended well got what it gets alone.
fn check_results(config: &SimConfig, requests: &BTreeMap<u64, Request>, seen: &Seen) {
    for (id, finished) in &seen.ends {
        if matches!(finished.end, Ok(FinishReason::MaxTokens | FinishReason::Stop)) {
            let expected = alone_in(config, &requests[id]);
            assert_eq!(seen.text.get(id).cloned().unwrap_or_default(), expected, "request {id} got its own text");
            check_told(&requests[id], seen, finished);
        }
        let is_embedded = finished.end == Ok(FinishReason::Embedded);
        assert_eq!(embedded(seen, *id), is_embedded.then(|| embedded_alone(&requests[id])).as_ref());
    }
}

/// Each token that a request wants to know of was told, and in its place.
fn check_told(r: &Request, seen: &Seen, finished: &Finished) {
    let n_told = seen.n_told.get(&r.id.0).copied().unwrap_or_default();
    let n_wanted = if r.sampling.telling.drawn.is_some() { finished.usage.generated_tokens } else { 0 };
    assert_eq!(n_told, n_wanted, "request {} was told of each token", r.id);
    let told: Vec<_> = finished.prompt_told.iter().map(|told| told.as_ref().map(|told| told.own.token)).collect();
    let wanted: Vec<_> = match r.sampling.telling.prompt {
        Some(_) => std::iter::once(None).chain(r.prompt[1..].iter().map(|token| Some(*token))).collect(),
        None => Vec::new(),
    };
    assert_eq!(told, wanted, "request {} was told of its prompt", r.id);
}

/// The text of a request alone, with the same chance of ending.
fn alone_in(like: &SimConfig, r: &Request) -> String {
    let mut sim =
        Simulation::new(SimConfig { eog_every: like.eog_every, repeat: like.repeat, ..config(1, 8192) }, options(1));
    sim.submit(Request { timeout: None, n_draft: 0, ..r.clone() }).expect("it fits");
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
        let fault_rates = FaultRates { kv_full, fail, refuse_copy: refuse, refuse_trim: refuse, refuse_save: refuse, refuse_restore: refuse, refuse_store: refuse, refuse_load: refuse, ..FaultRates::default() };
        swarm(&SimConfig { fault_rates, ..config }, &options, &happenings);
    }
}
