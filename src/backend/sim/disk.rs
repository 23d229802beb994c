//! The disk tier of the simulated backend: a map, which a restart keeps.

use super::cells::Saved;
use crate::core::{BlobId, DiskEntry, Token};
use crate::options::Key;
use std::collections::BTreeMap;
use std::sync::Arc;

/// One block on disk.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) saved: Saved,
    pub(super) parent: Option<BlobId>,
    pub(super) scope: Option<Key>,
    /// The first position.
    pub(super) from: u32,
    pub(super) tokens: Arc<[Token]>,
    /// Unit: bytes.
    pub(super) n_bytes: u64,
}

/// What is on the simulated disk.
#[derive(Debug, Default)]
pub struct SimDisk(BTreeMap<BlobId, Stored>);

impl SimDisk {
    /// Blocks on it.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What is on it.
    pub fn entries(&self) -> Vec<DiskEntry> {
        let entry = |(id, stored): (&BlobId, &Stored)| DiskEntry {
            id: *id,
            parent: stored.parent,
            scope: stored.scope.clone(),
            tokens: Arc::clone(&stored.tokens),
            n_bytes: stored.n_bytes,
            rank: id.0 as u32,
        };
        self.0.iter().map(entry).collect()
    }

    /// Store a block; false where what it stands on is not there.
    pub(super) fn store(&mut self, entry: BlobId, new: Stored) -> bool {
        assert_eq!(new.saved.len() as usize, new.tokens.len(), "a state is that of its tokens");
        if let Some(parent) = new.parent {
            let Some(parent) = self.0.get(&parent) else { return false };
            let end = parent.from + parent.saved.len();
            assert_eq!((end, &parent.scope), (new.from, &new.scope), "an entry follows its parent");
        } else {
            assert_eq!(new.from, 0, "an entry without a parent is a beginning");
        }
        assert!(self.0.insert(entry, new).is_none(), "entry {entry} is stored twice");
        true
    }

    /// The state of an entry, and what it takes.
    pub(super) fn load(&self, entry: BlobId, from: u32, len: u32) -> Option<(Saved, u64)> {
        let stored = self.0.get(&entry)?;
        assert_eq!((stored.from, stored.saved.len()), (from, len), "what is stored is what is loaded");
        Some((stored.saved.clone(), stored.n_bytes))
    }

    /// Drop an entry, which nothing may stand on for longer than the works under way.
    pub(super) fn discard(&mut self, entry: BlobId) {
        self.0.remove(&entry);
    }
}
