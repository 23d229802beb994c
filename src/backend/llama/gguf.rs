//! Looks at a GGUF file before llama.cpp does: what is no model, is cut short or lacks a part is named here, in words
//! that say what to do.

use crate::error::Error;
use llama_cpp_sys_2 as sys;
use std::fs::File;
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// What the header says that matters before loading.
#[derive(Debug)]
struct Header {
    n_tensors: u64,
    split_no: u64,
    split_count: u64,
    /// Where the data of the last tensor ends.
    data_end: u64,
}

/// Why a file cannot be a model.
enum Flaw {
    Io(io::Error),
    Broken(String),
}

impl From<io::Error> for Flaw {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Check that a file, and each other part of a model that is split over several, is a whole GGUF file. Returns the
/// bytes of all parts.
///
/// # Errors
/// [`Error::ModelNotFound`] where there is nothing; [`Error::ModelLoad`] says what is wrong otherwise.
pub(super) fn check(path: &Path) -> Result<u64, Error> {
    let (header, mut total) = check_file(path)?;
    if header.split_count > 1 {
        if header.split_no != 0 {
            return Err(Error::ModelLoad(format!(
                "{} is part {} of {} of a model; name the first part",
                path.display(),
                header.split_no + 1,
                header.split_count
            )));
        }
        for no in 1..header.split_count {
            total += check_file(&part(path, no, header.split_count)?)?.1;
        }
    }
    Ok(total)
}

/// The path of another part of a split model: `name-00001-of-00003.gguf`.
fn part(first: &Path, no: u64, count: u64) -> Result<PathBuf, Error> {
    let name = first.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let Some(prefix) = name.strip_suffix(&format!("-00001-of-{count:05}.gguf")) else {
        return Err(Error::ModelLoad(format!(
            "{} is the first of {count} parts of a model, so its name must end in -00001-of-{count:05}.gguf",
            first.display()
        )));
    };
    Ok(first.with_file_name(format!("{prefix}-{:05}-of-{count:05}.gguf", no + 1)))
}

fn check_file(path: &Path) -> Result<(Header, u64), Error> {
    let shown = path.display();
    let meta = std::fs::metadata(path).map_err(|error| {
        if error.kind() == io::ErrorKind::NotFound {
            Error::ModelNotFound(format!("there is no file {shown}"))
        } else {
            Error::ModelLoad(format!("{shown} cannot be read: {error}"))
        }
    })?;
    if meta.is_dir() {
        return Err(Error::ModelLoad(format!("{shown} is a folder; name a .gguf file in it")));
    }
    let file = File::open(path).map_err(|error| Error::ModelLoad(format!("{shown} cannot be read: {error}")))?;
    let length = meta.len();
    let header = read_header(&mut BufReader::new(file), length).map_err(|flaw| match flaw {
        Flaw::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            Error::ModelLoad(format!("{shown} is cut short: it ends within its header, after {length} bytes"))
        }
        Flaw::Io(error) => Error::ModelLoad(format!("{shown} cannot be read: {error}")),
        Flaw::Broken(what) => Error::ModelLoad(format!("{shown} {what}")),
    })?;
    if header.n_tensors > 0 && header.data_end > length {
        return Err(Error::ModelLoad(format!(
            "{shown} is cut short: it has {length} bytes of {}; fetch it again",
            header.data_end
        )));
    }
    Ok((header, length))
}

fn read_header(file: &mut (impl Read + Seek), length: u64) -> Result<Header, Flaw> {
    let mut reader = Reader { file, left: length };
    let mut magic = [0_u8; 4];
    if length < 4 || reader.fill(&mut magic).is_err() || &magic != b"GGUF" {
        return Err(Flaw::Broken("is not a GGUF file".into()));
    }
    let version = reader.u32()?;
    if version.trailing_zeros() >= 16 {
        return Err(Flaw::Broken("is a GGUF file for big-endian machines".into()));
    }
    if !(2..=3).contains(&version) {
        return Err(Flaw::Broken(format!("is a GGUF file of version {version}; versions 2 and 3 are known")));
    }
    let (n_tensors, n_keys) = (reader.u64()?, reader.u64()?);
    let mut header = Header { n_tensors, split_no: 0, split_count: 0, data_end: 0 };
    let mut alignment = 32;
    for _ in 0..n_keys {
        let key = reader.text()?;
        let mut tokens = (key == b"tokenizer.ggml.tokens").then(Vec::new);
        let value = reader.value(tokens.as_mut())?;
        if has_twins(tokens.unwrap_or_default()) {
            return Err(Flaw::Broken("is a broken model: two of its tokens have the same text".into()));
        }
        match (key.as_slice(), value) {
            (b"general.alignment", Some(n)) => alignment = n,
            (b"split.no", Some(n)) => header.split_no = n,
            (b"split.count", Some(n)) => header.split_count = n,
            _ => {}
        }
    }
    if alignment == 0 || !alignment.is_power_of_two() {
        return Err(Flaw::Broken(format!("is a broken GGUF file: its alignment is {alignment}")));
    }
    let mut data = 0;
    for _ in 0..n_tensors {
        data = data.max(reader.tensor_end()?);
    }
    let here = length - reader.left;
    header.data_end = here.next_multiple_of(alignment).saturating_add(data);
    Ok(header)
}

/// Reads little-endian values and never past the end of the file, whatever lengths the file claims.
struct Reader<'a, R> {
    file: &'a mut R,
    left: u64,
}

impl<R: Read + Seek> Reader<'_, R> {
    fn take(&mut self, n: u64) -> Result<(), Flaw> {
        self.left = self.left.checked_sub(n).ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
        Ok(())
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), Flaw> {
        self.take(bytes.len() as u64)?;
        Ok(self.file.read_exact(bytes)?)
    }

    fn skip(&mut self, n: u64) -> Result<(), Flaw> {
        self.take(n)?;
        // Small steps stay in the buffer; a seek would throw it away.
        if n <= 4096 {
            io::copy(&mut self.file.by_ref().take(n), &mut io::sink())?;
        } else {
            self.file.seek(SeekFrom::Current(n as i64))?;
        }
        Ok(())
    }

    fn u32(&mut self) -> Result<u32, Flaw> {
        let mut bytes = [0; 4];
        self.fill(&mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn u64(&mut self) -> Result<u64, Flaw> {
        let mut bytes = [0; 8];
        self.fill(&mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn text(&mut self) -> Result<Vec<u8>, Flaw> {
        let length = self.u64()?;
        if length > self.left {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        let mut bytes = vec![0; length as usize];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    /// Pass over one metadata value; its number, if it is an unsigned or non-negative integer. A list of texts leaves
    /// their hashes in `texts`, but for the empty ones.
    fn value(&mut self, mut texts: Option<&mut Vec<u64>>) -> Result<Option<u64>, Flaw> {
        let kind = self.u32()?;
        if kind == ARRAY {
            let (kind, n) = (self.u32()?, self.u64()?);
            if kind == TEXT {
                for _ in 0..n {
                    if let Some(texts) = texts.as_deref_mut() {
                        let text = self.text()?;
                        texts.extend((!text.is_empty()).then(|| hash(&text)));
                    } else {
                        let length = self.u64()?;
                        self.skip(length)?;
                    }
                }
            } else {
                self.skip(n.saturating_mul(size_of_kind(kind)?))?;
            }
            return Ok(None);
        }
        if kind == TEXT {
            let length = self.u64()?;
            self.skip(length)?;
            return Ok(None);
        }
        let mut bytes = [0; 8];
        let size = size_of_kind(kind)? as usize;
        self.fill(&mut bytes[..size])?;
        Ok((!FLOATS.contains(&kind)).then(|| u64::from_le_bytes(bytes)))
    }

    /// Pass over one tensor's description; where its data ends, counted from the start of the data.
    fn tensor_end(&mut self) -> Result<u64, Flaw> {
        let name = self.text()?;
        let broken = |what: String| {
            Flaw::Broken(format!("is a broken GGUF file: tensor {:?} {what}", String::from_utf8_lossy(&name)))
        };
        let n_dims = self.u32()?;
        if n_dims > 4 {
            return Err(broken(format!("has {n_dims} dimensions")));
        }
        let mut dims = Vec::with_capacity(4);
        for _ in 0..n_dims {
            dims.push(self.u64()?);
        }
        let (kind, offset) = (self.u32()?, self.u64()?);
        let (block, size) = block_of_type(kind).ok_or_else(|| broken(format!("is of the unknown type {kind}")))?;
        let row = dims.first().copied().unwrap_or(1);
        if row % block != 0 {
            return Err(broken(format!("has rows of {row} values, which blocks of {block} do not divide")));
        }
        let bytes = dims.iter().skip(1).try_fold(row / block * size, |n, dim| n.checked_mul(*dim));
        bytes.and_then(|n| n.checked_add(offset)).ok_or_else(|| broken("is too large".into()))
    }
}

fn hash(text: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(text);
    hasher.finish()
}

/// Whether a hash occurs twice. llama.cpp aborts on a vocabulary where a text does.
fn has_twins(mut hashes: Vec<u64>) -> bool {
    hashes.sort_unstable();
    hashes.windows(2).any(|pair| pair[0] == pair[1])
}

const TEXT: u32 = 8;
const ARRAY: u32 = 9;
/// `f32` and `f64`.
const FLOATS: [u32; 2] = [6, 12];

/// The bytes of a number of one of GGUF's types.
fn size_of_kind(kind: u32) -> Result<u64, Flaw> {
    match kind {
        0 | 1 | 7 => Ok(1),
        2 | 3 => Ok(2),
        4..=6 => Ok(4),
        10..=12 => Ok(8),
        _ => Err(Flaw::Broken(format!("is a broken GGUF file: it holds a value of the unknown type {kind}"))),
    }
}

/// Values of a block of a tensor type, and its bytes; none for a type that llama.cpp does not know (any more).
fn block_of_type(kind: u32) -> Option<(u64, u64)> {
    let count = sys::GGML_TYPE_COUNT;
    let kind = sys::ggml_type::try_from(kind).ok().filter(|kind| *kind < count)?;
    // SAFETY: the type is below the count, which is all that these look-ups ask for.
    let (block, size) = unsafe { (sys::ggml_blck_size(kind), sys::ggml_type_size(kind)) };
    (block > 0 && size > 0).then_some((block as u64, size as u64))
}

#[cfg(test)]
#[path = "gguf_tests.rs"]
#[expect(clippy::unwrap_used, reason = "a test that meets what it does not expect fails by panicking")]
mod tests;
