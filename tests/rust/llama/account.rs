//! The scheduler over llama.cpp itself: its account of cells against what llama.cpp counts, after every work.

use super::{long, model};
use llama_batch::backend::Backend;
use llama_batch::backend::llama::LlamaBackend;
use llama_batch::core::{
    Event, FinishReason, Mode, Outcome, Request, RequestId, Scheduler, SchedulerOptions, SeqId, Time, Token, Work,
};
use llama_batch::options::{RequestOptions, StartOptions};
use std::collections::BTreeMap;

/// A scheduler over a small KV cache of llama.cpp's, and the tokens that each request got.
struct Harness {
    scheduler: Scheduler,
    backend: LlamaBackend,
    tokens: BTreeMap<u64, Vec<Token>>,
    ends: BTreeMap<u64, FinishReason>,
}

impl Harness {
    fn submit(&mut self, id: u64, prompt: &[Token], max_tokens: u32) {
        let options = RequestOptions { max_tokens, temp: Some(0.0), ..RequestOptions::default() };
        let draft = Request::draft(options, Mode::Generate, &StartOptions::default(), 0);
        let request = Request { id: RequestId(id), prompt: prompt.into(), stall_timeout: None, ..draft };
        self.scheduler.submit(Time(id), request).unwrap();
    }

    /// One work; whether there was any.
    fn step(&mut self) -> bool {
        let Some(work) = self.scheduler.plan(Time(1_000)) else { return false };
        let outcome = match &work {
            Work::Prepare(ops) => Outcome::Prepare(self.backend.prepare(ops)),
            Work::Decode(rows) => Outcome::Decode(self.backend.decode(rows)),
            Work::Strategy(_) => panic!("the strategy is built in"),
        };
        self.scheduler.apply(Time(1_000), work, outcome);
        self.scheduler.check();
        if self.scheduler.is_settled() {
            let counted = self.backend.used_cells(SeqId(0));
            assert_eq!(counted, Some(self.scheduler.stats().kv_cells_used), "llama.cpp's own count of cells");
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

#[test]
#[ignore = "needs LLAMA_BATCH_TEST_MODEL"]
fn the_account_of_cells_is_what_llama_cpp_counts_whatever_happens() {
    let options = StartOptions {
        n_ctx: 512,
        n_parallel: 3,
        n_threads: 1,
        prompt_cache_ram_mb: Some(64),
        ..StartOptions::default()
    };
    let backend = LlamaBackend::new(model(), &options).unwrap();
    let scheduler = Scheduler::new(SchedulerOptions::from(&options), backend.limits());
    let mut all = Harness { scheduler, backend, tokens: BTreeMap::new(), ends: BTreeMap::new() };
    let common = long(&model(), 200);
    let prompt =
        |id: u64| -> Vec<Token> { [&common[..100 + 20 * (id as usize % 5)], &common[id as usize..60]].concat() };
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
    let stats = all.scheduler.stats();
    assert_eq!(all.ends.len(), 8, "everybody ended");
    assert!(stats.n_evicted > 0 && stats.n_prefix_cache_tokens > 0 && stats.ram_cache_entries > 0, "{stats:?}");
    assert!(all.ends.iter().all(|(id, end)| *id == 2 || *end != FinishReason::Cancelled));
}
