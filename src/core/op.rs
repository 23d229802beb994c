//! What is done before a forward pass: to sequences, samplers, saved states and threads.

use super::ids::{BlobId, RequestId, SeqId, Token};
use super::params::SamplingParams;
use super::transfer::TransferId;
use crate::options::Key;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;
use std::sync::Arc;

/// One thing to do before a forward pass. Carried out in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Op {
    /// Make the request's sampler. It lives until `Close`, also while the request holds no sequence.
    Open {
        /// Whose sampler.
        request: RequestId,
        /// How it draws.
        sampling: SamplingParams,
        /// For penalties.
        prompt: Arc<[Token]>,
        /// Tokens that end the request, beside the model's own.
        stop_tokens: Arc<[Token]>,
    },
    /// Drop the request's sampler.
    Close(RequestId),
    /// Let `to`, which is empty, hold the first `len` positions of `from`: shared with it where cells are a pool.
    Copy {
        /// The donor.
        from: SeqId,
        /// The adopter.
        to: SeqId,
        /// Positions `0..len`.
        len: u32,
    },
    /// Forget positions `len..` of a sequence. Recurrent memories may refuse.
    Trim {
        /// Which sequence.
        seq: SeqId,
        /// What stays.
        len: u32,
    },
    /// Forget a sequence. Never fails.
    Remove(SeqId),
    /// Keep a copy of one block of a sequence in RAM, or of all that it holds.
    Save {
        /// Which sequence.
        seq: SeqId,
        /// The block's first position; 0 for a whole sequence.
        from: u32,
        /// Positions: [`super::Limits::block`] at most, or all of the sequence.
        len: u32,
        /// Under which number.
        blob: BlobId,
    },
    /// Append blocks to a sequence that holds `from` positions, or give an empty one a whole state. The copies stay.
    Restore {
        /// Which sequence.
        seq: SeqId,
        /// Where the first block belongs.
        from: u32,
        /// The blocks, in order.
        blobs: Vec<BlobId>,
    },
    /// Drop a copy in RAM.
    Forget(BlobId),
    /// Give copies in RAM out of hand, as bytes. They stay.
    Export {
        /// For whom.
        transfer: TransferId,
        /// What they are of; for the core.
        tokens: Arc<[Token]>,
        /// Which.
        blobs: Vec<BlobId>,
    },
    /// Take bytes that were given out once, as a copy in RAM. What they hold is not trusted before it is restored.
    Import {
        /// Under which number.
        blob: BlobId,
        /// The first position.
        from: u32,
        /// Positions.
        len: u32,
        /// The bytes.
        #[serde(with = "serde_bytes")]
        state: Vec<u8>,
    },
    /// Keep a copy in RAM on disk too, behind another that is there.
    Store {
        /// Which copy.
        blob: BlobId,
        /// Under which number on disk.
        entry: BlobId,
        /// What it stands on, on disk.
        parent: Option<BlobId>,
        /// Who may reuse it.
        scope: Option<Key>,
        /// The first position.
        from: u32,
        /// What it is the state of.
        tokens: Arc<[Token]>,
    },
    /// Take what is on disk into RAM. It stays on disk.
    Load {
        /// Which.
        entry: BlobId,
        /// Under which number in RAM.
        blob: BlobId,
        /// The first position.
        from: u32,
        /// Positions.
        len: u32,
    },
    /// Drop what is on disk; one that is not there is no error.
    Discard(BlobId),
    /// Note on disk that these were used, the last one last.
    Touch(Vec<BlobId>),
    /// Let passes have so many threads, [`super::Limits::n_threads`] at most, from the next one on.
    Threads(u32),
    /// Move cells from the top of the buffer into holes further down, so many at most: each pass looks at all cells up to
    /// the highest one in use. What sequences hold stays the same.
    Compact {
        /// Unit: cells.
        n_cells: u32,
    },
}

/// What came of one [`Op`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OpResult {
    /// It is done.
    Done,
    /// It is not, and nothing changed; the text says why.
    Refused(String),
    /// What is on disk is not there, or of no use; the text says why.
    Lost(String),
    /// A block is saved, stored or loaded.
    Saved {
        /// What it takes. Unit: bytes.
        n_bytes: u64,
    },
    /// Copies as bytes, in order; none for one that is not there.
    Exported(Vec<Option<ByteBuf>>),
    /// Blocks are restored.
    Restored {
        /// So many, from the first.
        n_blobs: u32,
        /// Positions that came with them.
        n_tokens: u32,
        /// Whether the next one is of no use; otherwise there was no room for it.
        lost: bool,
    },
}

impl OpResult {
    /// What was saved takes so many bytes; or why nothing was saved, and whether its source is of no use any more.
    pub(super) fn into_saved(self) -> Result<u64, (String, bool)> {
        match self {
            Self::Saved { n_bytes } => Ok(n_bytes),
            Self::Refused(reason) => Err((reason, false)),
            Self::Lost(reason) => Err((reason, true)),
            Self::Done | Self::Exported(_) | Self::Restored { .. } => Err(("nothing was saved".into(), false)),
        }
    }
}
