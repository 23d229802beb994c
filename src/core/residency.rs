//! Which cached sequences stay in the KV cells: those that cost less there than it takes to bring them back.
//!
//! A pass looks at all cells up to the highest one in use, idle ones too. How long a sequence will stay idle is not known,
//! so it stays until its cells have cost as much as moving them to RAM and back would: then it goes. Whatever comes, that
//! is at most twice what the best choice would have cost (the ski rental problem; Karlin et al., 1988). Holes that it
//! leaves below others are paid for in the same way: once they have cost what moving those down takes, they are filled.

use super::event::PressureReason;
use super::ids::SeqId;
use super::op::Op;
use super::scheduler::Scheduler;

/// Cells that are moved down before a pass, at most.
const COMPACT_CELLS: u32 = 64;
/// llama.cpp looks at cells by so many: fewer holes cost nothing.
const MIN_HOLES: u32 = 256;

/// Instead of how much of a sequence was moved: it is not tried any more.
const STAYS: u32 = u32::MAX;

/// What holes cost, and whether they are being filled.
#[derive(Debug, Default)]
pub(super) struct Residency {
    /// Cells that the last pass looked at.
    span: u32,
    /// What the holes among them have cost since they were filled last. Unit: ns.
    hole_rent: u64,
    is_compacting: bool,
    /// Whether something was moved since the last pass.
    moved: bool,
}

impl Residency {
    /// Cells were moved down, or no more can be.
    pub(super) fn compacted(&mut self, done: bool) {
        if !done {
            self.is_compacting = false;
            self.hole_rent = 0;
        }
    }
}

impl Scheduler {
    /// A pass has looked at so many cells: what is idle among them has cost its decode rows.
    pub(super) fn pay_rent(&mut self, n_decode: u32, span: u32) {
        self.residency.span = span;
        self.residency.moved = false;
        let rent = u64::from(self.limits.cell_cost.idle_ns) * u64::from(n_decode);
        if rent == 0 {
            return;
        }
        for cached in self.sequences.all_cached_mut() {
            cached.rent += rent;
        }
        let n_holes = self.n_holes();
        self.residency.hole_rent += rent * u64::from(n_holes);
        if n_holes < MIN_HOLES {
            self.residency.hole_rent = 0;
            self.residency.is_compacting = false;
        }
    }

    fn n_holes(&self) -> u32 {
        self.residency.span.saturating_sub(self.sequences.cells.n_used())
    }

    /// Before each pass move a little of what costs more than it is worth.
    pub(super) fn move_out(&mut self) {
        let moved_ns = u64::from(self.limits.cell_cost.moved_ns);
        if self.residency.moved || moved_ns == 0 || !self.is_decoding() {
            return;
        }
        self.residency.moved = true;
        if let Some(seq) = self.too_dear(moved_ns) {
            self.move_slice(seq);
            return;
        }
        let n_above = self.n_holes().min(self.sequences.cells.n_used());
        let is_due = self.residency.hole_rent >= moved_ns * u64::from(n_above);
        if self.residency.is_compacting || (is_due && self.n_holes() >= MIN_HOLES) {
            self.residency.is_compacting = true;
            self.ops.push(Op::Compact { n_cells: COMPACT_CELLS });
        }
    }

    /// Save a little of a sequence, and let it go once that is all.
    fn move_slice(&mut self, seq: SeqId) {
        let Some(cached) = self.sequences.cached_mut(seq) else { return };
        let (last_used, n_before) = (cached.last_used, cached.n_moved);
        let (n_saved, n_savable) = self.save_slice(seq, Some(last_used));
        if n_saved >= n_savable {
            self.evict(seq, PressureReason::Residency);
        } else if let Some(cached) = self.sequences.cached_mut(seq) {
            // All that is in RAM was used later: there is no place for this, and it stays until cells run short.
            cached.n_moved = if n_saved > n_before { n_saved } else { STAYS };
        }
    }

    /// The cached sequence that was idle longest of those that have cost what moving them would.
    fn too_dear(&self, moved_ns: u64) -> Option<SeqId> {
        let dear = self.sequences.cached().filter(|(seq, cached)| {
            cached.rent >= moved_ns && cached.n_moved != STAYS && self.sequences.cells.n_exclusive(*seq) > 0
        });
        dear.min_by_key(|(seq, cached)| (cached.last_used, *seq)).map(|(seq, _)| seq)
    }
}
