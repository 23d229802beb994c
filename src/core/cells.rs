//! The KV account: how many cells are in use, shared ones counted once.
//!
//! A sequence is a path of spans; a fork shares the spans of its donor's prefix. Exact for a unified buffer without a
//! sliding window, where `seq_cp` shares cells and `seq_rm` frees a cell with its last sequence.

use super::ids::SeqId;
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SpanId(u64);

/// A run of consecutive cells that the same sequences hold.
#[derive(Debug)]
struct Span {
    n_cells: u32,
    n_holders: u32,
}

/// Counts the cells of a KV buffer.
#[derive(Debug, Default)]
pub(super) struct CellAccount {
    spans: BTreeMap<SpanId, Span>,
    paths: BTreeMap<SeqId, Vec<SpanId>>,
    n_used: u32,
    next: u64,
}

impl CellAccount {
    /// Cells in use.
    pub(super) fn n_used(&self) -> u32 {
        self.n_used
    }

    /// Sequences that hold any.
    pub(super) fn n_sequences(&self) -> u32 {
        self.paths.len() as u32
    }

    /// Positions that a sequence holds.
    pub(super) fn len(&self, seq: SeqId) -> u32 {
        self.path(seq).iter().map(|id| self.spans[id].n_cells).sum()
    }

    /// Cells that would be free without the sequence.
    pub(super) fn n_exclusive(&self, seq: SeqId) -> u32 {
        let own = self.path(seq).iter().map(|id| &self.spans[id]).filter(|span| span.n_holders == 1);
        own.map(|span| span.n_cells).sum()
    }

    /// Cells that at least one of the sequences holds.
    pub(super) fn n_held_by(&self, seqs: impl Iterator<Item = SeqId>) -> u32 {
        let mut ids: Vec<SpanId> = seqs.flat_map(|seq| self.path(seq).iter().copied()).collect();
        ids.sort_unstable();
        ids.dedup();
        ids.iter().map(|id| self.spans[id].n_cells).sum()
    }

    /// Append `n` new cells to a sequence.
    pub(super) fn extend(&mut self, seq: SeqId, n: u32) {
        if n == 0 {
            return;
        }
        self.n_used += n;
        if let Some(last) = self.paths.get(&seq).and_then(|path| path.last())
            && let Some(span) = self.spans.get_mut(last)
            && span.n_holders == 1
        {
            span.n_cells += n;
            return;
        }
        let id = self.new_span(n, 1);
        self.paths.entry(seq).or_default().push(id);
    }

    /// Let `to`, which is empty, share the first `len` cells of `from`.
    pub(super) fn copy(&mut self, from: SeqId, to: SeqId, len: u32) {
        assert!(self.path(to).is_empty(), "sequence {to} adopts a prefix while it holds cells");
        assert!(len <= self.len(from), "sequence {from} does not hold {len} cells");
        let n_spans = self.split_at(from, len);
        let shared = self.path(from)[..n_spans].to_vec();
        for id in &shared {
            self.span_mut(*id).n_holders += 1;
        }
        if !shared.is_empty() {
            self.paths.insert(to, shared);
        }
    }

    /// Drop all but the first `len` cells of a sequence.
    pub(super) fn trim(&mut self, seq: SeqId, len: u32) {
        if len >= self.len(seq) {
            return;
        }
        let n_spans = self.split_at(seq, len);
        let Some(path) = self.paths.get_mut(&seq) else { return };
        let dropped = path.split_off(n_spans);
        if path.is_empty() {
            self.paths.remove(&seq);
        }
        for id in dropped {
            let span = self.span_mut(id);
            span.n_holders -= 1;
            if span.n_holders == 0 {
                self.n_used -= self.spans.remove(&id).map_or(0, |span| span.n_cells);
            }
        }
    }

    /// Make a sequence hold `len` cells, whichever way that is.
    pub(super) fn set_len(&mut self, seq: SeqId, len: u32) {
        let now = self.len(seq);
        if len > now {
            self.extend(seq, len - now);
        } else {
            self.trim(seq, len);
        }
    }

    /// The account in itself: every span held as often as it says, and the sum right.
    pub(super) fn check(&self) {
        let mut holders: BTreeMap<SpanId, u32> = BTreeMap::new();
        for id in self.paths.values().flatten() {
            *holders.entry(*id).or_default() += 1;
        }
        assert_eq!(holders.len(), self.spans.len(), "a span without a holder, or a holder without a span");
        for (id, span) in &self.spans {
            assert_eq!(holders.get(id), Some(&span.n_holders), "holders of a span");
            assert!(span.n_cells > 0, "an empty span");
        }
        assert_eq!(self.spans.values().map(|span| span.n_cells).sum::<u32>(), self.n_used, "cells in use");
    }

    fn path(&self, seq: SeqId) -> &[SpanId] {
        self.paths.get(&seq).map_or(&[], Vec::as_slice)
    }

    fn span_mut(&mut self, id: SpanId) -> &mut Span {
        self.spans.get_mut(&id).expect("a path names living spans only")
    }

    fn new_span(&mut self, n_cells: u32, n_holders: u32) -> SpanId {
        let id = SpanId(self.next);
        self.next += 1;
        self.spans.insert(id, Span { n_cells, n_holders });
        id
    }

    /// Split spans so that the first `len` cells of a sequence are whole spans; how many they are.
    fn split_at(&mut self, seq: SeqId, len: u32) -> usize {
        let mut before = 0;
        for (at, id) in self.path(seq).to_vec().into_iter().enumerate() {
            if before == len {
                return at;
            }
            let n_cells = self.spans[&id].n_cells;
            if before + n_cells > len {
                self.split_span(id, len - before);
                return at + 1;
            }
            before += n_cells;
        }
        self.path(seq).len()
    }

    /// Cut a span in two, in every path that holds it.
    fn split_span(&mut self, id: SpanId, n_first: u32) {
        let span = self.span_mut(id);
        let (n_rest, n_holders) = (span.n_cells - n_first, span.n_holders);
        span.n_cells = n_first;
        let rest = self.new_span(n_rest, n_holders);
        for path in self.paths.values_mut() {
            if let Some(at) = path.iter().position(|other| *other == id) {
                path.insert(at + 1, rest);
            }
        }
    }
}
