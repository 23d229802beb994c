//! The folder of the disk tier: a backend that does the scheduler's ops on it, and leaves all others to the real one.

use super::prompt::Identity;
use crate::backend::{Backend, IsWanted, Pick, Sign};
use crate::core::{
    BlobId, DecodeOutcome, DiskEntry, Drawn, EmbedOutcome, EmbedPart, Limits, Op, OpResult, RequestId, Row, Token,
    TransferId,
};
use crate::error::Error;
use crate::options::{Key, PathName, StartOptions};
use crate::store::{self, Directory, EntryKey, NewEntry, StoreError};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A backend, and a folder where the options name one.
pub(super) struct WithDisk {
    inner: Box<dyn Backend>,
    directory: Option<Directory>,
    /// The scheduler's numbers.
    keys: BTreeMap<BlobId, EntryKey>,
}

/// What is wrong with the folder that the options name can be told before a model is loaded.
///
/// # Errors
/// [`Error::Option`].
pub(super) fn check(options: &StartOptions) -> Result<(), Error> {
    let Some(PathName(path)) = &options.prompt_cache_dir else { return Ok(()) };
    if options.prompt_cache_ram_mb == Some(0) {
        return Err(wrong("what is on disk passes through the RAM tier: prompt_cache_ram_mb must not be 0"));
    }
    match fs::metadata(in_home(path)) {
        Ok(metadata) if !metadata.is_dir() => Err(wrong(&format!("{path} is no folder"))),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// The folder that the options name, with what is in it of this model and kind of context; nothing where they name none.
///
/// # Errors
/// [`Error::Option`] where it may not be used, or its budget is of no use.
pub(super) fn open(options: &StartOptions, limits: &Limits, identity: &Identity) -> Result<Option<Directory>, Error> {
    let Some(PathName(path)) = &options.prompt_cache_dir else { return Ok(None) };
    let max_bytes = u64::from(options.prompt_cache_dir_mb) << 20;
    let least = limits.state.bytes(limits.memory, limits.block);
    if least > max_bytes {
        let mb = options.prompt_cache_dir_mb;
        let (what, needed) = (if limits.block > 0 { "a block of tokens" } else { "a sequence" }, (least >> 20) + 1);
        return Err(Error::Option(format!(
            "prompt_cache_dir_mb: {mb} MiB hold nothing of this model: {what} takes {needed} MiB at least"
        )));
    }
    let opened = store::open_part(&in_home(path), identity(limits)?, max_bytes);
    opened.map(Some).map_err(|error| wrong(&error.to_string()))
}

fn wrong(what: &str) -> Error {
    Error::Option(format!("prompt_cache_dir: {what}"))
}

/// A path that begins with `~/` is in the user's home.
fn in_home(path: &str) -> PathBuf {
    let rest = path.strip_prefix("~/").or_else(|| (path == "~").then_some(""));
    match rest.zip(std::env::home_dir()) {
        Some((rest, home)) => home.join(rest),
        None => path.into(),
    }
}

impl WithDisk {
    /// Put a folder under a backend; with what the scheduler has to know of it.
    pub(super) fn new(inner: Box<dyn Backend>, directory: Option<Directory>) -> (Self, Vec<DiskEntry>) {
        let (mut keys, mut ids, mut entries) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        let mut found: Vec<_> = directory.iter().flat_map(Directory::entries).collect();
        found.sort_unstable_by_key(|(entry, used)| (*used, entry.key));
        let mut found: Vec<_> = found.into_iter().map(|(entry, _)| entry).zip(0..).collect();
        // A parent ends before its children begin.
        found.sort_unstable_by_key(|(entry, _)| entry.from);
        for ((entry, rank), id) in found.into_iter().zip((0..).map(BlobId)) {
            keys.insert(id, entry.key);
            ids.insert(entry.key, id);
            let parent = entry.parent.and_then(|parent| ids.get(&parent).copied());
            let (scope, tokens) = (entry.scope.clone().map(Key), entry.tokens.as_slice().into());
            entries.push(DiskEntry { id, parent, scope, tokens, n_bytes: entry.n_bytes, rank });
        }
        (Self { inner, directory, keys }, entries)
    }

    /// Another backend takes the place of one that was lost. What is in the folder stays.
    pub(super) fn replace(&mut self, inner: Box<dyn Backend>) {
        self.inner = inner;
    }

    fn store(
        &mut self,
        blob: BlobId,
        entry: BlobId,
        parent: Option<BlobId>,
        scope: Option<&Key>,
        from: u32,
        tokens: &[Token],
    ) -> Result<u64, String> {
        let gone = || "what it stands on is not there".to_string();
        let parent = parent.map(|parent| self.keys.get(&parent).copied().ok_or_else(gone)).transpose()?;
        let export = Op::Export { transfer: TransferId(0), tokens: Arc::default(), blobs: vec![blob] };
        let Some(OpResult::Exported(mut states)) = self.inner.prepare(&[export]).pop() else {
            return Err("the backend gave no state".into());
        };
        let state = states.pop().flatten().ok_or("it is not in RAM any more")?;
        let new = NewEntry { parent, scope: scope.map(|scope| scope.0.clone()), from, tokens: tokens.to_vec() };
        let directory = self.directory.as_mut().ok_or("there is no folder")?;
        let key = directory.put(new, &state).map_err(|error| error.to_string())?;
        self.keys.insert(entry, key);
        directory.entry(key).map(|entry| entry.n_bytes).ok_or_else(gone)
    }

    fn load(&mut self, entry: BlobId, blob: BlobId, from: u32, len: u32) -> Result<OpResult, OpResult> {
        let there = self.keys.get(&entry).zip(self.directory.as_mut());
        let (key, directory) = there.ok_or_else(|| OpResult::Lost("it is not on disk".into()))?;
        let state = directory.get(*key).map_err(|error| {
            let is_gone = error.is_lasting() || matches!(error, StoreError::NoEntry { .. });
            if is_gone { OpResult::Lost(error.to_string()) } else { OpResult::Refused(error.to_string()) }
        })?;
        let taken = self.inner.prepare(&[Op::Import { blob, from, len, state }]).pop();
        match taken {
            Some(OpResult::Refused(reason)) => Err(OpResult::Lost(reason)),
            Some(taken) => Ok(taken),
            None => Err(OpResult::Refused("the backend gave no answer".into())),
        }
    }

    fn obey(&mut self, op: &Op) -> OpResult {
        if let Op::Store { blob, entry, parent, scope, from, tokens } = op {
            let stored = self.store(*blob, *entry, *parent, scope.as_ref(), *from, tokens);
            return stored.map_or_else(OpResult::Refused, |n_bytes| OpResult::Saved { n_bytes });
        }
        if let Op::Load { entry, blob, from, len } = op {
            return self.load(*entry, *blob, *from, *len).unwrap_or_else(|refused| refused);
        }
        let Some(directory) = &mut self.directory else { return OpResult::Done };
        if let Op::Touch(entries) = op {
            for key in entries.iter().filter_map(|entry| self.keys.get(entry)) {
                directory.note_use(*key);
            }
        }
        if let Op::Discard(entry) = op
            && let Some(key) = self.keys.remove(entry)
        {
            // A file that cannot be deleted is found by who opens the folder next.
            let _ = directory.remove(key);
        }
        OpResult::Done
    }
}

const fn is_of_disk(op: &Op) -> bool {
    matches!(op, Op::Store { .. } | Op::Load { .. } | Op::Discard(_) | Op::Touch(_))
}

impl Backend for WithDisk {
    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn prepare(&mut self, ops: &[Op]) -> Vec<OpResult> {
        let mut results = Vec::with_capacity(ops.len());
        for run in ops.chunk_by(|a, b| is_of_disk(a) == is_of_disk(b)) {
            if run.first().is_some_and(is_of_disk) {
                results.extend(run.iter().map(|op| self.obey(op)));
            } else {
                results.extend(self.inner.prepare(run));
            }
        }
        results
    }

    fn decode(&mut self, rows: &[Row]) -> DecodeOutcome {
        self.inner.decode(rows)
    }

    fn embed(&mut self, parts: &[EmbedPart]) -> EmbedOutcome {
        self.inner.embed(parts)
    }

    fn offered(&self, request: RequestId) -> Option<(u64, Vec<f32>)> {
        self.inner.offered(request)
    }

    fn settle(&mut self, request: RequestId, pick: Pick) -> Result<Drawn, Error> {
        self.inner.settle(request, pick)
    }

    fn abort_flag(&self) -> Option<Arc<AtomicBool>> {
        self.inner.abort_flag()
    }

    fn observe(&mut self, observer: Arc<dyn Fn(Sign) + Send + Sync>) {
        self.inner.observe(observer);
    }

    fn ask_whether_wanted(&mut self, is_wanted: IsWanted) {
        self.inner.ask_whether_wanted(is_wanted);
    }

    fn loss(&mut self) -> Option<Error> {
        self.inner.loss()
    }
}
