//! A snapshot of the core's figures that nobody waits for.

use super::servers::{ServerHealth, Slow};
use super::shared::Shared;
use super::state::State;
use crate::core::Stats;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

/// Figures of one moment, and sums since the start.
#[derive(Clone, Debug)]
pub struct EngineStats {
    /// The core's, with the requests that never reached it in `queue_depth` and in the sums.
    pub core: Stats,
    /// What the engine does.
    pub state: State,
    /// Requests that count against `n_parallel + max_queue`.
    pub in_flight: u32,
    /// Requests that wait for the model, or for room in the queue (`queue_full="wait"`); part of `queue_depth`.
    pub held: u32,
    /// Telemetry that subscribers were too slow for.
    pub n_events_dropped: u64,
    /// How much of the model is loaded, from 0 to 1.
    pub load_progress: f32,
    /// From the making of the engine until it was ready, once it is.
    pub load_time: Option<Duration>,
    /// Times that a lost backend was made again.
    pub n_backend_restarts: u32,
    /// Whether there is none at the moment, because it was lost.
    pub is_backend_lost: bool,
    /// Works of an isolated backend that took unusually long.
    pub slow: Slow,
    /// The servers that the model is spread over.
    pub servers: Vec<ServerHealth>,
}

impl Shared {
    pub(super) fn engine_stats(&self) -> EngineStats {
        let held = self.n_held.load(Ordering::Relaxed);
        let [all, failed, cancelled] = self.outside.each_ref().map(|n| n.load(Ordering::Relaxed));
        let mut core = self.stats.read();
        core.queue_depth += held;
        core.n_submitted += all;
        core.n_finished += all;
        core.n_failed += failed;
        core.n_cancelled += cancelled;
        let now = self.clock.now();
        let load_nanos = self.load_nanos.load(Ordering::Relaxed);
        EngineStats {
            core,
            state: self.state.get(),
            in_flight: self.n_in_flight.load(Ordering::Relaxed),
            held,
            n_events_dropped: self.telemetry.n_dropped(),
            load_progress: f32::from_bits(self.load_progress.load(Ordering::Relaxed)),
            load_time: (load_nanos > 0).then(|| Duration::from_nanos(load_nanos)),
            n_backend_restarts: self.n_backend_restarts.load(Ordering::Relaxed),
            is_backend_lost: self.is_backend_lost.load(Ordering::Relaxed),
            slow: self.servers.slow(now),
            servers: self.servers.health(now),
        }
    }
}

const N: usize = 36;

/// A seqlock of plain atomics over two copies: one writer, any number of readers. The writer fills the copy that nobody
/// reads, so that a reader has to look again only when a whole snapshot was published meanwhile, however slow the
/// writer is.
pub(super) struct StatsCell {
    /// Snapshots published; its parity names the copy to read.
    version: AtomicU64,
    copies: [[AtomicU64; N]; 2],
}

impl StatsCell {
    pub(super) fn new(stats: &Stats) -> Self {
        let copy = || pack(stats).map(AtomicU64::new);
        Self { version: AtomicU64::new(0), copies: [copy(), copy()] }
    }

    /// Only the engine thread calls it.
    pub(super) fn publish(&self, stats: &Stats) {
        let next = self.version.load(Ordering::Relaxed) + 1;
        // Who sees one of the stores below sees the version that was published before.
        fence(Ordering::Release);
        for (cell, value) in self.copy(next).iter().zip(pack(stats)) {
            cell.store(value, Ordering::Relaxed);
        }
        self.version.store(next, Ordering::Release);
    }

    /// The figures of one moment.
    pub(super) fn read(&self) -> Stats {
        loop {
            let version = self.version.load(Ordering::Acquire);
            let copy = self.copy(version);
            let values = std::array::from_fn(|i| copy[i].load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            if version == self.version.load(Ordering::Relaxed) {
                return unpack(&values);
            }
        }
    }

    fn copy(&self, version: u64) -> &[AtomicU64; N] {
        &self.copies[usize::from(version % 2 == 1)]
    }
}

macro_rules! fields {
    ($($small:ident),*; $($large:ident),*) => {
        fn pack(stats: &Stats) -> [u64; N] {
            let Stats { $($small,)* $($large),* } = stats;
            [$(u64::from(*$small),)* $(*$large),*]
        }

        fn unpack(values: &[u64; N]) -> Stats {
            let [$($small,)* $($large),*] = *values;
            Stats { $($small: $small as u32,)* $($large),* }
        }
    };
}

fields!(
    active_slots, idle_slots, prefilling_slots, queue_depth, parked_requests, n_parallel, n_batch, cached_sequences,
    ram_cache_entries, disk_cache_entries, kv_cells_used, kv_cells_running, kv_cells_total, embedding_requests,
    n_threads, n_threads_batch;
    ram_cache_bytes, disk_cache_bytes, n_ticks, n_submitted, n_finished, n_failed, n_cancelled, n_prefill_tokens, n_prefix_cache_tokens,
    n_generated_tokens, n_draft_tokens, n_accepted_tokens, n_parked, n_evicted, n_embedded_texts, n_embedded_tokens,
    pass_cost_ns, decode_row_cost_ns, prefill_row_cost_ns, context_cost_ns
);

#[cfg(test)]
mod tests {
    use super::*;

    fn all(value: u64) -> Stats {
        unpack(&[value; N])
    }

    #[test]
    fn packing_loses_nothing_and_mixes_nothing_up() {
        let values = std::array::from_fn(|i| i as u64 + 1);
        assert_eq!(pack(&unpack(&values)), values);
        let stats = unpack(&values);
        assert_eq!((stats.active_slots, stats.kv_cells_total, stats.n_ticks, stats.n_evicted), (1, 13, 19, 30));
    }

    #[test]
    fn a_reader_sees_the_figures_of_one_moment() {
        const LAST: u64 = 20_000;
        let cell = StatsCell::new(&all(0));
        std::thread::scope(|scope| {
            scope.spawn(|| (1..=LAST).for_each(|value| cell.publish(&all(value))));
            let mut seen = 0;
            while seen < LAST {
                let values = pack(&cell.read());
                assert!(values[0] >= seen, "time does not run backwards");
                seen = values[0];
                assert_eq!(values, [seen; N]);
            }
        });
    }
}
