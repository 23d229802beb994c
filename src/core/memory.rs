//! What the sequences of each kind of memory can do: the rules that core and backends share.

use serde::{Deserialize, Serialize};

/// The kind of memory that a model has: what its sequences can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemoryKind {
    /// Full attention: any prefix of a sequence can be kept.
    Full,
    /// Sliding-window attention over so many tokens, perhaps beside full attention: a prefix can be kept while its
    /// window is still there.
    SlidingWindow(u32),
    /// A recurrent state alone: a sequence can only be continued where it stands, and takes no cells of a pool.
    Recurrent,
    /// A recurrent state beside attention: a sequence can only be continued where it stands.
    Hybrid,
}

impl MemoryKind {
    /// Whether a sequence can only be continued where it stands.
    pub const fn is_recurrent(self) -> bool {
        matches!(self, Self::Recurrent | Self::Hybrid)
    }

    /// Whether a sequence that holds positions `first..n_held` can be continued after its first `len` ones.
    pub const fn can_cut(self, first: u32, n_held: u32, len: u32) -> bool {
        if len >= n_held {
            return len == n_held;
        }
        match self {
            Self::Full => true,
            // The next token sees the last `window` positions, itself included.
            Self::SlidingWindow(window) => first <= (len + 1).saturating_sub(window),
            Self::Recurrent | Self::Hybrid => false,
        }
    }

    /// The first position that a copy of a sequence of `len` positions holds at the least.
    pub const fn first_copied(self, len: u32) -> u32 {
        match self {
            Self::SlidingWindow(window) => len.saturating_sub(window),
            Self::Full | Self::Recurrent | Self::Hybrid => 0,
        }
    }
}

/// What the saved state of a whole sequence takes, at most. Unit: bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateSize {
    /// However long it is.
    pub fixed: u64,
    /// For each position.
    pub per_token: u64,
    /// For each position of a sliding window, beyond that.
    pub per_window_token: u64,
}

impl StateSize {
    /// Of a sequence of `len` positions in a memory of this kind.
    pub fn bytes(self, memory: MemoryKind, len: u32) -> u64 {
        let in_window = len - memory.first_copied(len);
        self.fixed + self.per_token * u64::from(len) + self.per_window_token * u64::from(in_window)
    }
}

/// What cells cost, measured on the machine that computes; zeros where nothing can be gained by moving them. Unit: ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellCost {
    /// What a cell that a pass looks at for nothing adds to each of its decode rows.
    pub idle_ns: u32,
    /// What it takes to move a cell to RAM and back.
    pub moved_ns: u32,
}

#[cfg(test)]
mod tests {
    use super::{MemoryKind, StateSize};

    #[test]
    fn what_can_be_cut_depends_on_what_the_next_token_sees() {
        let sliding = MemoryKind::SlidingWindow(4);
        for (memory, first, len, can) in [
            (MemoryKind::Full, 0, 1, true),
            (MemoryKind::Full, 0, 11, false),
            (MemoryKind::Recurrent, 0, 9, false),
            (MemoryKind::Hybrid, 0, 10, true),
            (sliding, 6, 9, true),
            (sliding, 6, 8, false),
            (sliding, 0, 1, true),
            (sliding, 1, 3, false),
        ] {
            assert_eq!(memory.can_cut(first, 10, len), can, "{memory:?} {first} {len}");
        }
    }

    #[test]
    fn only_the_window_of_a_long_sequence_is_counted() {
        let size = StateSize { fixed: 100, per_token: 10, per_window_token: 3 };
        assert_eq!(size.bytes(MemoryKind::SlidingWindow(4), 10), 100 + 100 + 12);
        assert_eq!(size.bytes(MemoryKind::SlidingWindow(4), 2), 100 + 20 + 6);
    }
}
