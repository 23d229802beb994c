//! A snapshot of what the core holds.

use serde::{Deserialize, Serialize};

/// Figures of one moment, and sums since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// Slots taken.
    pub active_slots: u32,
    /// Slots free.
    pub idle_slots: u32,
    /// Slots whose request still reads its prompt.
    pub prefilling_slots: u32,
    /// Requests that wait for a slot, parked ones included.
    pub queue_depth: u32,
    /// Requests that were parked and wait to go on.
    pub parked_requests: u32,
    /// Slots in total.
    pub n_parallel: u32,
    /// Rows of one pass at most.
    pub n_batch: u32,
    /// Cached sequences without a request.
    pub cached_sequences: u32,
    /// Blocks in the RAM tier.
    pub ram_cache_entries: u32,
    /// What they take. Unit: bytes.
    pub ram_cache_bytes: u64,
    /// Blocks on disk.
    pub disk_cache_entries: u32,
    /// What their files take. Unit: bytes.
    pub disk_cache_bytes: u64,
    /// KV cells in use, shared ones once. A recurrent memory has one for each sequence, others one for each token.
    pub kv_cells_used: u32,
    /// Of those, what running requests hold; the rest is cached.
    pub kv_cells_running: u32,
    /// KV cells in total.
    pub kv_cells_total: u32,
    /// Forward passes that were done.
    pub n_ticks: u64,
    /// Requests taken in.
    pub n_submitted: u64,
    /// Requests that ended, however.
    pub n_finished: u64,
    /// Requests that ended by an error.
    pub n_failed: u64,
    /// Requests that ended by cancellation.
    pub n_cancelled: u64,
    /// Prompt tokens computed, what is computed again after a park included.
    pub n_prefill_tokens: u64,
    /// Prompt tokens reused.
    pub n_prefix_cache_tokens: u64,
    /// Tokens generated.
    pub n_generated_tokens: u64,
    /// Tokens that were drafted and computed beside those that were known.
    pub n_draft_tokens: u64,
    /// Of those, tokens that were then drawn.
    pub n_accepted_tokens: u64,
    /// Times a request was parked.
    pub n_parked: u64,
    /// Cached sequences that were dropped for room.
    pub n_evicted: u64,
    /// Requests for embeddings that run or wait.
    pub embedding_requests: u32,
    /// Texts that became vectors.
    pub n_embedded_texts: u64,
    /// Tokens computed for them.
    pub n_embedded_tokens: u64,
    /// What a pass costs, whatever is in it, as learned from those that were done; 0 until then. Unit: ns.
    pub pass_cost_ns: u64,
    /// What a decode row adds. Unit: ns.
    pub decode_row_cost_ns: u64,
    /// What a row of a prompt adds. Unit: ns.
    pub prefill_row_cost_ns: u64,
    /// What 1,000 tokens of context add to each row that attends to them. Unit: ns.
    pub context_cost_ns: u64,
    /// Threads that compute passes of few rows, as far as the scheduler says how many; 0 where it does not.
    pub n_threads: u32,
    /// The same of passes of many rows.
    pub n_threads_batch: u32,
}
