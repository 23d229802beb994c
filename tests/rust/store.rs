//! KV state on disk: what is read is what was written, or an error; a cache folder keeps its order and its budget.
//! How a folder survives crashes, damage and strangers: `src/store/directory_tests.rs`.

use llama_batch::store::{Directory, EntryKey, Fingerprint, NewEntry, Part, SavedPrefix, StoreError, file};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

const MODEL: Fingerprint = Fingerprint([7; 32]);

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("llama-batch-store-{}-{n}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn names(&self) -> Vec<String> {
        let names = fs::read_dir(&self.0).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
        names.collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn prefix() -> SavedPrefix {
    SavedPrefix {
        fingerprint: MODEL,
        scope: Some("s9:Größe 🦙".into()),
        session: Some(String::new()),
        tokens: vec![1, -2, i32::MAX, i32::MIN, 5, 6],
        parts: vec![Part { from: 0, len: 2, state: vec![1, 2, 3] }, Part { from: 2, len: 3, state: Vec::new() }],
    }
}

fn prefixes() -> impl Strategy<Value = SavedPrefix> {
    let parts = prop::collection::vec((1_u32..5, prop::collection::vec(any::<u8>(), 0..40)), 0..5);
    let name = || prop::option::of(any::<String>());
    (name(), name(), parts, prop::collection::vec(any::<i32>(), 0..5)).prop_map(|(scope, session, parts, rest)| {
        let mut from = 0;
        let place = |(len, state)| {
            from += len;
            Part { from: from - len, len, state }
        };
        let parts: Vec<_> = parts.into_iter().map(place).collect();
        let tokens = (0..from as i32).chain(rest).collect();
        SavedPrefix { fingerprint: MODEL, scope, session, tokens, parts }
    })
}

/// A file as another program might make it: the checksum of the header matches, whatever that says.
fn forged(header: &[u8], behind: &[u8]) -> Vec<u8> {
    let mut bytes = b"LLBATCHS".to_vec();
    bytes.extend(1_u32.to_le_bytes());
    bytes.extend((header.len() as u32).to_le_bytes());
    bytes.extend(header);
    let sum = blake3::hash(&bytes);
    bytes.extend(sum.as_bytes());
    bytes.extend(behind);
    bytes
}

fn read_bytes(path: &Path, bytes: &[u8]) -> Result<SavedPrefix, StoreError> {
    fs::write(path, bytes).unwrap();
    file::read(path, &MODEL)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 80, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_saved_session_is_read_as_it_was_written(prefix in prefixes()) {
        let folder = Folder::new();
        let path = folder.at("session");
        file::write(&path, &prefix).unwrap();
        prop_assert_eq!(file::read(&path, &MODEL).unwrap(), prefix);
        prop_assert_eq!(folder.names(), ["session"]);
    }

    #[test]
    fn no_change_to_a_file_goes_unseen(
        prefix in prefixes(),
        at in any::<prop::sample::Index>(),
        mask in 1_u8..,
        more in prop::collection::vec(any::<u8>(), 1..50),
    ) {
        let folder = Folder::new();
        let path = folder.at("session");
        file::write(&path, &prefix).unwrap();
        let whole = fs::read(&path).unwrap();
        let at = at.index(whole.len());
        let mut flipped = whole.clone();
        flipped[at] ^= mask;
        prop_assert!(read_bytes(&path, &flipped).is_err());
        prop_assert!(read_bytes(&path, &whole[..at]).is_err());
        prop_assert!(read_bytes(&path, &[whole.as_slice(), &more].concat()).is_err());
        prop_assert!(read_bytes(&path, &more).is_err());
        prop_assert!(read_bytes(&path, &forged(&more, &more)).is_err());
    }
}

#[test]
fn each_byte_and_each_length_of_a_file_counts() {
    let folder = Folder::new();
    let path = folder.at("session");
    file::write(&path, &prefix()).unwrap();
    let whole = fs::read(&path).unwrap();
    for at in 0..whole.len() {
        read_bytes(&path, &whole[..at]).unwrap_err();
        for bit in 0..8 {
            let mut flipped = whole.clone();
            flipped[at] ^= 1 << bit;
            read_bytes(&path, &flipped).unwrap_err();
        }
    }
    assert_eq!(read_bytes(&path, &whole), Ok(prefix()));
}

#[test]
fn each_error_has_its_kind_and_names_the_file() {
    let folder = Folder::new();
    let path = folder.at("session");
    file::write(&path, &prefix()).unwrap();
    let whole = fs::read(&path).unwrap();
    let other = Fingerprint([8; 32]);
    let mut newer = whole.clone();
    newer[8] = 9;
    let errors = [
        (file::read(&path, &other), "another model"),
        (read_bytes(&path, &newer), "version 9"),
        (read_bytes(&path, &[whole.as_slice(), b"!"].concat()), "bytes too many"),
        (read_bytes(&path, &whole[..whole.len() - 1]), "cut off in its state"),
        (read_bytes(&path, &whole[..20]), "cut off in its header"),
        (read_bytes(&path, b"GGUF, or whatever it is"), "not a KV state"),
        (read_bytes(&path, b""), "not a KV state"),
        (file::read(&folder.at("missing session"), &MODEL), "missing session: "),
        (file::read(&folder.0, &MODEL), "not a regular file"),
    ];
    for (result, says) in errors {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(says) && error.contains(&folder.0.display().to_string()), "{error}");
    }
    fs::write(&path, &whole).unwrap();
    assert_eq!(file::read(&path, &other), Err(StoreError::OtherModel { path: path.clone() }));
    assert_eq!(read_bytes(&path, &newer), Err(StoreError::Version { path, found: 9, supported: 1 }));
}

#[test]
fn no_length_is_trusted_whatever_the_checksum_says() {
    let folder = Folder::new();
    let path = folder.at("session");
    let start = [MODEL.0.as_slice(), &[0, 0]].concat();
    let (one_token, huge) = ([&1_u64.to_le_bytes()[..], &5_i32.to_le_bytes()].concat(), u64::MAX.to_le_bytes());
    let part = |from: u32, len: u32, n_bytes: u64| {
        [&from.to_le_bytes()[..], &len.to_le_bytes(), &n_bytes.to_le_bytes(), &[0; 32]].concat()
    };
    let n = |n: u32| n.to_le_bytes().to_vec();
    let headers = [
        [&start[..], &huge].concat(),
        [&MODEL.0[..], &[1], &huge].concat(),
        [&start[..], &(1_u64 << 62).to_le_bytes()].concat(),
        [&start[..], &one_token, &n(u32::MAX)].concat(),
        [&start[..], &one_token, &n(1), &part(0, 1, u64::MAX)].concat(),
        [&start[..], &one_token, &n(1), &part(0, 1, 1 << 50)].concat(),
        [&start[..], &one_token, &n(2), &part(0, 1, u64::MAX), &part(1, 1, 2)].concat(),
        [&start[..], &one_token, &n(2), &part(0, 1, 0), &part(1, u32::MAX, 1)].concat(),
        [&start[..], &one_token, &n(1), &part(1, 1, 1)].concat(),
        [&start[..], &one_token, &n(1), &part(0, 0, 1)].concat(),
        [&MODEL.0[..], &[2, 0], &one_token, &n(0)].concat(),
    ];
    for header in headers {
        let error = read_bytes(&path, &forged(&header, &[0])).unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    }
    let says_four_gib = [&b"LLBATCHS"[..], &1_u32.to_le_bytes(), &u32::MAX.to_le_bytes(), &[0; 99]].concat();
    assert!(matches!(read_bytes(&path, &says_four_gib), Err(StoreError::Damaged { .. })));
}

#[test]
fn parts_with_gaps_are_not_written_and_the_old_file_stays() {
    let folder = Folder::new();
    let path = folder.at("session");
    file::write(&path, &prefix()).unwrap();
    let part = |from, len| Part { from, len, state: vec![9] };
    for parts in [vec![part(1, 1)], vec![part(0, 2), part(3, 1)], vec![part(0, 7)], vec![part(0, 0)]] {
        let error = file::write(&path, &SavedPrefix { parts, ..prefix() }).unwrap_err();
        assert!(matches!(error, StoreError::Invalid { .. }), "{error}");
    }
    assert_eq!(file::read(&path, &MODEL), Ok(prefix()));
    let longer = SavedPrefix { tokens: vec![3; 1000], ..prefix() };
    file::write(&path, &longer).unwrap();
    assert_eq!(file::read(&path, &MODEL), Ok(longer));
    assert_eq!(folder.names(), ["session"]);
    let nowhere = file::write(&folder.at("missing/session"), &prefix()).unwrap_err();
    assert!(matches!(nowhere, StoreError::Io { kind: std::io::ErrorKind::NotFound, .. }), "{nowhere}");
}

#[cfg(unix)]
#[test]
fn a_saved_session_is_for_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    let path = folder.at("session");
    fs::write(&path, "old").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    file::write(&path, &prefix()).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[cfg(unix)]
#[test]
fn what_is_no_file_neither_hangs_nor_is_replaced() {
    let folder = Folder::new();
    let (pipe, link, device) = (folder.at("pipe"), folder.at("link"), PathBuf::from("/dev/null"));
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    std::os::unix::fs::symlink(&folder.0, &link).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(folder.at("socket")).unwrap();
    for path in [folder.0.clone(), pipe, link, device, folder.at("socket"), folder.at("..")] {
        assert!(matches!(file::read(&path, &MODEL), Err(StoreError::NotAFile { .. })), "{}", path.display());
        assert!(matches!(file::write(&path, &prefix()), Err(StoreError::NotAFile { .. })), "{}", path.display());
    }
    let link = folder.at("link to a file");
    std::os::unix::fs::symlink("session", &link).unwrap();
    file::write(&folder.at("session"), &prefix()).unwrap();
    assert_eq!(file::read(&link, &MODEL), Ok(prefix()));
}

fn block(parent: Option<EntryKey>, scope: Option<&str>, from: u32, token: i32) -> NewEntry {
    NewEntry { parent, scope: scope.map(Into::into), from, tokens: vec![token; 4] }
}

#[test]
fn a_folder_keeps_its_entries_for_the_next_process() {
    let root = Folder::new();
    let mut folder = Directory::open(&root.0, MODEL, 1 << 20).unwrap();
    let first = folder.put(block(None, Some("s2:ü🦙"), 0, 1), b"one").unwrap();
    let second = folder.put(block(Some(first), Some("s2:ü🦙"), 4, 2), b"").unwrap();
    assert_eq!(second, EntryKey::of(Some(first), Some("s2:ü🦙"), 4, &[2; 4]));
    let entries: Vec<_> = folder.entries().map(|(entry, _)| entry.clone()).collect();
    let n_bytes = folder.n_bytes();
    drop(folder);
    let mut folder = Directory::open(&root.0, MODEL, 1 << 20).unwrap();
    assert_eq!(folder.entries().map(|(entry, _)| entry.clone()).collect::<Vec<_>>(), entries);
    assert_eq!((folder.n_bytes(), folder.n_entries()), (n_bytes, 2));
    assert_eq!((folder.get(first).unwrap(), folder.get(second).unwrap()), (b"one".to_vec(), Vec::new()));
    folder.remove(first).unwrap();
    assert_eq!(folder.dropped(), [second, first]);
    assert_eq!((folder.n_bytes(), folder.n_entries()), (0, 0));
    assert!(matches!(folder.get(first), Err(StoreError::NoEntry { .. })));
}

#[test]
fn two_cannot_use_a_folder_at_once_but_two_models_can() {
    let root = Folder::new();
    let folder = Directory::open(&root.0, MODEL, 100).unwrap();
    let error = Directory::open(&root.0, MODEL, 100).unwrap_err();
    assert_eq!(error, StoreError::InUse { path: folder.folder().into() });
    Directory::open(&root.0, Fingerprint([8; 32]), 100).unwrap();
    drop(folder);
    Directory::open(&root.0, MODEL, 100).unwrap();
}

#[test]
fn scopes_are_kept_apart() {
    let root = Folder::new();
    let mut folder = Directory::open(&root.0, MODEL, 1 << 20).unwrap();
    let scopes = [None, Some(""), Some("a"), Some("b")];
    let keys = scopes.map(|scope| folder.put(block(None, scope, 0, 1), format!("{scope:?}").as_bytes()).unwrap());
    for (key, scope) in keys.into_iter().zip(scopes) {
        assert_eq!(folder.get(key).unwrap(), format!("{scope:?}").into_bytes());
        assert_eq!(folder.entry(key).unwrap().scope.as_deref(), scope);
    }
    let stranger = folder.put(block(Some(keys[2]), Some("b"), 4, 1), b"").unwrap_err();
    assert!(matches!(stranger, StoreError::Invalid { .. }), "{stranger}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_budget_is_never_exceeded_and_what_is_got_is_what_was_put(
        max_bytes in 100_u64..4000,
        steps in prop::collection::vec((0_u8..8, any::<prop::sample::Index>(), 0_i32..6, 0_usize..900), 1..40),
    ) {
        let root = Folder::new();
        let mut folder = Directory::open(&root.0, MODEL, max_bytes).unwrap();
        let mut put = BTreeMap::new();
        for (what, which, token, n) in steps {
            let keys: Vec<_> = folder.entries().map(|(entry, _)| entry.key).collect();
            let one = (!keys.is_empty()).then(|| keys[which.index(keys.len())]);
            match (what, one) {
                (0, Some(key)) => folder.remove(key).unwrap(),
                (1 | 2, Some(key)) => prop_assert_eq!(&folder.get(key).unwrap(), &put[&key]),
                (3, _) => {
                    drop(folder);
                    folder = Directory::open(&root.0, MODEL, max_bytes).unwrap();
                    prop_assert_eq!(folder.n_entries(), keys.len());
                }
                (_, parent) => {
                    let parent = parent.filter(|_| what < 7).map(|key| folder.entry(key).unwrap().clone());
                    let from = parent.as_ref().map_or(0, |parent| parent.from + 4);
                    let state = vec![token as u8; n];
                    match folder.put(block(parent.map(|parent| parent.key), None, from, token), &state) {
                        // What is there already stays as it is.
                        Ok(key) if keys.contains(&key) => {}
                        Ok(key) => drop(put.insert(key, state)),
                        Err(StoreError::NoRoom { .. }) => prop_assert_eq!(folder.n_entries(), keys.len()),
                        Err(e) => prop_assert!(false, "{e}"),
                    }
                }
            }
            let files = fs::read_dir(folder.folder()).unwrap().map(|file| file.unwrap());
            let sizes = files.filter(|file| file.file_name() != "lock").map(|file| file.metadata().unwrap().len());
            prop_assert_eq!(folder.n_bytes(), sizes.sum::<u64>());
            prop_assert!(folder.n_bytes() <= max_bytes);
            prop_assert!(folder.entries().all(|(entry, _)| entry.parent.is_none_or(|key| folder.entry(key).is_some())));
        }
    }
}
