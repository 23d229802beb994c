//! KV state on disk: sessions that a user saves ([`mod@file`]), and a cache tier below RAM ([`directory`]).
//!
//! Free of llama.cpp, of the scheduler and of Python: a state is bytes, a prefix is tokens, and whether both belong to
//! the model at hand is decided by a [`fingerprint`].
//!
//! One hash, BLAKE3, serves fingerprints, names and checksums: a state may have gigabytes, of which a CRC of 32 bits
//! would let damage pass once in four billion times, and it is faster than SHA-256 where the processor has no
//! instructions for that. None of it is a signature: who may write the files may also forge them, so lengths are never
//! trusted, whatever a checksum says.

mod codec;
pub mod directory;
mod disk;
mod entry;
pub mod error;
pub mod file;
pub mod fingerprint;
mod frame;
mod index;
mod root;
#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]
mod scratch;

pub use directory::{Directory, Entry, EntryKey, NewEntry};
pub use error::StoreError;
pub use file::{Part, SavedPrefix};
pub use fingerprint::Fingerprint;
pub use root::open_part;
