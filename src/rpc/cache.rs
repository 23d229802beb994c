//! The worker's cache of tensors: files named by the hash of what is in them.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// llama.cpp asks a cache for tensors that are larger than this. Unit: bytes.
const THRESHOLD: u64 = 10 * 1024 * 1024;

/// FNV-1a of 64 bits, by which llama.cpp names tensors (`fnv_hash` in `ggml-rpc.cpp`; Fowler, Noll and Vo).
///
/// # Errors
/// Where it cannot be read.
pub fn hash(mut bytes: impl Read) -> io::Result<u64> {
    let mut sum = 0xcbf2_9ce4_8422_2325_u64;
    let mut buffer = vec![0; 1 << 16];
    loop {
        let n = match bytes.read(&mut buffer) {
            Ok(0) => return Ok(sum),
            Ok(n) => n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        sum = buffer[..n].iter().fold(sum, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    }
}

/// Whether a file of the cache holds what its name says. One that was cut short would be taken for weights.
///
/// # Errors
/// Where it cannot be read.
pub fn is_whole(path: &Path) -> io::Result<bool> {
    let file = File::open(path)?;
    if file.metadata()?.len() <= THRESHOLD {
        return Ok(false);
    }
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
    Ok(name.as_deref() == Some(format!("{:016x}", hash(file)?).as_str()))
}

#[cfg(test)]
mod tests {
    use super::{THRESHOLD, hash, is_whole};

    #[test]
    fn the_hash_is_fnv_1a() {
        // Published test vectors of FNV-1a, 64 bits.
        assert_eq!(hash(&b""[..]).ok(), Some(0xcbf2_9ce4_8422_2325));
        assert_eq!(hash(&b"a"[..]).ok(), Some(0xaf63_dc4c_8601_ec8c));
        assert_eq!(hash(&b"foobar"[..]).ok(), Some(0x8594_4171_f739_67e8));
    }

    #[test]
    fn a_file_that_was_cut_short_is_not_whole() -> std::io::Result<()> {
        let bytes: Vec<u8> = (0..THRESHOLD + 7).map(|i| (i % 251) as u8).collect();
        let folder = std::env::temp_dir().join(format!("llama-batch-rpc-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let path = folder.join(format!("{:016x}", hash(&bytes[..])?));
        for (length, whole) in [(bytes.len(), true), (bytes.len() - 1, false), (0, false)] {
            std::fs::write(&path, &bytes[..length])?;
            assert_eq!(is_whole(&path)?, whole, "{length}");
        }
        std::fs::remove_dir_all(&folder)
    }
}
