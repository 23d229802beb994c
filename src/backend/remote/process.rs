//! The process: how it is started, what it said last, and its end.

use super::wire::Stopwatch;
use crate::backend::Sign;
use crate::error::Error;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// What a line of a log begins with in what the process writes to its standard error; its level follows, as a digit.
pub const LOG_MARK: u8 = 1;

/// Lines that are kept for the error of who dies, and how long a line is.
const N_LAST_LINES: usize = 6;
const LINE_BYTES: u64 = 4096;

/// A process that has closed its end is dying; so long it may take, to write down its memory for instance.
const DYING: Duration = Duration::from_secs(3);

/// How the process is started.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The program.
    pub program: OsString,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// What is set in its environment beside ours.
    pub env: Vec<(OsString, OsString)>,
    /// Takes what it logs: a level, from 0 (for developers) to 3 (errors), and a line.
    pub on_log: fn(u32, &str),
}

pub(super) type Observer = Arc<dyn Fn(Sign) + Send + Sync>;

/// What the thread that reads its standard error shares with the others.
#[derive(Default)]
struct Said {
    last: Mutex<VecDeque<String>>,
    is_over: AtomicBool,
    observer: OnceLock<Observer>,
}

/// A running process; dropping it ends it.
pub(super) struct Process {
    child: Child,
    errors: UnixStream,
    said: Arc<Said>,
    reader: Option<JoinHandle<()>>,
}

/// The ends that we keep of what its standard input and output are: for works, and to abort one.
pub(super) struct Ends {
    pub(super) work: UnixStream,
    pub(super) alarm: UnixStream,
}

impl Process {
    pub(super) fn start(launch: &Launch) -> Result<(Self, Ends), Error> {
        let program = launch.program.to_string_lossy();
        let why = |error: std::io::Error| Error::ModelLoad(format!("{program} could not be started: {error}"));
        let (work, its_work) = UnixStream::pair().map_err(why)?;
        let (alarm, its_alarm) = UnixStream::pair().map_err(why)?;
        let (errors, its_errors) = UnixStream::pair().map_err(why)?;
        alarm.set_nonblocking(true).map_err(why)?;
        let child = Command::new(&launch.program)
            .args(&launch.args)
            .envs(launch.env.iter().map(|(name, value)| (name, value)))
            .stdin(OwnedFd::from(its_work))
            .stdout(OwnedFd::from(its_alarm))
            .stderr(OwnedFd::from(its_errors))
            // What a terminal tells its programs is for ours to hear, and ours ends this one.
            .process_group(0)
            .spawn()
            .map_err(why)?;
        let said = Arc::new(Said::default());
        let mut process = Self { child, errors, said, reader: None };
        let (lines, said, on_log) =
            (process.errors.try_clone().map_err(why)?, Arc::clone(&process.said), launch.on_log);
        let reader = std::thread::Builder::new().name("llama-batch-isolated".into());
        process.reader = Some(reader.spawn(move || read_lines(lines, &said, on_log)).map_err(why)?);
        Ok((process, Ends { work, alarm }))
    }

    /// Its number.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Have somebody told when it goes.
    pub(super) fn observe(&self, observer: Observer) {
        drop(self.said.observer.set(observer));
        if self.is_over() {
            self.said.tell();
        }
    }

    pub(super) fn observer(&self) -> Option<&Observer> {
        self.said.observer.get()
    }

    /// Whether it has closed its standard error, as a process does that ends.
    pub(super) fn is_over(&self) -> bool {
        self.said.is_over.load(Ordering::Acquire)
    }

    /// See to its end: at once, or as it comes by itself. How it ended, and what it said last.
    pub(super) fn end(&mut self, is_dying: bool) -> String {
        let (mut ended, dying) = (self.look(), Stopwatch::start());
        while is_dying && ended == Ok(None) && dying.elapsed() < DYING {
            std::thread::sleep(Duration::from_millis(5));
            ended = self.look();
        }
        self.stop();
        self.hear_out();
        let how = match ended {
            Ok(Some(status)) => describe(status),
            Ok(None) => "was killed".into(),
            Err(()) => "ended".into(),
        };
        let last = self.said.last.lock().unwrap_or_else(PoisonError::into_inner);
        let last: Vec<&str> = last.iter().map(String::as_str).collect();
        if last.is_empty() { how } else { format!("{how}; its last words: {}", last.join(" | ")) }
    }

    /// How it ended, if it did; an error where somebody else in this process has heard that.
    fn look(&mut self) -> Result<Option<ExitStatus>, ()> {
        self.child.try_wait().map_err(|_| ())
    }

    /// End it, unless it is over: its number may be another's by then.
    fn stop(&mut self) {
        if self.look() == Ok(None) {
            // What fails here is over, which is what is wanted.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    /// Read what is left of what it said.
    fn hear_out(&mut self) {
        // Somebody that it started may hold the other end.
        let _ = self.errors.shutdown(Shutdown::Read);
        if let Some(reader) = self.reader.take() {
            drop(reader.join());
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop();
        self.hear_out();
    }
}

impl Said {
    fn tell(&self) {
        if let Some(observer) = self.observer.get() {
            observer(Sign::Lost);
        }
    }

    fn note(&self, line: &str) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.len() == N_LAST_LINES {
            last.pop_front();
        }
        last.push_back(line.to_owned());
    }
}

fn read_lines(stream: UnixStream, said: &Said, on_log: fn(u32, &str)) {
    const WARNING: u32 = 2;
    let mut lines = BufReader::new(stream);
    let mut line = Vec::new();
    loop {
        line.clear();
        match lines.by_ref().take(LINE_BYTES).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
        let (level, text) = match &line[..] {
            [LOG_MARK, level, text @ ..] => (u32::from(level.saturating_sub(b'0')).min(3), text),
            text => (WARNING, text),
        };
        let text = String::from_utf8_lossy(text);
        let text = text.trim_end();
        if text.is_empty() {
            continue;
        }
        if level >= WARNING {
            said.note(text);
        }
        on_log(level, text);
    }
    said.is_over.store(true, Ordering::Release);
    said.tell();
}

/// How a process ended.
fn describe(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(6), _) => "was ended by signal 6 (abort)".into(),
        (Some(9), _) => "was ended by signal 9 (kill)".into(),
        (Some(11), _) => "was ended by signal 11 (segmentation fault)".into(),
        (Some(signal), _) => format!("was ended by signal {signal}"),
        (None, Some(code)) => format!("exited with code {code}"),
        (None, None) => "ended".into(),
    }
}
