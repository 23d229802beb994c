//! Which model, and which kind of context, a KV state belongs to.

use super::disk;
use blake3::Hasher;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Files below this are read whole. Unit: bytes.
const WHOLE_BELOW: u64 = 64 << 20;
/// The header and the metadata of a GGUF file are in its beginning. Unit: bytes.
const HEAD: u64 = 4 << 20;
/// Unit: bytes.
const TAIL: u64 = 1 << 20;
const N_SAMPLES: u64 = 64;
/// Unit: bytes.
const SAMPLE: u64 = 64 << 10;

/// Identifies a model, and after [`Fingerprint::with`] a kind of context too: a KV state is of use under the same one only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Fingerprint(pub [u8; 32]);

impl Fingerprint {
    /// Mix in named properties of a context: types of the KV cells, flash attention, RoPE, llama.cpp's build.
    ///
    /// The order counts. Names and values carry their lengths, so that no two lists give the same bytes.
    #[must_use]
    pub fn with(&self, context: &[(&str, String)]) -> Self {
        let mut hasher = Hasher::new();
        hasher.update(b"llama-batch context 1");
        hasher.update(&self.0);
        for (name, value) in context {
            for text in [*name, value.as_str()] {
                hasher.update(&(text.len() as u64).to_le_bytes());
                hasher.update(text.as_bytes());
            }
        }
        Self(hasher.finalize().into())
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Identify a model by its files (several for a split model, in order) without reading gigabytes: their sizes, their
/// beginnings and ends, and samples between. Names, places and times of the files do not count.
///
/// A file below 64 MiB is read whole. Of a larger one at most 9 MiB are: two models that differ in a few weights alone
/// can pass for one, two that were trained or quantised apart cannot.
///
/// # Errors
/// No path at all; a file that is not there, cannot be read, or is not a regular file. The text names it.
pub fn of_model(paths: &[PathBuf]) -> io::Result<Fingerprint> {
    if paths.is_empty() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a model has at least one file"));
    }
    let mut hasher = Hasher::new();
    hasher.update(b"llama-batch model 1");
    for path in paths {
        add_file(&mut hasher, path).map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))?;
    }
    Ok(Fingerprint(hasher.finalize().into()))
}

fn add_file(hasher: &mut Hasher, path: &Path) -> io::Result<()> {
    let Some((mut file, size)) = disk::open_regular(path, disk::Links::Follow)? else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    };
    hasher.update(&size.to_le_bytes());
    if size < WHOLE_BELOW {
        return add_range(hasher, &mut file, 0, size);
    }
    add_range(hasher, &mut file, 0, HEAD)?;
    add_range(hasher, &mut file, size - TAIL, TAIL)?;
    for n in 0..N_SAMPLES {
        // 128 bits: a sparse file can claim any size.
        let at = u128::from(size - SAMPLE) * u128::from(n) / u128::from(N_SAMPLES - 1);
        add_range(hasher, &mut file, at as u64, SAMPLE)?;
    }
    Ok(())
}

/// Hash a range that the file must have: its size says so, and each range's length follows from the size.
fn add_range(hasher: &mut Hasher, file: &mut File, from: u64, n_bytes: u64) -> io::Result<()> {
    file.seek(SeekFrom::Start(from))?;
    let n_read = io::copy(&mut file.take(n_bytes), hasher)?;
    if n_read < n_bytes {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file became shorter while it was read"));
    }
    Ok(())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]
mod tests {
    use super::*;
    use crate::store::scratch::Scratch;
    use std::io::Write;

    struct Folder(Scratch);

    impl Folder {
        fn new(name: &str) -> Self {
            Self(Scratch::new(name))
        }

        /// A sparse file of this size, with bytes at some offsets.
        fn file(&self, name: &str, size: u64, marks: &[u64]) -> PathBuf {
            let path = self.0.join(name);
            let mut file = File::create(&path).unwrap();
            file.set_len(size).unwrap();
            for at in marks {
                file.seek(SeekFrom::Start(*at)).unwrap();
                file.write_all(&[1]).unwrap();
            }
            path
        }
    }

    fn of(path: &Path) -> Fingerprint {
        of_model(&[path.into()]).unwrap()
    }

    #[test]
    fn a_model_is_its_contents_whatever_its_name() {
        let folder = Folder::new("names");
        let (one, two) = (folder.file("one", 1000, &[7]), folder.file("two", 1000, &[7]));
        assert_eq!(of(&one), of(&two));
        assert_ne!(of(&one), of(&folder.file("three", 1001, &[7])));
        assert_ne!(of_model(&[one.clone(), two.clone()]).unwrap(), of(&one));
        let other = folder.file("other", 1000, &[8]);
        assert_ne!(of_model(&[one.clone(), other.clone()]).unwrap(), of_model(&[other, one]).unwrap());
    }

    #[test]
    fn each_byte_of_a_small_model_counts() {
        let folder = Folder::new("small");
        let size = WHOLE_BELOW - 1;
        let plain = of(&folder.file("plain", size, &[]));
        for at in [0, HEAD + 1, size / 2 + 1, size - 1] {
            assert_ne!(plain, of(&folder.file("marked", size, &[at])), "byte {at}");
        }
    }

    // Elsewhere a file of zeros takes what it says.
    #[cfg(unix)]
    #[test]
    fn a_large_model_is_known_by_its_ends_its_size_and_samples() {
        let folder = Folder::new("large");
        let size = 2 << 30;
        let plain = of(&folder.file("plain", size, &[]));
        assert_eq!(plain, of(&folder.file("again", size, &[])));
        assert_ne!(plain, of(&folder.file("longer", size + 1, &[])));
        let sample = (size - SAMPLE) * 31 / (N_SAMPLES - 1);
        for at in [0, HEAD - 1, sample, sample + SAMPLE - 1, size - TAIL, size - 1] {
            assert_ne!(plain, of(&folder.file("marked", size, &[at])), "byte {at}");
        }
    }

    #[test]
    fn what_is_no_file_is_named() {
        let folder = Folder::new("missing");
        for path in [folder.0.join("missing"), folder.0.to_path_buf()] {
            let error = of_model(std::slice::from_ref(&path)).unwrap_err().to_string();
            assert!(error.contains(&path.display().to_string()), "{error}");
        }
        of_model(&[]).unwrap_err();
    }

    #[test]
    fn no_two_lists_of_properties_are_taken_for_each_other() {
        let base = Fingerprint([7; 32]);
        let lists: [&[(&str, &str)]; 9] = [
            &[],
            &[("", "")],
            &[("ab", "c")],
            &[("a", "bc")],
            &[("abc", "")],
            &[("", "abc")],
            &[("a", "b"), ("c", "")],
            &[("c", ""), ("a", "b")],
            &[("a", ""), ("b", "c")],
        ];
        let owned =
            |list: &[(&'static str, &str)]| list.iter().map(|(k, v)| (*k, (*v).to_string())).collect::<Vec<_>>();
        let all: std::collections::BTreeSet<_> = lists.iter().map(|list| base.with(&owned(list))).collect();
        assert_eq!(all.len(), lists.len());
        assert!(!all.contains(&base));
        assert_ne!(Fingerprint([8; 32]).with(&[]), base.with(&[]));
    }

    #[test]
    fn it_is_shown_as_hex() {
        let mut bytes = [0; 32];
        (bytes[0], bytes[31]) = (0xab, 1);
        let text = Fingerprint(bytes).to_string();
        assert!(text.starts_with("ab00") && text.ends_with("0001") && text.len() == 64, "{text}");
    }
}
