//! What can go wrong with files of KV state.

use std::io;
use std::path::{Path, PathBuf};

/// An error of the store. Each text stands by itself, and names the file or folder.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The operating system refused: no permission, no such file, a full disk.
    #[error("{}: {reason}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Which kind of error, for programs: [`io::ErrorKind::StorageFull`] for a full disk.
        kind: io::ErrorKind,
        /// The system's own words.
        reason: String,
    },
    /// A folder, pipe, socket or device stands where a file should.
    #[error("{} is not a regular file", path.display())]
    NotAFile {
        /// What stands there.
        path: PathBuf,
    },
    /// The file holds something else.
    #[error("{} is not a KV state that llama-batch saved", path.display())]
    NotOurs {
        /// The file.
        path: PathBuf,
    },
    /// The file was written by another version of llama-batch.
    #[error("{} has version {found} of its format; this llama-batch reads version {supported}", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// The version of the file.
        found: u32,
        /// The version that can be read.
        supported: u32,
    },
    /// The file's fingerprint is not the expected one.
    #[error("{} was saved with another model, or with other settings of its context", path.display())]
    OtherModel {
        /// The file.
        path: PathBuf,
    },
    /// The file is cut off, has bytes too many or differs from what was written.
    #[error("{} is damaged: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The folder is open already, here or in another process.
    #[error("{} is in use by another engine; give each engine a folder of its own", path.display())]
    InUse {
        /// The folder.
        path: PathBuf,
    },
    /// The folder's budget has no place for an entry, whatever else were evicted.
    #[error("{}: an entry of {n_bytes} bytes has no room in a budget of {max_bytes} bytes", path.display())]
    NoRoom {
        /// The folder.
        path: PathBuf,
        /// The entry's size. Unit: bytes.
        n_bytes: u64,
        /// The budget. Unit: bytes.
        max_bytes: u64,
    },
    /// The folder has no such entry, or no longer.
    #[error("{} holds no entry {key}", path.display())]
    NoEntry {
        /// The folder.
        path: PathBuf,
        /// The entry's key.
        key: super::EntryKey,
    },
    /// What was to be written contradicts itself: a bug of the caller.
    #[error("{} was not written: {what}", path.display())]
    Invalid {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
}

impl StoreError {
    pub(super) fn io(path: &Path, error: &io::Error) -> Self {
        Self::Io { path: path.into(), kind: error.kind(), reason: error.to_string() }
    }

    pub(super) fn damaged(path: &Path, what: impl Into<String>) -> Self {
        Self::Damaged { path: path.into(), what: what.into() }
    }

    pub(super) fn invalid(path: &Path, what: impl Into<String>) -> Self {
        Self::Invalid { path: path.into(), what: what.into() }
    }

    /// Whether the file may not be read.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self, Self::Io { kind: io::ErrorKind::PermissionDenied, .. })
    }

    /// Whether the file itself is of no use, or gone; otherwise the same call may succeed later.
    pub fn is_lasting(&self) -> bool {
        match self {
            Self::Io { kind, .. } => *kind == io::ErrorKind::NotFound,
            Self::NotAFile { .. }
            | Self::NotOurs { .. }
            | Self::Version { .. }
            | Self::OtherModel { .. }
            | Self::Damaged { .. } => true,
            Self::InUse { .. } | Self::NoRoom { .. } | Self::NoEntry { .. } | Self::Invalid { .. } => false,
        }
    }
}
