//! Which entries a directory has, and in which order they go.

use super::entry::{Entry, EntryKey};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug)]
struct Slot {
    entry: Entry,
    /// How many entries come before it.
    depth: u32,
    /// Unit: microseconds, of the files' times.
    used: u64,
}

/// A forest: an entry stands on its parent, which does not go before it.
#[derive(Debug, Default)]
pub(super) struct Index {
    slots: BTreeMap<EntryKey, Slot>,
    /// Parent and child.
    children: BTreeSet<(EntryKey, EntryKey)>,
    /// Entries without children: least recently used first, and of those the deepest.
    leaves: BTreeSet<(u64, Reverse<u32>, EntryKey)>,
    n_bytes: u64,
}

fn leaf(slot: &Slot) -> (u64, Reverse<u32>, EntryKey) {
    (slot.used, Reverse(slot.depth), slot.entry.key)
}

impl Index {
    pub(super) fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn get(&self, key: EntryKey) -> Option<&Entry> {
        self.slots.get(&key).map(|slot| &slot.entry)
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (&Entry, u64)> {
        self.slots.values().map(|slot| (&slot.entry, slot.used))
    }

    /// Add an entry, whose parent is there and which is not.
    pub(super) fn add(&mut self, entry: Entry, used: u64) {
        let mut depth = 0;
        if let Some(parent) = entry.parent {
            if let Some(slot) = self.slots.get(&parent) {
                depth = slot.depth + 1;
                self.leaves.remove(&leaf(slot));
            }
            self.children.insert((parent, entry.key));
        }
        self.n_bytes += entry.n_bytes;
        let slot = Slot { entry, depth, used };
        self.leaves.insert(leaf(&slot));
        self.slots.insert(slot.entry.key, slot);
    }

    pub(super) fn touch(&mut self, key: EntryKey, used: u64) {
        if let Some(slot) = self.slots.get_mut(&key) {
            let was_leaf = self.leaves.remove(&leaf(slot));
            slot.used = used;
            if was_leaf {
                self.leaves.insert(leaf(slot));
            }
        }
    }

    /// Take out an entry, which has no children.
    pub(super) fn remove(&mut self, key: EntryKey) {
        let Some(slot) = self.slots.remove(&key) else { return };
        self.leaves.remove(&leaf(&slot));
        self.n_bytes -= slot.entry.n_bytes;
        let Some(parent) = slot.entry.parent else { return };
        self.children.remove(&(parent, key));
        if self.children_of(parent).next().is_none()
            && let Some(slot) = self.slots.get(&parent)
        {
            self.leaves.insert(leaf(slot));
        }
    }

    fn children_of(&self, parent: EntryKey) -> impl Iterator<Item = EntryKey> {
        let all = (parent, EntryKey(u128::MIN))..=(parent, EntryKey(u128::MAX));
        self.children.range(all).map(|(_, child)| *child)
    }

    /// An entry and all that stand on it, children before their parents.
    pub(super) fn with_descendants(&self, key: EntryKey) -> Vec<EntryKey> {
        let mut found: Vec<_> = self.slots.get_key_value(&key).map(|(key, _)| *key).into_iter().collect();
        let mut at = 0;
        while let Some(parent) = found.get(at).copied() {
            found.extend(self.children_of(parent));
            at += 1;
        }
        found.reverse();
        found
    }

    /// What an entry and all that it stands on take. Unit: bytes.
    pub(super) fn bytes_up_to(&self, key: Option<EntryKey>) -> u64 {
        let mut n_bytes = 0;
        let mut at = key;
        while let Some(entry) = at.and_then(|key| self.get(key)) {
            n_bytes += entry.n_bytes;
            at = entry.parent;
        }
        n_bytes
    }

    /// The next to go, `spared` excepted.
    pub(super) fn next_out(&self, spared: Option<EntryKey>) -> Option<EntryKey> {
        self.leaves.iter().map(|(.., key)| *key).find(|key| Some(*key) != spared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    impl Index {
        /// Tree, order and account, against their definitions.
        fn check(&self) {
            assert_eq!(self.entries().map(|(entry, _)| entry.n_bytes).sum::<u64>(), self.n_bytes);
            let pairs: BTreeSet<_> = self.entries().filter_map(|(entry, _)| Some((entry.parent?, entry.key))).collect();
            assert_eq!(pairs, self.children);
            let parents: BTreeSet<_> = pairs.iter().map(|(parent, _)| *parent).collect();
            assert!(parents.iter().all(|parent| self.slots.contains_key(parent)));
            let leaves = self.slots.values().filter(|slot| !parents.contains(&slot.entry.key)).map(leaf);
            assert_eq!(leaves.collect::<BTreeSet<_>>(), self.leaves);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn the_tree_stays_whole_whatever_happens(steps in prop::collection::vec((0_u8..4, 0_u128..12, 0_u128..12), 0..80)) {
            let mut index = Index::default();
            for (n, (what, key, parent)) in steps.into_iter().enumerate() {
                let (key, parent) = (EntryKey(key), EntryKey(parent));
                let has_children = index.children_of(key).next().is_some();
                match what {
                    0 | 1 if index.get(key).is_none() => {
                        let parent = (key != parent && index.get(parent).is_some()).then_some(parent);
                        let entry = Entry { key, parent, scope: None, from: 0, tokens: vec![1], n_bytes: n as u64 };
                        index.add(entry, n as u64);
                    }
                    2 if !has_children => index.remove(key),
                    3 => {
                        for key in index.with_descendants(key) {
                            index.remove(key);
                        }
                        prop_assert!(index.get(key).is_none());
                    }
                    _ => index.touch(key, n as u64),
                }
                index.check();
            }
        }
    }
}
