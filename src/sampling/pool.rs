//! Many rows at once.

use super::Sampler;
use crate::core::Token;
use crate::error::Error;
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::sync::{Mutex, PoisonError};

/// Logits below which waking a helper costs more than it saves.
const WORTH_A_HELPER: usize = 1 << 16;

/// Draws from several rows in parallel, on the calling thread and on helpers that sleep in between.
#[derive(Debug)]
pub struct Pool {
    /// None where the calling thread works alone.
    helpers: Option<ThreadPool>,
}

impl Pool {
    /// A pool that draws on so many threads, the calling one included. Where the system refuses a thread, the calling
    /// one works alone.
    pub fn new(n_threads: usize) -> Self {
        let builder = ThreadPoolBuilder::new().num_threads(n_threads.saturating_sub(1));
        let helpers = (n_threads > 1).then(|| builder.thread_name(|i| format!("llama-draw-{i}")).build().ok());
        Self { helpers: helpers.flatten() }
    }

    /// Draw from each row with its sampler, in the order of the rows. What a row gives depends on its sampler and its
    /// logits alone.
    pub fn draw(&self, rows: &mut [(&mut Sampler, &mut [f32])]) -> Vec<Result<Token, Error>> {
        let n_logits = rows.iter().map(|(_, logits)| logits.len()).sum();
        self.each(rows, n_logits, |(sampler, logits)| sampler.draw(logits))
    }

    /// Do each of these, which look at so many logits together; what they give, in their order.
    pub fn each<J: Send, R: Send>(&self, jobs: &mut [J], n_logits: usize, job: impl Fn(&mut J) -> R + Sync) -> Vec<R> {
        let helpers = self.helpers.as_ref().filter(|_| jobs.len() > 1 && n_logits > WORTH_A_HELPER);
        let Some(helpers) = helpers else { return jobs.iter_mut().map(job).collect() };
        let mut done: Vec<Option<R>> = jobs.iter().map(|_| None).collect();
        let n_helpers = helpers.current_num_threads().min(jobs.len() - 1);
        let todo = Mutex::new(jobs.iter_mut().zip(&mut done));
        // Each thread takes the next one when it is done with one, so that a helper which wakes late costs nothing.
        let work = || {
            loop {
                let next = todo.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some((one, result)) = next else { break };
                *result = Some(job(one));
            }
        };
        helpers.in_place_scope(|scope| {
            for _ in 0..n_helpers {
                scope.spawn(|_| work());
            }
            work();
        });
        done.into_iter().flatten().collect()
    }
}
