//! The folder that a user names: it has a part for each model and kind of context, and one more for each engine that is
//! open at the same time.

use super::directory::{Directory, EntryKey, LOCK_NAME};
use super::disk::{self, Lock};
use super::error::StoreError;
use super::fingerprint::Fingerprint;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Engines of one model and kind of context that may be open at the same time.
const MAX_PARTS: u32 = 64;
/// Hexadecimal digits of a fingerprint in the name of a part.
const DIGITS: usize = 16;

/// Open the first part of a folder for this model and kind of context that nobody else has open, and make it where there
/// is none. What other parts hold that nobody has open goes, least recently used first, where all together take more
/// than the budget.
///
/// # Errors
/// Those of [`Directory::open`].
pub fn open_part(root: &Path, fingerprint: Fingerprint, max_bytes: u64) -> Result<Directory, StoreError> {
    let name = part_name(fingerprint);
    let mut n = 0;
    let directory = loop {
        let folder = root.join(if n == 0 { name.clone() } else { format!("{name}-{n}") });
        match Directory::open_at(folder, fingerprint, max_bytes) {
            Err(StoreError::InUse { .. }) if n + 1 < MAX_PARTS => n += 1,
            opened => break opened?,
        }
    };
    sweep(root, &directory, max_bytes);
    Ok(directory)
}

/// The name of the first part of a model and kind of context.
pub(super) fn part_name(fingerprint: Fingerprint) -> String {
    fingerprint.to_string()[..DIGITS].to_string()
}

/// What is in a part that another engine left, or has open.
struct Part {
    folder: PathBuf,
    files: Vec<PathBuf>,
    n_bytes: u64,
    used: SystemTime,
}

/// Best effort: what cannot be looked at or deleted stays.
fn sweep(root: &Path, own: &Directory, max_bytes: u64) {
    let folders = fs::read_dir(root).into_iter().flatten().flatten().map(|entry| entry.path());
    let parts = folders.filter(|path| path.file_name().and_then(|name| name.to_str()).is_some_and(is_part));
    let mut parts: Vec<Part> = parts.filter(|path| path != own.folder()).map(look_at).collect();
    let mut total = own.n_bytes() + parts.iter().map(|part| part.n_bytes).sum::<u64>();
    parts.sort_by_key(|part| part.used);
    for part in parts {
        if total <= max_bytes {
            break;
        }
        // Who has it open keeps it. The folder and its lock stay, so that nobody locks a file that is gone.
        if let Ok(Some(_lock)) = Lock::take(&part.folder.join(LOCK_NAME)) {
            part.files.iter().for_each(|file| drop(fs::remove_file(file)));
            total -= part.n_bytes;
        }
    }
}

fn is_part(name: &str) -> bool {
    let (digits, number) = name.split_once('-').map_or((name, "0"), |(digits, number)| (digits, number));
    let is_hex = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
    digits.len() == DIGITS && digits.chars().all(is_hex) && number.parse::<u32>().is_ok()
}

/// The store's own files in a part, what they take, and when the last one was used.
fn look_at(folder: PathBuf) -> Part {
    let (mut files, mut n_bytes, mut used) = (Vec::new(), 0, SystemTime::UNIX_EPOCH);
    for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let Ok(metadata) = entry.metadata() else { continue };
        if metadata.is_file() && (EntryKey::of_file(&name).is_some() || disk::is_temporary(&name)) {
            n_bytes += metadata.len();
            used = used.max(metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH));
            files.push(entry.path());
        }
    }
    Part { folder, files, n_bytes, used }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]
mod tests {
    use super::*;
    use crate::store::NewEntry;
    use crate::store::scratch::Scratch;

    fn put(directory: &mut Directory, token: i32) {
        let entry = NewEntry { parent: None, scope: None, from: 0, tokens: vec![token] };
        directory.put(entry, &[7; 1000]).unwrap();
    }

    #[test]
    fn each_engine_that_is_open_has_a_part_of_its_own_and_finds_it_again() {
        let root = Scratch::new("parts");
        let mut first = open_part(&root, Fingerprint([1; 32]), 1 << 20).unwrap();
        let mut second = open_part(&root, Fingerprint([1; 32]), 1 << 20).unwrap();
        assert_ne!(first.folder(), second.folder());
        put(&mut first, 1);
        put(&mut second, 2);
        drop(second);
        let second = open_part(&root, Fingerprint([1; 32]), 1 << 20).unwrap();
        assert_eq!(second.entries().next().unwrap().0.tokens, [2]);
        drop((first, second));
        let first = open_part(&root, Fingerprint([1; 32]), 1 << 20).unwrap();
        assert_eq!(first.entries().next().unwrap().0.tokens, [1]);
    }

    #[test]
    fn what_others_left_goes_oldest_first_where_all_take_too_much_and_nothing_else_does() {
        let root = Scratch::new("sweep");
        for n in 1..=3 {
            put(&mut open_part(&root, Fingerprint([n; 32]), 1 << 20).unwrap(), 1);
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        fs::write(root.join("0101010101010101").join("mine.txt"), "stays").unwrap();
        fs::create_dir(root.join("holiday")).unwrap();
        fs::write(root.join("holiday").join("a.kv"), "stays").unwrap();
        let open = open_part(&root, Fingerprint([2; 32]), 1 << 20).unwrap();
        // Room for two entries of some 1,100 bytes.
        drop(open_part(&root, Fingerprint([9; 32]), 2500).unwrap());
        let n_left = |n: u8| open_part(&root, Fingerprint([n; 32]), 1 << 20).unwrap().n_entries();
        assert_eq!(open.n_entries(), 1);
        assert_eq!((n_left(1), n_left(3)), (0, 1));
        assert!(root.join("0101010101010101").join("mine.txt").exists());
        assert!(root.join("holiday").join("a.kv").exists());
    }
}
