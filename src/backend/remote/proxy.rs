//! The engine's side.

use super::message::{Answer, Ask, Begin, Recipe};
use super::peers::Peers;
use super::process::{Ends, Launch, Observer, Process};
use super::wire::{Cut, Stopwatch, Wire};
use crate::backend::{Backend, IsWanted, Sign};
use crate::core::{DecodeOutcome, EmbedOutcome, EmbedPart, EmbedStatus, Limits, Op, OpResult, Row};
use crate::error::Error;
use std::borrow::Cow;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A work that takes longer is told of, once.
const SLOW: Duration = Duration::from_secs(10);

/// A backend in a process of its own.
///
/// What cannot cross is refused before it comes here: a sampler that is a Python callable would have every row of logits
/// sent to and fro.
pub struct RemoteBackend {
    process: Process,
    wire: Wire,
    alarm: UnixStream,
    limits: Limits,
    abort: Option<Arc<AtomicBool>>,
    pass: u64,
    timeout: Duration,
    peers: Peers,
    is_wanted: IsWanted,
    lost: Option<Error>,
}

impl RemoteBackend {
    /// Start the process and wait until it has made its backend. `progress` is given the part that is done, from 0 to 1,
    /// again and again; once it gives false, the process is ended. `timeout` is what a work may take, and the time
    /// between two signs of life while it loads.
    ///
    /// # Errors
    /// The process's own; [`Error::ModelLoad`] where it cannot be started, dies, or says nothing for too long, and
    /// [`Error::Rpc`] where one of its servers is in trouble then.
    pub fn start(
        launch: &Launch,
        recipe: &Recipe,
        timeout: Duration,
        progress: &dyn Fn(f32) -> bool,
    ) -> Result<Self, Error> {
        let (mut process, Ends { work, alarm }) = Process::start(launch)?;
        match load(work, recipe, timeout, progress) {
            Ok((wire, Ok((limits, can_abort)))) => {
                let abort = can_abort.then(Arc::default);
                Ok(Self {
                    process,
                    wire,
                    alarm,
                    limits,
                    abort,
                    pass: 0,
                    timeout,
                    peers: Peers::of(recipe),
                    is_wanted: Arc::new(|| true),
                    lost: None,
                })
            }
            Ok((_, Err(error))) => Err(error),
            Err(cut) => {
                let why = format!("the isolated backend did not come up: {}", obituary(&mut process, &cut, timeout));
                Err(if cut == Cut::Unwanted { Error::ModelLoad(why) } else { Peers::of(recipe).blame(&why) })
            }
        }
    }

    /// The number of the process.
    pub fn process_id(&self) -> u32 {
        self.process.id()
    }

    fn next_pass(&mut self) -> u64 {
        self.pass += 1;
        self.pass
    }

    /// Ask, and wait for the answer; none if the process is lost.
    fn ask(&mut self, ask: &Ask<'_>) -> Option<Answer> {
        if self.lost.is_some() {
            return None;
        }
        let started = Stopwatch::start();
        let pass = match ask {
            Ask::Decode { pass, .. } | Ask::Embed { pass, .. } => Some(*pass),
            Ask::Prepare(_) => None,
        };
        let mut alarm = Alarm { pass, flag: self.abort.as_deref(), wire: &self.alarm };
        let (observer, peers, mut is_slow) = (self.process.observer(), &mut self.peers, false);
        let mut look_up = || {
            alarm.ring();
            let elapsed = started.elapsed();
            if elapsed >= self.timeout {
                return Err(Cut::Late(elapsed));
            }
            if !(self.is_wanted)() {
                return Err(Cut::Unwanted);
            }
            if elapsed >= SLOW && !is_slow {
                is_slow = true;
                tell(observer, || Sign::Slow(elapsed, peers.knock()));
            }
            Ok(())
        };
        let answer = self.wire.send(ask, &mut look_up).and_then(|()| self.wire.receive(&mut look_up));
        if is_slow {
            tell(observer, || Sign::SlowOver(started.elapsed()));
        }
        answer.map_err(|cut| self.lose(&cut)).ok()
    }

    fn lose(&mut self, cut: &Cut) {
        let why = obituary(&mut self.process, cut, self.timeout);
        if *cut == Cut::Unwanted {
            self.lost.get_or_insert(Error::BackendLost(why));
        } else if self.lost.is_none() {
            let (error, seen) = self.peers.loss(&why);
            self.lost = Some(error);
            tell(self.process.observer(), || Sign::Seen(seen));
        }
    }

    /// The answer was of another kind than its question.
    fn mistaken(&mut self, answer: Option<Answer>) {
        if let Some(answer) = answer {
            self.lose(&Cut::Garbage(format!("an answer to another question: {answer:.60?}")));
        }
    }
}

/// Aborts a pass of the process when the flag is set, once.
struct Alarm<'a> {
    pass: Option<u64>,
    flag: Option<&'a AtomicBool>,
    wire: &'a UnixStream,
}

impl Alarm<'_> {
    fn ring(&mut self) {
        if self.flag.is_some_and(|flag| flag.load(Ordering::Relaxed))
            && let Some(pass) = self.pass.take()
        {
            // One that is not heard costs a pass that nobody waits for.
            let _ = self.wire.write(&pass.to_le_bytes());
        }
    }
}

fn tell(observer: Option<&Observer>, sign: impl FnOnce() -> Sign) {
    if let Some(observer) = observer {
        observer(sign());
    }
}

type Made = Result<(Limits, bool), Error>;

/// Tell the process what to load, and wait for that.
fn load(
    work: UnixStream,
    recipe: &Recipe,
    timeout: Duration,
    progress: &dyn Fn(f32) -> bool,
) -> Result<(Wire, Made), Cut> {
    let mut wire = Wire::new(work)?;
    let (mut done, mut heard) = (0.0, Stopwatch::start());
    let begin = Begin { version: env!("CARGO_PKG_VERSION").into(), recipe: recipe.clone() };
    wire.send(&begin, &mut || look_up(heard, timeout, done, progress))?;
    loop {
        match wire.receive(&mut || look_up(heard, timeout, done, progress))? {
            Answer::Progress(part) => (done, heard) = (part, Stopwatch::start()),
            Answer::Ready { limits, can_abort } => return Ok((wire, Ok((*limits, can_abort)))),
            Answer::Refused(error) => return Ok((wire, Err(error))),
            answer @ (Answer::Prepared(_) | Answer::Decoded(_) | Answer::Embedded(_)) => {
                return Err(Cut::Garbage(format!("an answer to no question: {answer:.60?}")));
            }
        }
        if !progress(done) {
            return Err(Cut::Unwanted);
        }
    }
}

fn look_up(heard: Stopwatch, timeout: Duration, done: f32, progress: &dyn Fn(f32) -> bool) -> Result<(), Cut> {
    if heard.elapsed() >= timeout {
        return Err(Cut::Late(timeout));
    }
    if progress(done) { Ok(()) } else { Err(Cut::Unwanted) }
}

/// End a process that is of no use any more, and say why it is not.
fn obituary(process: &mut Process, cut: &Cut, timeout: Duration) -> String {
    let number = process.id();
    let end = process.end(*cut == Cut::Closed);
    match cut {
        Cut::Closed => format!("its process {number} {end}"),
        Cut::Late(_) => {
            format!("its process {number} took longer than {} s (backend_timeout) and {end}", timeout.as_secs_f64())
        }
        Cut::Garbage(what) => format!("its process {number} said what cannot be read ({what}) and {end}"),
        Cut::Unwanted => format!("its process {number} was not wanted any more"),
        Cut::Broken(what) => format!("the connection with its process {number} failed ({what}), which {end}"),
    }
}

impl Backend for RemoteBackend {
    fn limits(&self) -> Limits {
        self.limits.clone()
    }

    fn prepare(&mut self, ops: &[Op]) -> Vec<OpResult> {
        match self.ask(&Ask::Prepare(Cow::Borrowed(ops))) {
            Some(Answer::Prepared(results)) if results.len() == ops.len() => return results,
            answer => self.mistaken(answer),
        }
        vec![OpResult::Refused("the backend is lost".into()); ops.len()]
    }

    fn decode(&mut self, rows: &[Row]) -> DecodeOutcome {
        let pass = self.next_pass();
        match self.ask(&Ask::Decode { pass, rows: Cow::Borrowed(rows) }) {
            Some(Answer::Decoded(outcome)) => return *outcome,
            answer => self.mistaken(answer),
        }
        DecodeOutcome::nothing("the backend is lost")
    }

    fn embed(&mut self, parts: &[EmbedPart]) -> EmbedOutcome {
        let pass = self.next_pass();
        match self.ask(&Ask::Embed { pass, parts: Cow::Borrowed(parts) }) {
            Some(Answer::Embedded(outcome)) => return *outcome,
            answer => self.mistaken(answer),
        }
        let status = EmbedStatus::Failed { code: -1, reason: "the backend is lost".into() };
        EmbedOutcome { status, eval: Duration::ZERO }
    }

    fn abort_flag(&self) -> Option<Arc<AtomicBool>> {
        self.abort.clone()
    }

    fn observe(&mut self, observer: Observer) {
        self.process.observe(observer);
    }

    fn ask_whether_wanted(&mut self, is_wanted: IsWanted) {
        self.is_wanted = is_wanted;
    }

    fn loss(&mut self) -> Option<Error> {
        if self.lost.is_none() && self.process.is_over() {
            self.lose(&Cut::Closed);
        }
        self.lost.clone()
    }
}
