//! A cache folder after crashes, damage and strangers, and in which order it drops what it holds.

use super::*;
use crate::store::scratch::Scratch;
use std::fs::File;
use std::time::{Duration, SystemTime};

const MODEL: Fingerprint = Fingerprint([7; 32]);
const STATE: [u8; 100] = [5; 100];

struct Root(Scratch);

impl Root {
    fn new(name: &str) -> Self {
        Self(Scratch::new(name))
    }

    fn open(&self, max_bytes: u64) -> Directory {
        Directory::open(&self.0, MODEL, max_bytes).unwrap()
    }
}

fn new(parent: Option<EntryKey>, from: u32, token: i32) -> NewEntry {
    NewEntry { parent, scope: None, from, tokens: vec![token; 4] }
}

fn root_of(folder: &mut Directory, token: i32) -> EntryKey {
    folder.put(new(None, 0, token), &STATE).unwrap()
}

fn child_of(folder: &mut Directory, parent: EntryKey, token: i32) -> EntryKey {
    let from = folder.entry(parent).unwrap().end() as u32;
    folder.put(new(Some(parent), from, token), &STATE).unwrap()
}

fn keys(folder: &Directory) -> Vec<EntryKey> {
    folder.entries().map(|(entry, _)| entry.key).collect()
}

fn sorted<const N: usize>(mut keys: [EntryKey; N]) -> [EntryKey; N] {
    keys.sort_unstable();
    keys
}

fn file_names(folder: &Directory) -> Vec<String> {
    let names = fs::read_dir(&folder.folder).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort_unstable();
    names
}

/// What a root and a child take.
fn sizes() -> (u64, u64) {
    let root = Root::new("sizes");
    let mut folder = root.open(1 << 20);
    let first = root_of(&mut folder, 1);
    let child = child_of(&mut folder, first, 2);
    (folder.entry(first).unwrap().n_bytes, folder.entry(child).unwrap().n_bytes)
}

#[test]
fn what_was_used_least_recently_goes_first() {
    let root = Root::new("lru");
    let size = sizes().0;
    let mut folder = root.open(3 * size);
    let [first, second, third] = [1, 2, 3].map(|token| root_of(&mut folder, token));
    folder.get(first).unwrap();
    assert_eq!(root_of(&mut folder, 2), second, "what is put again is used, too");
    assert_eq!(folder.dropped(), []);
    let fourth = root_of(&mut folder, 4);
    assert_eq!(folder.dropped(), [third]);
    assert_eq!(keys(&folder), sorted([first, second, fourth]));
    drop(folder);
    // The order outlives the process, and a smaller budget is kept from the start.
    let mut folder = root.open(2 * size);
    assert_eq!(keys(&folder), sorted([second, fourth]));
    let fifth = root_of(&mut folder, 5);
    assert_eq!(keys(&folder), sorted([fourth, fifth]));
    assert_eq!(folder.n_bytes(), 2 * size);
}

#[test]
fn children_go_before_their_parents_and_nothing_goes_for_its_own_child() {
    let root = Root::new("children");
    let (size, child_size) = sizes();
    let mut folder = root.open(size + 2 * child_size);
    let first = root_of(&mut folder, 1);
    let second = child_of(&mut folder, first, 2);
    let third = child_of(&mut folder, second, 3);
    let before = keys(&folder);
    let no_room = folder.put(new(Some(third), 12, 4), &STATE).unwrap_err();
    assert!(matches!(no_room, StoreError::NoRoom { .. }), "{no_room}");
    assert_eq!(keys(&folder), before, "and nothing was given up for it");
    // Used after its child, but its child goes first.
    folder.get(third).unwrap();
    folder.get(second).unwrap();
    let fourth = child_of(&mut folder, first, 4);
    assert_eq!(folder.dropped(), [third]);
    folder.get(second).unwrap();
    let fifth = child_of(&mut folder, second, 5);
    assert_eq!(folder.dropped(), [fourth]);
    assert_eq!(keys(&folder), sorted([first, second, fifth]));
}

#[test]
fn what_can_never_fit_is_refused_and_costs_nothing() {
    let root = Root::new("never");
    let size = sizes().0;
    let mut folder = root.open(size);
    let a = root_of(&mut folder, 1);
    let error = folder.put(new(None, 0, 2), &[0; 101]).unwrap_err();
    assert_eq!(error, StoreError::NoRoom { path: folder.folder.clone(), n_bytes: size + 1, max_bytes: size });
    assert_eq!(keys(&folder), [a]);
}

#[test]
fn what_does_not_follow_its_parent_is_refused() {
    let root = Root::new("follow");
    let mut folder = root.open(1 << 20);
    let a = root_of(&mut folder, 1);
    let empty = NewEntry { tokens: Vec::new(), ..new(None, 0, 1) };
    for bad in [new(Some(a), 5, 2), new(Some(a), 0, 2), new(None, 4, 2), new(Some(a), u32::MAX, 2), empty] {
        let error = folder.put(bad, &STATE).unwrap_err();
        assert!(matches!(error, StoreError::Invalid { .. }), "{error}");
    }
    let orphan = folder.put(new(Some(EntryKey(9)), 4, 2), &STATE).unwrap_err();
    assert!(matches!(orphan, StoreError::NoEntry { key: EntryKey(9), .. }), "{orphan}");
    assert_eq!(keys(&folder), [a]);
}

#[test]
fn leftovers_go_and_files_of_others_stay() {
    let root = Root::new("leftovers");
    let mut folder = root.open(1 << 20);
    let a = root_of(&mut folder, 1);
    let at = folder.folder.clone();
    drop(folder);
    fs::write(at.join(".llama-batch-1-2.tmp"), "half").unwrap();
    fs::write(at.join("notes.txt"), "mine").unwrap();
    fs::write(at.join("F.kv"), "not a name that we give").unwrap();
    fs::write(at.join(format!("{}.kv", "0".repeat(32))), "our name, their bytes").unwrap();
    fs::copy(at.join(a.file_name()), at.join(EntryKey(5).file_name())).unwrap();
    let folder = root.open(1 << 20);
    assert_eq!(keys(&folder), [a]);
    let mut expected = vec![a.file_name(), "F.kv".into(), "lock".into(), "notes.txt".into()];
    expected.sort_unstable();
    assert_eq!(file_names(&folder), expected);
}

#[test]
fn a_damaged_header_costs_the_entry_and_what_stands_on_it() {
    let root = Root::new("header");
    let mut folder = root.open(1 << 20);
    let a = root_of(&mut folder, 1);
    let b = child_of(&mut folder, a, 2);
    let c = child_of(&mut folder, b, 3);
    let other = root_of(&mut folder, 4);
    let _ = child_of(&mut folder, c, 5);
    let at = folder.path(b);
    drop(folder);
    let mut bytes = fs::read(&at).unwrap();
    bytes[30] ^= 1;
    fs::write(&at, bytes).unwrap();
    let folder = root.open(1 << 20);
    assert_eq!(keys(&folder), sorted([a, other]));
    assert_eq!(file_names(&folder).len(), 3);
}

#[test]
fn no_change_to_an_entry_goes_unseen() {
    let root = Root::new("flips");
    let mut folder = root.open(1 << 20);
    let a = root_of(&mut folder, 1);
    let at = folder.path(a);
    let whole = fs::read(&at).unwrap();
    for n in 0..whole.len() {
        let mut flipped = whole.clone();
        flipped[n] ^= 0x10;
        let longer = [&whole[..], &[0]].concat();
        for bad in [&flipped[..], &whole[..n], &longer] {
            // While it is open, and before.
            fs::write(&at, bad).unwrap();
            folder.get(a).unwrap_err();
            assert_eq!((folder.n_entries(), folder.n_bytes(), folder.dropped()), (0, 0, &[a][..]));
            assert!(!at.exists());
            drop(folder);
            fs::write(&at, bad).unwrap();
            folder = root.open(1 << 20);
            assert!(folder.n_entries() == 0 || folder.get(a).is_err());
            assert!(!at.exists());
            root_of(&mut folder, 1);
        }
    }
    assert_eq!(folder.get(a).unwrap(), STATE);
}

#[test]
fn what_vanished_is_told_and_can_be_put_again() {
    let root = Root::new("vanished");
    let mut folder = root.open(1 << 20);
    let a = root_of(&mut folder, 1);
    let b = child_of(&mut folder, a, 2);
    fs::remove_file(folder.path(a)).unwrap();
    let error = folder.get(a).unwrap_err();
    assert!(matches!(error, StoreError::Io { kind: io::ErrorKind::NotFound, .. }), "{error}");
    assert_eq!(folder.dropped(), [b, a]);
    assert_eq!(file_names(&folder), ["lock"]);
    root_of(&mut folder, 1);
    fs::remove_file(folder.path(a)).unwrap();
    assert_eq!(root_of(&mut folder, 1), a);
    assert_eq!(folder.get(a).unwrap(), STATE);
    fs::remove_file(folder.path(a)).unwrap();
    folder.remove(a).unwrap();
    assert_eq!((folder.n_entries(), folder.n_bytes()), (0, 0));
}

#[cfg(unix)]
#[test]
fn a_folder_that_vanished_is_told_and_holds_nothing() {
    let root = Root::new("gone");
    let mut folder = root.open(1 << 20);
    fs::remove_dir_all(&folder.folder).unwrap();
    let error = folder.put(new(None, 0, 1), &STATE).unwrap_err();
    assert!(matches!(error, StoreError::Io { kind: io::ErrorKind::NotFound, .. }), "{error}");
    assert_eq!((folder.n_entries(), folder.n_bytes()), (0, 0));
}

#[test]
fn a_folder_in_the_place_of_an_entry_fails_that_entry_alone() {
    let root = Root::new("place");
    let mut folder = root.open(1 << 20);
    let entry = new(None, 0, 1);
    let at = folder.path(entry.key());
    fs::create_dir(&at).unwrap();
    for _ in 0..2 {
        let error = folder.put(entry.clone(), &STATE).unwrap_err();
        assert_eq!(error, StoreError::NotAFile { path: at.clone() });
        let _ = root_of(&mut folder, 2);
        drop(folder);
        folder = root.open(1 << 20);
        assert_eq!(folder.n_entries(), 1);
    }
    fs::remove_dir(&at).unwrap();
    folder.put(entry, &STATE).unwrap();
}

#[cfg(unix)]
#[test]
fn pipes_and_links_in_the_place_of_entries_neither_hang_nor_are_followed() {
    use std::os::unix::fs::symlink;
    let root = Root::new("pipes");
    let mut folder = root.open(1 << 20);
    let (a, b) = (root_of(&mut folder, 1), root_of(&mut folder, 2));
    let outside = root.0.join("outside");
    fs::rename(folder.path(b), &outside).unwrap();
    for round in 0..2 {
        let _ = fs::remove_file(folder.path(a));
        assert!(std::process::Command::new("mkfifo").arg(folder.path(a)).status().unwrap().success());
        symlink(&outside, folder.path(b)).unwrap();
        if round == 0 {
            assert!(matches!(folder.get(a), Err(StoreError::NotAFile { .. })));
            assert!(matches!(folder.get(b), Err(StoreError::NotAFile { .. })));
        } else {
            drop(folder);
            folder = root.open(1 << 20);
        }
        assert_eq!(file_names(&folder), ["lock"]);
        root_of(&mut folder, 1);
    }
    assert!(outside.exists(), "a link goes, what it leads to stays");
}

#[cfg(unix)]
#[test]
fn a_folder_is_for_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let root = Root::new("modes");
    let deep = root.0.join("a/b");
    let mut folder = Directory::open(&deep, MODEL, 1 << 20).unwrap();
    let a = root_of(&mut folder, 1);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!([mode(&deep), mode(&folder.folder)], [0o700; 2]);
    assert_eq!([mode(&folder.path(a)), mode(&folder.folder.join(LOCK_NAME))], [0o600; 2]);
}

#[test]
fn a_time_from_the_future_keeps_nothing_for_good() {
    let root = Root::new("future");
    let size = sizes().0;
    let mut folder = root.open(2 * size);
    let (a, b) = (root_of(&mut folder, 1), root_of(&mut folder, 2));
    let far = SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 33);
    File::options().write(true).open(folder.path(a)).unwrap().set_modified(far).unwrap();
    drop(folder);
    let mut folder = root.open(2 * size);
    folder.get(b).unwrap();
    root_of(&mut folder, 3);
    assert_eq!(folder.dropped(), [a]);
}

#[test]
fn another_model_in_the_same_folder_is_not_taken_for_this_one() {
    let root = Root::new("model");
    let mut folder = root.open(1 << 20);
    root_of(&mut folder, 1);
    drop(folder);
    // The same first digits, by chance.
    let mut other = MODEL;
    other.0[31] = 0;
    let folder = Directory::open(&root.0, other, 1 << 20).unwrap();
    assert_eq!(file_names(&folder), ["lock"]);
}
