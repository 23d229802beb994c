//! What every file of the store begins with: magic, version, length of the header, header, and their checksum.

use super::disk;
use super::error::StoreError;
use blake3::Hasher;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Room for sixteen million tokens. What says that it is longer is not read. Unit: bytes.
const MAX_HEADER: usize = 64 << 20;
/// Magic, version and length. Unit: bytes.
const N_BEFORE: usize = 16;
/// Unit: bytes.
const N_CHECKSUM: usize = 32;
/// States are read and hashed in pieces that the processor's cache holds. Unit: bytes.
const PIECE: u64 = 1 << 20;

/// Of 256 bits: damage goes unseen never, for all purposes.
pub(super) type Checksum = [u8; N_CHECKSUM];

pub(super) fn checksum(bytes: &[u8]) -> Checksum {
    blake3::hash(bytes).into()
}

/// A kind of file.
pub(super) struct Kind {
    pub(super) magic: [u8; 8],
    pub(super) version: u32,
}

/// A file whose header was read and is whole; it stands at the first byte behind that.
pub(super) struct Opened {
    pub(super) file: File,
    pub(super) header: Vec<u8>,
    /// What the file holds behind the header. Unit: bytes.
    pub(super) n_behind: u64,
}

/// What a header of this length takes in its file. Unit: bytes.
pub(super) const fn n_bytes(n_header: usize) -> u64 {
    (N_BEFORE + n_header + N_CHECKSUM) as u64
}

/// A header, ready to be written.
pub(super) fn frame(kind: &Kind, header: &[u8]) -> Result<Vec<u8>, &'static str> {
    if header.len() > MAX_HEADER {
        return Err("its tokens and names have more than 64 MiB");
    }
    let mut bytes = Vec::with_capacity(N_BEFORE + header.len() + N_CHECKSUM);
    bytes.extend_from_slice(&kind.magic);
    bytes.extend_from_slice(&kind.version.to_le_bytes());
    bytes.extend_from_slice(&(header.len() as u32).to_le_bytes());
    bytes.extend_from_slice(header);
    let sum = checksum(&bytes);
    bytes.extend_from_slice(&sum);
    Ok(bytes)
}

/// Open a file and read its header.
pub(super) fn open(kind: &Kind, path: &Path, links: disk::Links) -> Result<Opened, StoreError> {
    let opened = disk::open_regular(path, links).map_err(|e| StoreError::io(path, &e))?;
    let Some((mut file, size)) = opened else { return Err(StoreError::NotAFile { path: path.into() }) };
    let mut before = [0; N_BEFORE];
    let n_there = size.min(N_BEFORE as u64) as usize;
    read_exact(&mut file, path, &mut before[..n_there])?;
    if before[..8] != kind.magic {
        return Err(StoreError::NotOurs { path: path.into() });
    }
    let cut_off = || StoreError::damaged(path, "it is cut off in its header");
    if n_there < N_BEFORE {
        return Err(cut_off());
    }
    let field = |at: usize| u32::from_le_bytes([before[at], before[at + 1], before[at + 2], before[at + 3]]);
    let (found, n_header) = (field(8), field(12) as usize);
    if found != kind.version {
        return Err(StoreError::Version { path: path.into(), found, supported: kind.version });
    }
    if n_header > MAX_HEADER {
        return Err(StoreError::damaged(path, "its header says to have more than 64 MiB"));
    }
    let n_behind = size.checked_sub(n_bytes(n_header)).ok_or_else(cut_off)?;
    let mut header = vec![0; n_header];
    read_exact(&mut file, path, &mut header)?;
    let mut sum = [0; N_CHECKSUM];
    read_exact(&mut file, path, &mut sum)?;
    let is = Hasher::new().update(&before).update(&header).finalize();
    if is != sum {
        return Err(StoreError::damaged(path, "the checksum of its header does not match"));
    }
    Ok(Opened { file, header, n_behind })
}

fn read_exact(file: &mut File, path: &Path, into: &mut [u8]) -> Result<(), StoreError> {
    file.read_exact(into).map_err(|e| {
        let is_short = e.kind() == io::ErrorKind::UnexpectedEof;
        if is_short {
            StoreError::damaged(path, "it became shorter while it was read")
        } else {
            StoreError::io(path, &e)
        }
    })
}

/// Read a state of `n_bytes`, which the file was found to have, and hold it against its checksum.
///
/// Memory is asked for, not taken: a sparse file can truly have more bytes than the machine.
pub(super) fn read_state(file: &mut File, path: &Path, n_bytes: u64, sum: &Checksum) -> Result<Vec<u8>, StoreError> {
    let too_large = || StoreError::Io {
        path: path.into(),
        kind: io::ErrorKind::OutOfMemory,
        reason: format!("no memory for a state of {n_bytes} bytes"),
    };
    let mut state = Vec::new();
    state.try_reserve_exact(usize::try_from(n_bytes).map_err(|_| too_large())?).map_err(|_| too_large())?;
    let mut hasher = Hasher::new();
    let mut n_left = n_bytes;
    while n_left > 0 {
        let n_read = state.len();
        let piece = file.take(n_left.min(PIECE)).read_to_end(&mut state).map_err(|e| StoreError::io(path, &e))?;
        if piece == 0 {
            return Err(StoreError::damaged(path, "it became shorter while it was read"));
        }
        hasher.update(&state[n_read..]);
        n_left -= piece as u64;
    }
    if hasher.finalize() != *sum {
        return Err(StoreError::damaged(path, "the checksum of its state does not match"));
    }
    Ok(state)
}
