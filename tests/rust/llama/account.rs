//! The scheduler over llama.cpp itself: its account of cells against what llama.cpp counts, after every work.

use super::{model, named};
use llama_batch::backend::Backend;
use llama_batch::backend::llama::{LlamaBackend, Model, load};
use llama_batch::core::{
    Event, FinishReason, Limits, MemoryKind, Mode, Outcome, PassStatus, Request, RequestId, Scheduler,
    SchedulerOptions, SeqId, Time, Token, Work,
};
use llama_batch::options::{RequestOptions, StartOptions};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A scheduler over a small KV cache of llama.cpp's, and the tokens that each request got.
struct Harness {
    scheduler: Scheduler,
    backend: LlamaBackend,
    tokens: BTreeMap<u64, Vec<Token>>,
    ends: BTreeMap<u64, FinishReason>,
    /// How the passes ended.
    statuses: Vec<PassStatus>,
}

impl Harness {
    fn submit(&mut self, id: u64, prompt: &[Token], max_tokens: u32) {
        let options = RequestOptions { max_tokens, temp: Some(0.0), ..RequestOptions::default() };
        let (draft, _) = Request::draft(options, Mode::Generate, &StartOptions::default(), 0);
        let request = Request { id: RequestId(id), prompt: prompt.into(), stall_timeout: None, ..draft };
        self.scheduler.submit(Time(id), request).unwrap();
    }

    /// The account, against llama.cpp's own count.
    fn check_cells(&self) {
        let limits = self.backend.limits();
        if limits.is_pool {
            let counted = self.backend.used_cells(SeqId(0));
            assert_eq!(counted, Some(self.scheduler.stats().kv_cells_used), "llama.cpp's own count of cells");
        }
        // Each sequence has a window of its own, and what was computed since cells were last taken back.
        if let (MemoryKind::SlidingWindow(window), Some(n)) = (limits.memory, self.backend.window_cells(SeqId(0))) {
            let most = window * limits.n_seq_max + limits.n_batch;
            assert!(n <= most.next_multiple_of(256).max(limits.n_ctx), "{n} cells of windows");
        }
    }

    /// One work; whether there was any.
    fn step(&mut self) -> bool {
        let Some(work) = self.scheduler.plan(Time(1_000)) else { return false };
        let outcome = match &work {
            Work::Prepare(ops) => Outcome::Prepare(self.backend.prepare(ops)),
            Work::Decode(rows) => {
                let outcome = self.backend.decode(rows);
                self.statuses.push(outcome.status.clone());
                Outcome::Decode(outcome)
            }
            Work::Embed(parts) => Outcome::Embed(self.backend.embed(parts)),
            Work::Strategy(_) => panic!("the strategy is built in"),
        };
        self.scheduler.apply(Time(1_000), work, outcome);
        self.scheduler.check();
        if self.scheduler.is_settled() {
            self.check_cells();
        }
        while let Some(event) = self.scheduler.poll_event() {
            match event {
                Event::Chunk { request, tokens, .. } => self.tokens.entry(request.0).or_default().extend(tokens),
                Event::Finished(finished) => drop(self.ends.insert(finished.request.0, finished.end.unwrap())),
                _ => {}
            }
        }
        true
    }
}

fn harness(model: Arc<Model>, options: &StartOptions, n_ctx_told: Option<u32>) -> Harness {
    let backend = LlamaBackend::new(model, options).unwrap();
    let limits = backend.limits();
    let limits = Limits { n_ctx: n_ctx_told.unwrap_or(limits.n_ctx), ..limits };
    let scheduler = Scheduler::new(SchedulerOptions::from(options), limits);
    Harness { scheduler, backend, tokens: BTreeMap::new(), ends: BTreeMap::new(), statuses: Vec::new() }
}

/// Eight requests with common beginnings, more than the cells can hold, one of them cancelled: what came of them.
fn serve(mut all: Harness) -> Harness {
    let n_vocab = all.backend.limits().n_vocab as u64;
    let token = |which: u64, at: u64| ((which * 37 + at * (which + 5)) % (n_vocab - 20) + 10) as Token;
    let prompt = |id: u64| -> Vec<Token> {
        let common = (0..100 + 20 * (id % 5)).map(|at| token(1, at));
        common.chain((0..60 - id).map(|at| token(id + 7, at))).collect()
    };
    for id in 1..=8 {
        all.submit(id, &prompt(id), 40);
    }
    for n_steps in 0.. {
        if !all.step() {
            break;
        }
        if n_steps == 20 {
            all.scheduler.cancel(Time(1_000), RequestId(2));
        }
    }
    assert_eq!(all.ends.len(), 8, "everybody ended");
    assert!(all.ends.iter().all(|(id, end)| *id == 2 || *end != FinishReason::Cancelled));
    all
}

fn small() -> StartOptions {
    StartOptions { n_ctx: 512, n_parallel: 3, n_threads: 1, prompt_cache_ram_mb: Some(64), ..StartOptions::default() }
}

#[test]
#[ignore = "needs LLAMA_BATCH_TEST_MODEL"]
fn the_account_of_cells_is_what_llama_cpp_counts_whatever_happens() {
    let stats = serve(harness(model(), &small(), None)).scheduler.stats();
    assert!(stats.n_evicted > 0 && stats.n_prefix_cache_tokens > 0 && stats.ram_cache_entries > 0, "{stats:?}");
}

#[test]
#[ignore = "needs LLAMA_BATCH_TEST_MODEL"]
fn a_cache_that_llama_cpp_finds_full_although_the_account_has_room_loses_nobody() {
    // The scheduler believes in half as many cells again as there are.
    let all = serve(harness(model(), &small(), Some(768)));
    assert!(all.statuses.contains(&PassStatus::KvFull), "llama_decode returned 1");
    assert!(all.scheduler.stats().n_evicted > 0);
}

#[test]
#[ignore = "needs LLAMA_BATCH_TEST_MODEL"]
fn passes_that_are_aborted_lose_nobody() {
    let mut all = harness(model(), &small(), None);
    let abort = all.backend.abort_flag().unwrap();
    all.submit(20, &[5; 90], 6);
    for n_steps in 0.. {
        abort.store(n_steps % 3 == 1, Ordering::Relaxed);
        if !all.step() {
            break;
        }
    }
    let aborted = |status: &&PassStatus| matches!(status, PassStatus::Failed { code: 2, .. });
    assert!(all.statuses.iter().filter(aborted).count() > 2, "llama_decode returned 2");
    assert_eq!(all.ends[&20], FinishReason::MaxTokens);
    let alone = {
        let mut one = harness(model(), &small(), None);
        one.submit(20, &[5; 90], 6);
        while one.step() {}
        one.tokens
    };
    assert_eq!(all.tokens, alone);
}

#[test]
#[ignore = "needs LLAMA_BATCH_TEST_MODEL"]
fn the_account_holds_for_every_kind_of_memory() {
    for variable in ["LLAMA_BATCH_TEST_SLIDING", "LLAMA_BATCH_TEST_RECURRENT", "LLAMA_BATCH_TEST_HYBRID"] {
        let Some(path) = named(variable) else { continue };
        let model = load(&StartOptions::default(), &path, &|_| true).unwrap();
        for (swa_full, kv_unified) in [(false, true), (true, true), (false, false)] {
            let n_ctx = if kv_unified { 512 } else { 3 * 512 };
            let options = StartOptions { n_ctx, swa_full, kv_unified: Some(kv_unified), ..small() };
            let all = serve(harness(Arc::clone(&model), &options, None));
            let stats = all.scheduler.stats();
            assert!(stats.n_prefix_cache_tokens > 0 && stats.ram_cache_entries > 0, "{variable}: {stats:?}");
        }
    }
}
