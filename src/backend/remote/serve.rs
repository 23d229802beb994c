//! The process's side.

use super::message::{Answer, Ask, Begin, Recipe};
use super::wire::{Cut, Stopwatch, Wire, patient};
use crate::backend::Backend;
use crate::error::Error;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, getpid, kill_process};
use std::cell::{Cell, RefCell};
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::os::unix::process::parent_id;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often the process looks whether its parent is still there. A parent that was forked leaves ends of the sockets
/// open in its children, so their end alone does not tell. (Linux could tell of a parent's death by a signal; but that
/// comes with the death of the parent's *thread* that started the process, here a short-lived one.)
const WATCH: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// How often a backend that has nothing to do is asked whether it is still there.
const LOOK: Duration = Duration::from_millis(500);

/// Progress is told so often at most.
const TELLING: Duration = Duration::from_millis(50);

/// Make the backend that the other end asks for, and answer until that end is closed.
///
/// `work` and `alarm` are what the process was given as standard input and output. The process ends itself, in the middle
/// of whatever it does, when the one that started it is gone.
///
/// # Errors
/// Why it could not go on: what came cannot be read, or the system failed.
pub fn serve(
    work: UnixStream,
    alarm: UnixStream,
    make: impl FnOnce(Recipe, &dyn Fn(f32) -> bool) -> Result<Box<dyn Backend>, Error>,
) -> Result<(), String> {
    match answer(work, alarm, make) {
        Ok(()) | Err(Cut::Closed) => Ok(()),
        Err(Cut::Broken(why)) => Err(why),
        Err(cut) => Err(format!("{cut:?}")),
    }
}

fn answer(
    work: UnixStream,
    alarm: UnixStream,
    make: impl FnOnce(Recipe, &dyn Fn(f32) -> bool) -> Result<Box<dyn Backend>, Error>,
) -> Result<(), Cut> {
    let mut wire = Wire::new(work)?;
    let Begin { version, recipe } = wire.receive(&mut patient)?;
    if version != env!("CARGO_PKG_VERSION") {
        let both = format!("it is llama-batch {}, and who started it {version}", env!("CARGO_PKG_VERSION"));
        return wire.send(&Answer::Refused(Error::ModelLoad(both)), &mut patient);
    }
    let abort = Arc::new(Abort::default());
    let heard = Arc::clone(&abort);
    let watch = std::thread::Builder::new().name("alarm".into()).spawn(move || watch(alarm, &heard));
    watch.map_err(|error| Cut::Broken(error.to_string()))?;
    let wire = RefCell::new(wire);
    let told = Cell::new(Stopwatch::start());
    let progress = |done: f32| {
        if told.get().elapsed() >= TELLING {
            told.set(Stopwatch::start());
            return wire.borrow_mut().send(&Answer::Progress(done), &mut patient).is_ok();
        }
        true
    };
    let backend = make(recipe, &progress);
    let mut wire = wire.into_inner();
    let mut backend = match backend {
        Ok(backend) => backend,
        Err(error) => return wire.send(&Answer::Refused(error), &mut patient),
    };
    let flag = backend.abort_flag();
    let ready = Answer::Ready { limits: Box::new(backend.limits()), can_abort: flag.is_some() };
    lock(&abort.0).flag = flag;
    wire.send(&ready, &mut patient)?;
    let mut looked = Stopwatch::start();
    loop {
        let mut look = || {
            if looked.elapsed() < LOOK {
                return Ok(());
            }
            looked = Stopwatch::start();
            still_there(&mut *backend)
        };
        let ask = wire.receive(&mut look)?;
        still_there(&mut *backend)?;
        let answer = match ask {
            Ask::Prepare(ops) => Answer::Prepared(backend.prepare(&ops)),
            Ask::Decode { pass, rows } => {
                abort.begin(pass);
                Answer::Decoded(Box::new(backend.decode(&rows)))
            }
            Ask::Embed { pass, parts } => {
                abort.begin(pass);
                Answer::Embedded(Box::new(backend.embed(&parts)))
            }
        };
        wire.send(&answer, &mut patient)?;
    }
}

/// One that is gone is told of by the end of the process: whose start is being prepared then is served by the next one.
fn still_there(backend: &mut dyn Backend) -> Result<(), Cut> {
    backend.loss().map_or(Ok(()), |error| Err(Cut::Broken(error.to_string())))
}

/// Which pass runs, and which is to be aborted: what is heard late aborts no other.
#[derive(Default)]
struct Abort(Mutex<Passes>);

#[derive(Default)]
struct Passes {
    running: u64,
    unwanted: u64,
    flag: Option<Arc<AtomicBool>>,
}

impl Abort {
    fn begin(&self, pass: u64) {
        let mut passes = lock(&self.0);
        passes.running = pass;
        passes.settle();
    }

    fn hear(&self, pass: u64) {
        let mut passes = lock(&self.0);
        passes.unwanted = pass;
        passes.settle();
    }
}

impl Passes {
    fn settle(&self) {
        if let Some(flag) = &self.flag {
            flag.store(self.running == self.unwanted, Ordering::SeqCst);
        }
    }
}

fn lock(passes: &Mutex<Passes>) -> MutexGuard<'_, Passes> {
    passes.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Hear which passes are to be aborted, and end the process when its parent is gone.
fn watch(mut alarm: UnixStream, abort: &Abort) {
    let (parent, mut pass) = (parent_id(), [0; 8]);
    loop {
        // What it gives is seen below.
        let _ = poll(&mut [PollFd::new(&alarm, PollFlags::IN)], Some(&WATCH));
        if parent_id() != parent {
            break;
        }
        if alarm.set_nonblocking(true).is_err() {
            break;
        }
        match alarm.read(&mut pass) {
            Ok(8) => abort.hear(u64::from_le_bytes(pass)),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            // Eight bytes are written at once, and arrive so.
            Ok(_) | Err(_) => break,
        }
    }
    // Not an orderly end: a thread may be in the middle of a pass, or waiting for a peer for ever.
    let _ = kill_process(getpid(), Signal::KILL);
}
