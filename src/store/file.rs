//! A saved session: the tokens of a prefix and its KV state, in one file.
//!
//! The layout, little-endian; nothing lies outside a checksum:
//!
//! ```text
//! magic (8) | version (u32) | length of the header (u32) | header | checksum of all before (32) | states, in order
//! header: fingerprint (32) | scope | session | tokens | number of parts (u32) | parts
//! part:   from (u32) | len (u32) | length of the state (u64) | checksum of the state (32)
//! ```

use super::codec::{Field, Reader, Writer};
use super::disk::{self, Durability, Links};
use super::error::StoreError;
use super::fingerprint::Fingerprint;
use super::frame::{self, Checksum, Kind};
use std::path::Path;

const KIND: Kind = Kind { magic: *b"LLBATCHS", version: 1 };

/// What is saved of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedPrefix {
    /// The model and the kind of context.
    pub fingerprint: Fingerprint,
    /// The scope that the prefix may be reused in.
    pub scope: Option<String>,
    /// The session that it belongs to.
    pub session: Option<String>,
    /// All tokens; those behind the last part have no state.
    pub tokens: Vec<i32>,
    /// The state of the first tokens, in parts that follow each other without gaps.
    pub parts: Vec<Part>,
}

/// The state of some tokens that follow each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The first position.
    pub from: u32,
    /// Unit: tokens; at least 1.
    pub len: u32,
    /// The state, as the backend gave it.
    pub state: Vec<u8>,
}

/// A part as the header tells of it.
struct PartHead {
    from: u32,
    len: u32,
    n_bytes: u64,
    sum: Checksum,
}

/// Parts begin at 0, leave no gap, hold something and end within the tokens.
fn check_parts(n_tokens: usize, parts: impl Iterator<Item = (u32, u32)>) -> Field<()> {
    let mut end = 0_u32;
    for (from, len) in parts {
        if from != end || len == 0 {
            return Err("its parts do not follow each other");
        }
        end = end.checked_add(len).ok_or("its parts do not follow each other")?;
    }
    if end as usize > n_tokens { Err("its parts go beyond its tokens") } else { Ok(()) }
}

/// Save a session. The file is for its owner alone, and on the disk when this returns; an existing one is replaced by
/// a whole one or not at all, and a failure leaves nothing behind.
///
/// # Errors
/// [`StoreError::Invalid`] for parts with gaps or beyond the tokens, or for more than 64 MiB of tokens and names;
/// [`StoreError::NotAFile`] where a folder, pipe or device stands at the path; [`StoreError::Io`].
pub fn write(path: &Path, prefix: &SavedPrefix) -> Result<(), StoreError> {
    let framed = check_parts(prefix.tokens.len(), prefix.parts.iter().map(|part| (part.from, part.len)))
        .and_then(|()| frame::frame(&KIND, &header(prefix)))
        .map_err(|what| StoreError::invalid(path, what))?;
    let mut pieces = vec![framed.as_slice()];
    pieces.extend(prefix.parts.iter().map(|part| part.state.as_slice()));
    disk::write_whole(path, &pieces, Durability::Synced)
}

fn header(prefix: &SavedPrefix) -> Vec<u8> {
    let mut out = Writer::default();
    out.bytes(&prefix.fingerprint.0);
    out.text(prefix.scope.as_deref());
    out.text(prefix.session.as_deref());
    out.tokens(&prefix.tokens);
    // At most one part for each token, of which a header has less than 2³².
    out.u32(prefix.parts.len() as u32);
    for part in &prefix.parts {
        out.u32(part.from);
        out.u32(part.len);
        out.u64(part.state.len() as u64);
        out.bytes(&frame::checksum(&part.state));
    }
    out.0
}

/// Read a saved session. It is what was written, or an error.
///
/// # Errors
/// [`StoreError::NotAFile`], [`StoreError::NotOurs`], [`StoreError::Version`]; [`StoreError::OtherModel`] where the
/// fingerprint is not the expected one; [`StoreError::Damaged`] for a file that is cut off, has bytes too many or does
/// not match its checksums; [`StoreError::Io`].
pub fn read(path: &Path, expected: &Fingerprint) -> Result<SavedPrefix, StoreError> {
    let mut opened = frame::open(&KIND, path, Links::Follow)?;
    let damaged = |what| StoreError::damaged(path, what);
    let mut fields = Reader(&opened.header);
    let fingerprint = Fingerprint(fields.array().map_err(damaged)?);
    if fingerprint != *expected {
        return Err(StoreError::OtherModel { path: path.into() });
    }
    let (mut prefix, heads) = read_header(fingerprint, fields).map_err(damaged)?;
    let n_states = heads.iter().try_fold(0_u64, |sum, head| sum.checked_add(head.n_bytes));
    match n_states.map(|n_states| n_states.cmp(&opened.n_behind)) {
        Some(std::cmp::Ordering::Equal) => {}
        Some(std::cmp::Ordering::Less) => return Err(damaged("it has bytes too many")),
        Some(std::cmp::Ordering::Greater) | None => return Err(damaged("it is cut off in its state")),
    }
    for head in heads {
        let state = frame::read_state(&mut opened.file, path, head.n_bytes, &head.sum)?;
        prefix.parts.push(Part { from: head.from, len: head.len, state });
    }
    Ok(prefix)
}

/// What stands behind the fingerprint. The parts' states are not read yet.
fn read_header(fingerprint: Fingerprint, mut fields: Reader<'_>) -> Field<(SavedPrefix, Vec<PartHead>)> {
    let (scope, session, tokens) = (fields.text()?, fields.text()?, fields.tokens()?);
    let n_parts = fields.u32()?;
    // Grown as parts are found: the number alone is not trusted.
    let mut heads = Vec::new();
    for _ in 0..n_parts {
        let head = PartHead { from: fields.u32()?, len: fields.u32()?, n_bytes: fields.u64()?, sum: fields.array()? };
        heads.push(head);
    }
    fields.end()?;
    check_parts(tokens.len(), heads.iter().map(|head| (head.from, head.len)))?;
    Ok((SavedPrefix { fingerprint, scope, session, tokens, parts: Vec::new() }, heads))
}
