//! What one tick costs in the core: plan and apply, without a forward pass.
//!
//! The budget is 100 µs with 64 requests running, 10,000 queued and 256 sequences.
#![allow(missing_docs, reason = "criterion's macros write undocumented items")]
#![allow(clippy::disallowed_methods, reason = "a bench measures time")]

use criterion::{Criterion, criterion_group, criterion_main};
use llama_batch::backend::Backend;
use llama_batch::backend::sim::{SimBackend, SimConfig};
use llama_batch::core::{
    Event, Mode, Outcome, PrefixIndex, Request, RequestId, Scheduler, SchedulerOptions, Time, Work,
};
use llama_batch::options::{Key, RequestOptions, StartOptions};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

fn request(id: u64, n_prompt: i32, max_tokens: u32) -> Request {
    let hour = Some(3600.0);
    let options = RequestOptions { max_tokens, timeout: hour, stall_timeout: hour, ..RequestOptions::default() };
    Request {
        id: RequestId(id),
        prompt: (0..n_prompt).map(|i| (i + id as i32 * 13) % 250).collect(),
        ..Request::draft(options, Mode::Generate, &StartOptions::default(), id).0
    }
}

/// Carry out one work; whether it was a forward pass.
fn tick(scheduler: &mut Scheduler, backend: &mut SimBackend) -> bool {
    let Some(work) = scheduler.plan(Time(1)) else { return false };
    let is_pass = matches!(work, Work::Decode(_));
    let outcome = match &work {
        Work::Prepare(ops) => Outcome::Prepare(backend.prepare(ops)),
        Work::Decode(rows) => Outcome::Decode(backend.decode(rows)),
        Work::Embed(parts) => Outcome::Embed(backend.embed(parts)),
        Work::Strategy(_) => Outcome::Strategy(Err("none".into())),
    };
    scheduler.apply(Time(1), work, outcome);
    while scheduler.poll_event().is_some() {}
    is_pass
}

/// A scheduler in the middle of its work: `n_running` decode, `n_cached` prefixes are kept, `n_queued` wait, in so many
/// flows.
fn busy(n_running: u32, n_cached: u32, n_queued: u64, n_flows: u64) -> (Scheduler, SimBackend, u64) {
    let mut backend =
        SimBackend::new(SimConfig { n_ctx: 1 << 20, n_parallel: n_running, n_batch: 2048, ..SimConfig::default() });
    let options = StartOptions { n_parallel: n_running, max_queue: 0, chunk_size: 2048, ..StartOptions::default() };
    let mut scheduler = Scheduler::new(SchedulerOptions::from(&options), backend.limits());
    let mut id = 0;
    let mut submit = |scheduler: &mut Scheduler, n_prompt, max_tokens| {
        id += 1;
        let flow = Some(Key((id % n_flows).to_string()));
        // Without a cache nobody awaits a prefix.
        let cache_prompt = n_cached > 0;
        let new = Request { flow, cache_prompt, ..request(id, n_prompt, max_tokens) };
        scheduler.submit(Time(0), new).expect("there is room");
    };
    for _ in 0..n_cached {
        submit(&mut scheduler, 2000, 1);
        while !scheduler.is_idle() {
            tick(&mut scheduler, &mut backend);
        }
    }
    for _ in 0..u64::from(n_running) + n_queued {
        submit(&mut scheduler, 100, 1_000_000);
    }
    for _ in 0..16 {
        tick(&mut scheduler, &mut backend);
    }
    (scheduler, backend, id)
}

/// Ticks of one scheduler before a fresh one takes its place: nothing ends and nothing fills up meanwhile.
const N_TICKS: u64 = 2048;

fn ticks(c: &mut Criterion) {
    let mut group = c.benchmark_group("tick");
    for (n_running, n_cached, n_queued, n_flows) in
        [(4, 0, 0, 1), (16, 64, 100, 1), (64, 180, 10_000, 1), (64, 180, 10_000, 5000)]
    {
        let name = format!("{n_running} running, {n_cached} cached, {n_queued} queued in {n_flows} flows");
        group.bench_function(name, |b| {
            b.iter_custom(|n| {
                (0..n)
                    .step_by(N_TICKS as usize)
                    .map(|at| {
                        let (mut scheduler, mut backend, _) = busy(n_running, n_cached, n_queued, n_flows);
                        let began = Instant::now();
                        for _ in at..n.min(at + N_TICKS) {
                            assert!(tick(&mut scheduler, &mut backend), "every tick computes");
                        }
                        let took = began.elapsed();
                        assert_eq!(scheduler.stats().active_slots, n_running);
                        took
                    })
                    .sum()
            });
        });
    }
    group.finish();
}

fn arrivals(c: &mut Criterion) {
    let (mut scheduler, _, mut id) = busy(64, 180, 10_000, 5000);
    c.bench_function("submit and cancel beside 10,000 queued", |b| {
        b.iter(|| {
            id += 1;
            scheduler.submit(Time(2), request(id, 100, 10)).expect("there is room");
            scheduler.cancel(Time(2), RequestId(id));
            while scheduler.poll_event().is_some() {}
        });
    });
}

/// A request ends and another gets its slot, of a flow that was served least.
fn admissions(c: &mut Criterion) {
    let (mut scheduler, mut backend, mut id) = busy(64, 0, 10_000, 5000);
    let mut running: VecDeque<RequestId> = (1..=64).map(RequestId).collect();
    c.bench_function("give a slot to one of 10,000 queued in 5000 flows", |b| {
        b.iter(|| {
            id += 1;
            let new = Request {
                flow: Some(Key((id % 5000).to_string())),
                cache_prompt: false,
                ..request(id, 100, 1_000_000)
            };
            scheduler.submit(Time(2), new).expect("there is room");
            scheduler.cancel(Time(2), running.pop_front().expect("somebody runs"));
            while scheduler.stats().active_slots < 64 {
                let work = scheduler.plan(Time(2)).expect("there is something to do");
                let outcome = match &work {
                    Work::Prepare(ops) => Outcome::Prepare(backend.prepare(ops)),
                    Work::Decode(_) | Work::Embed(_) | Work::Strategy(_) => {
                        panic!("a slot is given before the next pass")
                    }
                };
                scheduler.apply(Time(2), work, outcome);
            }
            while let Some(event) = scheduler.poll_event() {
                if let Event::Started { request, .. } = event {
                    running.push_back(request);
                }
            }
        });
    });
}

/// Admission finds the best prefix among sequences that are long and much alike: most of their tokens are the same.
fn prefixes(c: &mut Criterion) {
    const N_TOKENS: i32 = 32_000;
    let n_cached = 240;
    let config = SimConfig { n_ctx: 1 << 24, n_parallel: 4, n_batch: 8192, ..SimConfig::default() };
    let mut backend = SimBackend::new(config);
    let options = StartOptions { n_parallel: 4, chunk_size: 8192, n_batch: Some(8192), ..StartOptions::default() };
    let mut scheduler = Scheduler::new(SchedulerOptions::from(&options), backend.limits());
    let with =
        |id: u64, prompt: &Arc<[i32]>, max_tokens| Request { prompt: Arc::clone(prompt), ..request(id, 1, max_tokens) };
    let tokens =
        |departs: i32| (0..N_TOKENS).map(|i| if i < departs { i % 250 } else { (i + departs) % 241 }).collect();
    for id in 1..=n_cached {
        let prompt: Arc<[i32]> = tokens(N_TOKENS - 100 * id as i32);
        scheduler.submit(Time(0), with(id, &prompt, 1)).expect("there is room");
        while !scheduler.is_idle() {
            tick(&mut scheduler, &mut backend);
        }
    }
    assert_eq!(u64::from(scheduler.stats().cached_sequences), n_cached);
    let mut index = PrefixIndex::default();
    for id in 1..=256 {
        index.insert(None, id, tokens(N_TOKENS - 100 * id));
    }
    let (asked, mut id) = (tokens(N_TOKENS - 50), n_cached);
    c.bench_function("match 32k tokens with 256 sequences of 32k", |b| b.iter(|| index.matches(None, &asked).next()));
    c.bench_function("admit and cancel 32k tokens beside 240 cached sequences of 32k", |b| {
        b.iter(|| {
            id += 1;
            scheduler.submit(Time(1), with(id, &asked, 10)).expect("there is room");
            tick(&mut scheduler, &mut backend);
            scheduler.cancel(Time(1), RequestId(id));
            while !scheduler.is_idle() {
                tick(&mut scheduler, &mut backend);
            }
        });
    });
}

criterion_group!(benches, ticks, arrivals, admissions, prefixes);
criterion_main!(benches);
