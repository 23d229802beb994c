//! A folder as a cache tier below RAM: entries named by what they hold the state of, least recently used out first.
//!
//! Each entry is a file, whole or absent. Nothing is synced: after a loss of power files may be missing or damaged, which
//! their checksums tell. When an entry was used last is its file's time, so that the order of eviction outlives the
//! process; no clock is read: times only follow each other.

pub use super::entry::{Entry, EntryKey, NewEntry};

use super::disk::{self, Durability, Lock};
use super::entry::{self, OpenEntry};
use super::error::StoreError;
use super::fingerprint::Fingerprint;
use super::index::Index;
use super::root::part_name;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub(super) const LOCK_NAME: &str = "lock";
/// Times that are given within one tick of the file system's clock are ahead of it, but not so far. Unit: microseconds.
const FAR: u64 = 3_600_000_000;

/// An open cache folder of one model and kind of context. Nobody else has it open.
pub struct Directory {
    folder: PathBuf,
    fingerprint: Fingerprint,
    max_bytes: u64,
    index: Index,
    /// The latest time that a file was given. Unit: microseconds.
    clock: u64,
    dropped: Vec<EntryKey>,
    _lock: Lock,
}

impl std::fmt::Debug for Directory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Directory")
            .field("folder", &self.folder)
            .field("n_bytes", &self.n_bytes())
            .finish_non_exhaustive()
    }
}

/// What a scan found: entries by key, with the time of their last use.
type Found = BTreeMap<EntryKey, (Entry, u64)>;

impl Directory {
    /// Open `root/<first 16 digits of the fingerprint>`, and make it where it is not there.
    ///
    /// Names and headers are read, states are not. What an interrupted write left, what is damaged or of another version
    /// or model, and what stands on that, is deleted; then as much as exceeds the budget. Files with other names than
    /// the store gives stay.
    ///
    /// # Errors
    /// [`StoreError::InUse`] while another has it open, here or in another process of this machine; [`StoreError::Io`].
    pub fn open(root: &Path, fingerprint: Fingerprint, max_bytes: u64) -> Result<Self, StoreError> {
        Self::open_at(root.join(part_name(fingerprint)), fingerprint, max_bytes)
    }

    /// The same of a folder that is named whole.
    pub(super) fn open_at(folder: PathBuf, fingerprint: Fingerprint, max_bytes: u64) -> Result<Self, StoreError> {
        disk::make_private_folder(&folder).map_err(|e| StoreError::io(&folder, &e))?;
        let lock_path = folder.join(LOCK_NAME);
        let lock = Lock::take(&lock_path).map_err(|e| StoreError::io(&lock_path, &e))?;
        let Some(mut lock) = lock else { return Err(StoreError::InUse { path: folder }) };
        let now = lock.now().map(disk::micros);
        let index = Index::default();
        let mut directory = Self { folder, fingerprint, max_bytes, index, clock: 0, dropped: Vec::new(), _lock: lock };
        let mut found = directory.scan()?;
        if let Some(now) = now {
            // What follows a time from the far future could not be written any more, and the order would be lost.
            for (_, used) in found.values_mut().filter(|(_, used)| *used > now.saturating_add(FAR)) {
                *used = now;
            }
        }
        directory.clock = found.values().map(|(_, used)| *used).chain(now).max().unwrap_or(0);
        directory.adopt(found);
        directory.evict_to(max_bytes, None)?;
        directory.dropped.clear();
        Ok(directory)
    }

    /// Read the headers of all entries, and delete what is not one.
    fn scan(&self) -> Result<Found, StoreError> {
        let mut found = Found::new();
        let io_error = |e| StoreError::io(&self.folder, &e);
        for file in fs::read_dir(&self.folder).map_err(io_error)? {
            let name = file.map_err(io_error)?.file_name();
            let Some(name) = name.to_str() else { continue };
            let path = self.folder.join(name);
            if disk::is_temporary(name) {
                remove_if_possible(&path);
            }
            let Some(key) = EntryKey::of_file(name) else { continue };
            match OpenEntry::open(&path, key, &self.fingerprint) {
                Ok(open) => {
                    let used = open.used();
                    found.insert(key, (open.entry, used));
                }
                // Of what may not be read nothing can be known, and its name is needed.
                Err(e) if e.is_lasting() || e.is_refusal() => remove_if_possible(&path),
                Err(e) => return Err(e),
            }
        }
        Ok(found)
    }

    /// Take in what a scan found, parents before children; what has no parent of its own is deleted.
    ///
    /// No loop can be among them: a key is a hash of its parent's.
    fn adopt(&mut self, mut found: Found) {
        let mut order: Vec<_> = found.iter().map(|(key, (entry, _))| (entry.from, *key)).collect();
        // A child begins behind its parent.
        order.sort_unstable();
        for (_, key) in order {
            let Some((entry, used)) = found.remove(&key) else { continue };
            if self.may_follow(entry.parent, entry.from, entry.scope.as_deref()) {
                self.index.add(entry, used);
            } else {
                remove_if_possible(&self.path(key));
            }
        }
    }

    /// Whether an entry belongs behind its parent, if it has one.
    fn may_follow(&self, parent: Option<EntryKey>, from: u32, scope: Option<&str>) -> bool {
        parent.is_none_or(|parent| self.index.get(parent).is_some_and(|parent| parent.is_followed_by(from, scope)))
    }

    fn path(&self, key: EntryKey) -> PathBuf {
        self.folder.join(key.file_name())
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The entries, in no order that means anything, each with when it was used last: a number that only orders them.
    pub fn entries(&self) -> impl Iterator<Item = (&Entry, u64)> {
        self.index.entries()
    }

    /// One entry.
    pub fn entry(&self, key: EntryKey) -> Option<&Entry> {
        self.index.get(key)
    }

    /// What all files take together; never more than the budget. Unit: bytes.
    pub fn n_bytes(&self) -> u64 {
        self.index.n_bytes()
    }

    /// How many entries there are.
    pub fn n_entries(&self) -> usize {
        self.index.len()
    }

    /// What the last call of [`put`](Self::put), [`get`](Self::get) or [`remove`](Self::remove) dropped, whether it
    /// succeeded or not: for who keeps an index.
    pub fn dropped(&self) -> &[EntryKey] {
        &self.dropped
    }

    /// Keep a state. What is there already is only noted as used. What was least recently used goes for its room,
    /// children before their parents, but nothing that the entry stands on.
    ///
    /// The room is made first, so that the budget holds at every moment: a write that fails may have cost older entries.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] for an entry that does not begin where its parent ends or is of another scope;
    /// [`StoreError::NoEntry`] where its parent is not there (any more); [`StoreError::NoRoom`] where it and what it
    /// stands on exceed the budget; [`StoreError::Io`], for a full disk among others: then the entry is absent.
    pub fn put(&mut self, new: NewEntry, state: &[u8]) -> Result<EntryKey, StoreError> {
        self.dropped.clear();
        let folder = self.folder.clone();
        let invalid = |what| StoreError::invalid(&folder, what);
        entry::check(&new).map_err(invalid)?;
        if let Some(parent) = new.parent.filter(|parent| self.index.get(*parent).is_none()) {
            return Err(StoreError::NoEntry { path: folder, key: parent });
        }
        if !self.may_follow(new.parent, new.from, new.scope.as_deref()) {
            return Err(invalid("it does not begin where its parent ends, or is of another scope"));
        }
        let key = new.key();
        if self.index.get(key).is_some() {
            match self.touch(key) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => self.drop_damaged(key),
                _ => return Ok(key),
            }
        }
        let framed = entry::framed(&self.fingerprint, &new, state).map_err(invalid)?;
        let n_bytes = framed.len() as u64 + state.len() as u64;
        if self.index.bytes_up_to(new.parent) + n_bytes > self.max_bytes {
            return Err(StoreError::NoRoom { path: folder, n_bytes, max_bytes: self.max_bytes });
        }
        self.evict_to(self.max_bytes - n_bytes, new.parent)?;
        disk::write_whole(&self.path(key), &[&framed, state], Durability::Cached)?;
        let NewEntry { parent, scope, from, tokens } = new;
        self.index.add(Entry { key, parent, scope, from, tokens, n_bytes }, self.clock);
        // If it has vanished by now, the next reader will notice.
        let _ = self.touch(key);
        Ok(key)
    }

    /// Read a state, and note that it was used. It is what was put, or an error.
    ///
    /// # Errors
    /// [`StoreError::NoEntry`]. If the file has vanished ([`StoreError::Io`], not found), is damaged or is another than
    /// was indexed ([`StoreError::Damaged`] and its like), the entry is dropped with all that stand on it. At other
    /// errors ([`StoreError::Io`]) it stays.
    pub fn get(&mut self, key: EntryKey) -> Result<Vec<u8>, StoreError> {
        self.dropped.clear();
        let Some(entry) = self.index.get(key) else {
            return Err(StoreError::NoEntry { path: self.folder.clone(), key });
        };
        let path = self.path(key);
        let read = OpenEntry::open(&path, key, &self.fingerprint).and_then(|open| {
            let is_same = open.entry == *entry;
            if is_same { open.state(&path) } else { Err(StoreError::damaged(&path, "it is not what it was")) }
        });
        match &read {
            Ok(_) => drop(self.touch(key)),
            Err(e) if e.is_lasting() => self.drop_damaged(key),
            Err(_) => {}
        }
        read
    }

    /// Note that an entry was used; what is not there is not noted.
    pub fn note_use(&mut self, key: EntryKey) {
        if self.index.get(key).is_some() {
            // A file that has vanished is found by who reads it.
            let _ = self.touch(key);
        }
    }

    /// Drop an entry and all that stand on it. One that is not there is no error.
    ///
    /// # Errors
    /// [`StoreError::Io`] where a file cannot be deleted: it stays, and so does what it stands on.
    pub fn remove(&mut self, key: EntryKey) -> Result<(), StoreError> {
        self.dropped.clear();
        self.index.with_descendants(key).into_iter().try_for_each(|key| self.delete(key))
    }

    /// Delete the file of an entry without children, and forget it.
    fn delete(&mut self, key: EntryKey) -> Result<(), StoreError> {
        let path = self.path(key);
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(StoreError::io(&path, &e)),
            _ => {}
        }
        self.index.remove(key);
        self.dropped.push(key);
        Ok(())
    }

    /// Forget an entry that is of no use, with all that stand on it, whether their files can be deleted or not: what
    /// cannot be is found by the next scan.
    fn drop_damaged(&mut self, key: EntryKey) {
        for key in self.index.with_descendants(key) {
            remove_if_possible(&self.path(key));
            self.index.remove(key);
            self.dropped.push(key);
        }
    }

    fn evict_to(&mut self, max_bytes: u64, spared: Option<EntryKey>) -> Result<(), StoreError> {
        while self.index.n_bytes() > max_bytes {
            let Some(next) = self.index.next_out(spared) else { break };
            self.delete(next)?;
        }
        Ok(())
    }

    /// Note that an entry was used; where its file cannot be told, as long as this process lives.
    fn touch(&mut self, key: EntryKey) -> io::Result<()> {
        let touched = disk::touch(&self.path(key), self.clock);
        self.clock = *touched.as_ref().unwrap_or(&self.clock.saturating_add(1));
        self.index.touch(key, self.clock);
        touched.map(|_| ())
    }
}

fn remove_if_possible(path: &Path) {
    // What cannot be deleted, a folder among others, is nobody's entry.
    let _ = fs::remove_file(path);
}

#[cfg(test)]
#[path = "directory_tests.rs"]
#[expect(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]
mod tests;
