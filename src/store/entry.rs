//! One entry of a [`Directory`](super::Directory): its key, its header, its file.

use super::codec::{Field, Reader, Writer};
use super::disk::{self, Links};
use super::error::StoreError;
use super::fingerprint::Fingerprint;
use super::frame::{self, Checksum, Kind, Opened};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;

const KIND: Kind = Kind { magic: *b"LLBATCHB", version: 1 };
const SUFFIX: &str = ".kv";

/// Names an entry by what it stands for: a hash of its parent's key, its scope, its first position and its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EntryKey(pub u128);

impl EntryKey {
    /// The key that an entry has, or would have: who knows the tokens of a prefix finds its entries without a search.
    pub fn of(parent: Option<Self>, scope: Option<&str>, from: u32, tokens: &[i32]) -> Self {
        let mut out = Writer::default();
        out.bytes(b"llama-batch entry 1");
        parent_out(&mut out, parent);
        out.text(scope);
        out.u32(from);
        out.tokens(tokens);
        let mut half = [0; 16];
        half.copy_from_slice(&frame::checksum(&out.0)[..16]);
        Self(u128::from_be_bytes(half))
    }

    /// The name of its file.
    pub(super) fn file_name(self) -> String {
        format!("{self}{SUFFIX}")
    }

    /// The key of a file; nothing for other names, and for those that only look alike.
    pub(super) fn of_file(name: &str) -> Option<Self> {
        let key = Self(u128::from_str_radix(name.strip_suffix(SUFFIX)?, 16).ok()?);
        (key.file_name() == name).then_some(key)
    }
}

impl fmt::Display for EntryKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// What an entry holds the state of: a block of tokens behind its parent's, or a whole prefix (no parent, from 0).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewEntry {
    /// The entry that holds what comes before.
    pub parent: Option<EntryKey>,
    /// The scope that it may be reused in: its parent's.
    pub scope: Option<String>,
    /// The first position: where its parent ends.
    pub from: u32,
    /// At least one.
    pub tokens: Vec<i32>,
}

impl NewEntry {
    /// Its key.
    pub fn key(&self) -> EntryKey {
        EntryKey::of(self.parent, self.scope.as_deref(), self.from, &self.tokens)
    }
}

/// An entry that is on the disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its key.
    pub key: EntryKey,
    /// The entry that holds what comes before.
    pub parent: Option<EntryKey>,
    /// The scope that it may be reused in.
    pub scope: Option<String>,
    /// The first position.
    pub from: u32,
    /// The tokens.
    pub tokens: Vec<i32>,
    /// What its file takes, header and all. Unit: bytes.
    pub n_bytes: u64,
}

impl Entry {
    /// The position behind its last.
    pub(super) fn end(&self) -> u64 {
        u64::from(self.from) + self.tokens.len() as u64
    }

    /// Whether an entry belongs right behind this one.
    pub(super) fn is_followed_by(&self, from: u32, scope: Option<&str>) -> bool {
        self.end() == u64::from(from) && self.scope.as_deref() == scope
    }
}

fn parent_out(out: &mut Writer, parent: Option<EntryKey>) {
    out.bytes(&[u8::from(parent.is_some())]);
    if let Some(parent) = parent {
        out.bytes(&parent.0.to_be_bytes());
    }
}

/// The beginning of an entry's file.
pub(super) fn framed(fingerprint: &Fingerprint, entry: &NewEntry, state: &[u8]) -> Field<Vec<u8>> {
    let mut out = Writer::default();
    out.bytes(&fingerprint.0);
    parent_out(&mut out, entry.parent);
    out.text(entry.scope.as_deref());
    out.u32(entry.from);
    out.tokens(&entry.tokens);
    out.u64(state.len() as u64);
    out.bytes(&frame::checksum(state));
    frame::frame(&KIND, &out.0)
}

/// An entry's file, at its state.
pub(super) struct OpenEntry {
    pub(super) entry: Entry,
    opened: Opened,
    sum: Checksum,
}

impl OpenEntry {
    /// Open a file and read its header.
    pub(super) fn open(path: &Path, key: EntryKey, expected: &Fingerprint) -> Result<Self, StoreError> {
        let opened = frame::open(&KIND, path, Links::Refuse)?;
        let damaged = |what| StoreError::damaged(path, what);
        let mut fields = Reader(&opened.header);
        if Fingerprint(fields.array().map_err(damaged)?) != *expected {
            return Err(StoreError::OtherModel { path: path.into() });
        }
        let (new, n_state, sum) = read_header(fields).map_err(damaged)?;
        if new.key() != key {
            return Err(damaged("its name is not that of its contents"));
        }
        if n_state != opened.n_behind {
            return Err(damaged("its length is not that of its state"));
        }
        let n_bytes = frame::n_bytes(opened.header.len()) + n_state;
        let NewEntry { parent, scope, from, tokens } = new;
        Ok(Self { entry: Entry { key, parent, scope, from, tokens, n_bytes }, opened, sum })
    }

    /// When it was used last, by its file's time.
    pub(super) fn used(&self) -> u64 {
        self.opened.file.metadata().and_then(|metadata| metadata.modified()).map_or(0, disk::micros)
    }

    /// Read the state.
    pub(super) fn state(mut self, path: &Path) -> Result<Vec<u8>, StoreError> {
        frame::read_state(&mut self.opened.file, path, self.opened.n_behind, &self.sum)
    }
}

/// What stands behind the fingerprint.
fn read_header(mut fields: Reader<'_>) -> Field<(NewEntry, u64, Checksum)> {
    let parent = if fields.is_some()? { Some(EntryKey(u128::from_be_bytes(fields.array()?))) } else { None };
    let new = NewEntry { parent, scope: fields.text()?, from: fields.u32()?, tokens: fields.tokens()? };
    let rest = (fields.u64()?, fields.array()?);
    fields.end()?;
    check(&new)?;
    Ok((new, rest.0, rest.1))
}

/// What an entry must be by itself, whatever its parent.
pub(super) fn check(new: &NewEntry) -> Field<()> {
    if new.tokens.is_empty() {
        return Err("it has no tokens");
    }
    if u64::from(new.from) + new.tokens.len() as u64 > u64::from(u32::MAX) {
        return Err("it goes beyond all positions");
    }
    if (new.from == 0) != new.parent.is_none() {
        return Err("it begins at 0, or behind its parent");
    }
    Ok(())
}
