//! The scheduler over the simulated backend.

mod disk;
mod donors;
mod drafts;
mod embed;
mod fairness;
mod loss;
mod memories;
mod pressure;
mod promises;
mod ram;
mod residency;
mod sessions;
mod smooth;
mod stopping;
mod swarm;
mod threads;

use llama_batch::backend::sim::SimConfig;
use llama_batch::core::{
    Event, FinishReason, Finished, Mode, Request, RequestId, SamplingParams, SchedulerOptions, StopRules, Token,
};
use llama_batch::error::{Error, QueueBound};
use llama_batch::options::StartOptions;
use llama_batch::sim::Simulation;
use std::collections::BTreeMap;

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
        embed: None,
        max_tokens,
        n_draft: 0,
        mode: Mode::Generate,
        sampling: SamplingParams { temp: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05, seed: 7, ..SamplingParams::OFF },
        stop: StopRules::default(),
        priority: 0,
        flow: None,
        cache_prompt: true,
        is_private: false,
        session: None,
        scope: None,
        timeout: None,
        queue_timeout: None,
        stall_timeout: None,
    }
}

fn queue_full(limit: u32) -> Error {
    Error::QueueFull { bound: QueueBound::All, limit }
}

fn prompt(n: u32) -> Vec<Token> {
    (0..n).map(|i| (65 + i % 26) as Token).collect()
}

/// Tokens that no other of these lists begins with.
fn tokens(which: u64, n: u32) -> Vec<Token> {
    (0..n).map(|i| ((which * 37 + u64::from(i) * (which + 1)) % 250) as Token).collect()
}

/// What callers saw: the text of each request, and its one end.
#[derive(Default, Debug)]
struct Seen {
    text: BTreeMap<u64, String>,
    n_tokens: BTreeMap<u64, u32>,
    n_told: BTreeMap<u64, u32>,
    ends: BTreeMap<u64, Finished>,
    events: Vec<Event>,
}

impl Seen {
    fn take(&mut self, sim: &mut Simulation) {
        for event in sim.events() {
            match &event {
                Event::Chunk { request, text, tokens, told } => {
                    assert!(!self.ends.contains_key(&request.0), "no token after the end of request {request}");
                    self.text.entry(request.0).or_default().push_str(text);
                    *self.n_tokens.entry(request.0).or_default() += tokens.len() as u32;
                    *self.n_told.entry(request.0).or_default() += told.len() as u32;
                    let told: Vec<Token> = told.iter().map(|told| told.own.token).collect();
                    assert!(told.is_empty() || told == *tokens, "each token is told of with its text");
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
    run_on(sim, &mut seen);
    seen
}

fn run_on(sim: &mut Simulation, seen: &mut Seen) {
    for _ in 0..200_000 {
        let more = sim.step();
        sim.check();
        seen.take(sim);
        if !more {
            return;
        }
    }
    panic!("200,000 steps were not enough");
}

/// The text of a request that runs alone on an empty backend.
fn alone(request: &Request) -> String {
    let mut sim = Simulation::new(config(1, 8192), options(1));
    sim.submit(request.clone()).expect("it fits");
    run_all(&mut sim).text.remove(&request.id.0).unwrap_or_default()
}
