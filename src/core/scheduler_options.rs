//! What the scheduler is told once.

use crate::options::{OnBackendLoss, StartOptions, StrategyOption};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What the scheduler needs to know of the start options.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SchedulerOptions {
    /// Slots.
    pub n_parallel: u32,
    /// Rows of one pass at most; the backend's limit holds as well.
    pub n_batch: u32,
    /// Rows of one prompt in a pass at most.
    pub chunk_size: u32,
    /// Requests that may wait beyond the slots; 0 is no bound.
    pub max_queue: u32,
    /// The same for the requests of one flow.
    pub max_queue_per_scope: u32,
    /// Time in which a request that waits gains a level of priority; zero is never.
    pub priority_aging: Duration,
    /// Cached sequences at most.
    pub n_cache_seqs: Option<u32>,
    /// What the RAM tier may take; None leaves it to the backend. Unit: bytes.
    pub ram_bytes: Option<u64>,
    /// What the folder below it may take; 0 where there is none. Unit: bytes.
    pub disk_bytes: u64,
    /// How long a pass may take while somebody generates, as far as prompts have a part in it; 0 is any length.
    pub max_itl: Duration,
    /// How a pass is shared out.
    pub batch_strategy: StrategyOption,
    /// What becomes of those who wait while there is no backend.
    pub on_backend_loss: OnBackendLoss,
}

impl From<&StartOptions> for SchedulerOptions {
    fn from(options: &StartOptions) -> Self {
        Self {
            n_parallel: options.n_parallel,
            n_batch: options.n_batch.unwrap_or(2048),
            chunk_size: options.chunk_size,
            max_queue: options.max_queue,
            max_queue_per_scope: options.max_queue_per_scope,
            priority_aging: Duration::try_from_secs_f64(options.priority_aging).unwrap_or(Duration::MAX),
            n_cache_seqs: options.n_cache_seqs,
            ram_bytes: options.prompt_cache_ram_mb.map(|mb| u64::from(mb) << 20),
            disk_bytes: options.prompt_cache_dir.as_ref().map_or(0, |_| u64::from(options.prompt_cache_dir_mb) << 20),
            max_itl: Duration::from_millis(u64::from(options.max_itl_ms)),
            batch_strategy: options.batch_strategy,
            on_backend_loss: options.on_backend_loss,
        }
    }
}
