//! Files as the store needs them: opened without hanging, written whole or not at all, private, locked.

use super::error::StoreError;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

const TEMPORARY_PREFIX: &str = ".llama-batch-";
const TEMPORARY_SUFFIX: &str = ".tmp";
/// Names that are tried for a temporary file: one is taken only by the leftover of a process that had the same id.
const MAX_NAMES: u32 = 100;

/// Whether a symbolic link is followed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Links {
    /// A path of the user's, who may use links.
    Follow,
    /// A file of a folder of ours, which has none.
    Refuse,
}

/// How much is done for a file to outlive a loss of power.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Durability {
    /// It is on the disk when the call returns.
    Synced,
    /// It may be lost or damaged, which its checksums tell: enough for a cache, and free of a wait for the disk.
    Cached,
}

/// Open a regular file for reading, with its size in bytes; nothing where something else stands there.
///
/// The kind is asked for before, since opening a device can have effects, and after, since it may have been exchanged;
/// without blocking, since opening a pipe waits for a writer otherwise.
pub(super) fn open_regular(path: &Path, links: Links) -> io::Result<Option<(File, u64)>> {
    let metadata = if links == Links::Follow { fs::metadata(path) } else { fs::symlink_metadata(path) }?;
    if !metadata.is_file() {
        return Ok(None);
    }
    let mut options = OpenOptions::new();
    options.read(true);
    never_wait(&mut options, links);
    let file = options.open(path)?;
    let metadata = file.metadata()?;
    Ok(metadata.is_file().then_some((file, metadata.len())))
}

#[cfg(unix)]
fn never_wait(options: &mut OpenOptions, links: Links) {
    use rustix::fs::OFlags;
    use std::os::unix::fs::OpenOptionsExt;
    let follow = if links == Links::Follow { OFlags::empty() } else { OFlags::NOFOLLOW };
    options.custom_flags((OFlags::NONBLOCK | follow).bits() as i32);
}

#[cfg(not(unix))]
fn never_wait(_: &mut OpenOptions, _: Links) {}

/// For the owner alone: a KV state tells what was said.
#[cfg(unix)]
fn private(options: &mut OpenOptions) {
    use std::os::unix::fs::OpenOptionsExt;
    options.mode(0o600);
}

#[cfg(not(unix))]
fn private(_: &mut OpenOptions) {}

/// Make a folder and those above it, where they are not there, for the owner alone.
pub(super) fn make_private_folder(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::DirBuilderExt;
        builder.mode(0o700);
    }
    builder.create(path)
}

/// Whether a file's name is that of a temporary one.
pub(super) fn is_temporary(name: &str) -> bool {
    name.starts_with(TEMPORARY_PREFIX) && name.ends_with(TEMPORARY_SUFFIX)
}

/// A file that goes with this unless it got its place.
struct Temporary {
    path: PathBuf,
    is_placed: bool,
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.is_placed {
            // Best effort: what stays behind is no worse than after a crash.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn make_temporary(folder: &Path) -> io::Result<(File, Temporary)> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    private(&mut options);
    let mut n_tried = 0;
    loop {
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("{TEMPORARY_PREFIX}{}-{n}{TEMPORARY_SUFFIX}", std::process::id()));
        n_tried += 1;
        match options.open(&path) {
            Ok(file) => return Ok((file, Temporary { path, is_placed: false })),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && n_tried < MAX_NAMES => {}
            Err(e) => return Err(e),
        }
    }
}

/// Write a file whole or not at all. Who reads meanwhile finds the old one or the new one. A failure leaves nothing
/// behind, and the old file as it was.
///
/// A link is replaced by the file, as a rename does; a folder, pipe or device is refused.
pub(super) fn write_whole(path: &Path, pieces: &[&[u8]], durability: Durability) -> Result<(), StoreError> {
    if path.file_name().is_none() {
        return Err(StoreError::NotAFile { path: path.into() });
    }
    match fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => return Err(StoreError::NotAFile { path: path.into() }),
        Ok(_) => {}
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(StoreError::io(path, &e)),
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    place(folder, path, pieces, durability).map_err(|e| StoreError::io(path, &e))
}

fn place(folder: &Path, path: &Path, pieces: &[&[u8]], durability: Durability) -> io::Result<()> {
    let (file, mut temporary) = make_temporary(folder)?;
    fill(file, pieces, durability)?;
    fs::rename(&temporary.path, path)?;
    temporary.is_placed = true;
    if durability == Durability::Synced { sync_folder(folder) } else { Ok(()) }
}

/// Takes the file, so that it is closed whatever happens: Windows renames and removes only what is.
fn fill(mut file: File, pieces: &[&[u8]], durability: Durability) -> io::Result<()> {
    pieces.iter().try_for_each(|piece| file.write_all(piece))?;
    if durability == Durability::Synced { file.sync_all() } else { Ok(()) }
}

/// Some file systems cannot sync a folder, and say so by these kinds; they have nothing to offer instead.
#[cfg(unix)]
fn sync_folder(folder: &Path) -> io::Result<()> {
    match File::open(folder)?.sync_all() {
        Err(e) if matches!(e.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => Ok(()),
        synced => synced,
    }
}

#[cfg(not(unix))]
#[expect(clippy::unnecessary_wraps, reason = "it can fail elsewhere")]
fn sync_folder(_: &Path) -> io::Result<()> {
    Ok(())
}

/// Note that a file was used: its time becomes the next after `clock`, or its own if that is later. What it became.
///
/// Best effort: a time that cannot be set is forgotten with the process.
pub(super) fn touch(path: &Path, clock: u64) -> io::Result<u64> {
    let mut options = OpenOptions::new();
    options.write(true);
    never_wait(&mut options, Links::Refuse);
    let file = options.open(path)?;
    let used = file.metadata()?.modified().map_or(0, micros).max(clock.saturating_add(1));
    if let Some(time) = SystemTime::UNIX_EPOCH.checked_add(Duration::from_micros(used)) {
        let _ = file.set_modified(time);
    }
    Ok(used)
}

/// A file's time as a number. Unit: microseconds since 1970.
pub(super) fn micros(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

/// A lock on a folder, held until dropped: one holder on this machine, advisory.
pub(super) struct Lock {
    file: File,
    /// A fork inherits the lock, but must not give it up for its parent.
    #[cfg(unix)]
    pid: u32,
}

impl Lock {
    /// Take it, by a file; nothing where somebody else has it.
    pub(super) fn take(path: &Path) -> io::Result<Option<Self>> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        private(&mut options);
        never_wait(&mut options, Links::Refuse);
        Self::take_by(&options, path)
    }

    #[cfg(unix)]
    fn take_by(options: &OpenOptions, path: &Path) -> io::Result<Option<Self>> {
        use rustix::fs::{FlockOperation, flock};
        let file = options.open(path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self { file, pid: std::process::id() })),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// On Windows a file that is opened without sharing is a lock.
    #[cfg(windows)]
    fn take_by(options: &OpenOptions, path: &Path) -> io::Result<Option<Self>> {
        use std::os::windows::fs::OpenOptionsExt;
        const ERROR_SHARING_VIOLATION: i32 = 32;
        match options.clone().share_mode(0).open(path) {
            Ok(file) => Ok(Some(Self { file })),
            Err(e) if e.raw_os_error() == Some(ERROR_SHARING_VIOLATION) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The time that the file system gives what is written now. Nothing where nothing can be written.
    pub(super) fn now(&mut self) -> Option<SystemTime> {
        self.file.set_len(0).ok()?;
        writeln!(self.file, "{}", std::process::id()).ok()?;
        self.file.metadata().ok()?.modified().ok()
    }
}

#[cfg(unix)]
impl Drop for Lock {
    /// Closing the file is not enough: a fork still has it.
    fn drop(&mut self) {
        if self.pid == std::process::id() {
            let _ = rustix::fs::flock(&self.file, rustix::fs::FlockOperation::Unlock);
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]
mod tests {
    use super::*;
    use crate::store::scratch::Scratch;

    #[test]
    fn a_write_that_fails_leaves_nothing_behind() {
        let folder = Scratch::new("fails");
        // A rename onto a folder fails, with the temporary file written.
        let target = folder.join("target");
        fs::create_dir(&target).unwrap();
        place(&folder, &target, &[b"state"], Durability::Synced).unwrap_err();
        assert_eq!(fs::read_dir(&*folder).unwrap().count(), 1);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_told_as_such() {
        let file = File::options().write(true).open("/dev/full").unwrap();
        let error = fill(file, &[b"state"], Durability::Cached).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn the_leftover_of_a_process_with_the_same_id_is_not_touched() {
        let folder = Scratch::new("leftover");
        let (_, first) = make_temporary(&folder).unwrap();
        let number = |path: &Path| {
            let name = path.file_name().unwrap().to_str().unwrap().strip_suffix(TEMPORARY_SUFFIX).unwrap();
            name.rsplit('-').next().unwrap().parse::<u64>().unwrap()
        };
        let next = number(&first.path) + 1;
        for n in next..next + 50 {
            let name = format!("{TEMPORARY_PREFIX}{}-{n}{TEMPORARY_SUFFIX}", std::process::id());
            assert!(is_temporary(&name));
            fs::write(folder.join(name), "older").unwrap();
        }
        let (_, second) = make_temporary(&folder).unwrap();
        assert!(number(&second.path) >= next + 50 || fs::read(&second.path).unwrap().is_empty());
        drop((first, second));
        assert_eq!(fs::read_dir(&*folder).unwrap().count(), 50);
    }
}
