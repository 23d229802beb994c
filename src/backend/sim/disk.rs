//! The disk tier of the simulated backend: a map, which a restart keeps.

use super::cells::Saved;
use crate::core::{BlobId, DiskEntry, Token};
use crate::options::Key;
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Debug)]
struct Stored {
    saved: Saved,
    parent: Option<BlobId>,
    scope: Option<Key>,
    /// The position behind its last.
    end: u32,
    tokens: Arc<[Token]>,
    /// Unit: bytes.
    n_bytes: u64,
}

/// What is to be stored: state, parent, scope, first position, tokens.
pub(super) type New<'a> = (&'a Saved, Option<BlobId>, Option<Key>, u32, &'a Arc<[Token]>);

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

    /// Store a state; false where what it stands on is not there.
    pub(super) fn store(&mut self, entry: BlobId, new: New<'_>, n_bytes: u64) -> bool {
        let (saved, parent, scope, from, tokens) = new;
        if let Some(parent) = parent {
            let Some(parent) = self.0.get(&parent) else { return false };
            assert_eq!((parent.end, &parent.scope), (from, &scope), "an entry follows its parent");
        }
        assert!(parent.is_some() || from == 0, "an entry without a parent is a beginning");
        assert_eq!(saved.len() as usize, tokens.len(), "a state is that of its tokens");
        let (saved, end, tokens) = (saved.clone(), from + saved.len(), Arc::clone(tokens));
        let twice = self.0.insert(entry, Stored { saved, parent, scope, end, tokens, n_bytes });
        assert!(twice.is_none(), "entry {entry} is stored twice");
        true
    }

    /// The state of an entry, and what it takes.
    pub(super) fn load(&self, entry: BlobId, from: u32, len: u32) -> Option<(Saved, u64)> {
        let stored = self.0.get(&entry)?;
        assert_eq!((stored.end, stored.saved.len()), (from + len, len), "what is stored is what is loaded");
        Some((stored.saved.clone(), stored.n_bytes))
    }

    /// Drop an entry, which nothing may stand on for longer than the works under way.
    pub(super) fn discard(&mut self, entry: BlobId) {
        self.0.remove(&entry);
    }
}
