//! What the handle, the loader thread and the engine thread share.

use super::clock::Clock;
use super::home::Home;
use super::intake::{Closing, Entry, Intake, Removed, Stage};
use super::loader::{MakeAgain, MakeBackend};
use super::lock;
use super::mailbox::{Cancelling, Mailbox, wait_for};
use super::metrics::Metrics;
use super::pass_watch::PassWatch;
use super::prompt::{Identity, Model};
use super::servers::Servers;
use super::sessions::Transfer;
use super::settle::Settler;
use super::state::{State, StateCell};
use super::stats::StatsCell;
use super::telemetry::Telemetry;
use super::waker::Wakes;
use crate::backend::Pick;
use crate::core::{Event, FinishReason, Finished, Limits, RequestId, Stats, Time};
use crate::error::Error;
use crate::options::StartOptions;
use crate::tune::Report;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Duration;
use tokio::sync::mpsc::UnboundedSender;

/// How long an engine that is not closed in peace goes on to store what it leaves behind.
const LEAVE_LIMIT: Duration = Duration::from_secs(3);

/// How long such an engine waits for a work that does not end, and then for nothing any more.
const END_LIMIT: Duration = Duration::from_secs(5);

/// What the engine thread is told. Its number is bounded by that of the requests in flight.
pub(super) enum Command {
    /// The model is loaded.
    Start(MakeBackend, Option<MakeAgain>, Identity),
    /// A backend that was lost is made again, or could not be.
    Made(Result<MakeBackend, Error>),
    /// A sampler of the caller's own has drawn, or failed.
    Chosen(RequestId, Result<Pick, String>),
    /// Requests come in; answers to one prompt together, so that none of them has ended before another is there.
    Submit(Vec<Entry>),
    /// A request is cancelled.
    Cancel(RequestId),
    /// A session is to be saved or loaded.
    Transfer(Transfer),
    /// Something else changed: look again.
    Look,
}

pub(super) struct Shared {
    pub(super) options: StartOptions,
    pub(super) home: Home,
    pub(super) clock: Clock,
    pub(super) state: StateCell,
    pub(super) stats: StatsCell,
    pub(super) metrics: Metrics,
    pub(super) passes: PassWatch,
    pub(super) telemetry: Arc<Telemetry>,
    pub(super) limits: OnceLock<Limits>,
    intake: Mutex<Intake>,
    commands: UnboundedSender<Command>,
    /// Copies of what the books say, for who must not wait for them.
    pub(super) n_in_flight: AtomicU32,
    pub(super) n_held: AtomicU32,
    /// Until when what the engine leaves behind may be stored.
    leaves_until: AtomicU64,
    /// When the first of those who are held back runs out of time.
    held_until: AtomicU64,
    /// Requests that ended without the core: all, by an error, by cancellation.
    pub(super) outside: [AtomicU64; 3],
    pub(super) load_progress: AtomicU32,
    pub(super) load_nanos: AtomicU64,
    pub(super) calibration: OnceLock<Report>,
    pub(super) n_halves_ready: AtomicU32,
    pub(super) n_backend_restarts: AtomicU32,
    pub(super) is_backend_lost: AtomicBool,
    pub(super) servers: Servers,
    seeds: RandomState,
    pub(super) settler: Settler,
    /// Threads that run.
    n_threads: Mutex<u32>,
    stopped: Condvar,
}

impl Shared {
    pub(super) fn new(
        name: Arc<str>,
        engine_id: u64,
        options: StartOptions,
        commands: UnboundedSender<Command>,
    ) -> Self {
        let idle = Stats { idle_slots: options.n_parallel, n_parallel: options.n_parallel, ..Stats::default() };
        Self {
            intake: Mutex::new(Intake::new(&options)),
            metrics: Metrics::new(options.n_ctx),
            servers: Servers::new(&options),
            options,
            home: Home::here(),
            clock: Clock::start(),
            state: StateCell::new(),
            stats: StatsCell::new(&idle),
            passes: PassWatch::default(),
            telemetry: Arc::new(Telemetry::new(name, engine_id)),
            limits: OnceLock::new(),
            commands,
            n_in_flight: AtomicU32::new(0),
            n_held: AtomicU32::new(0),
            held_until: AtomicU64::new(Time::NEVER.0),
            leaves_until: AtomicU64::new(Time::NEVER.0),
            outside: [const { AtomicU64::new(0) }; 3],
            load_progress: AtomicU32::new(0),
            load_nanos: AtomicU64::new(0),
            calibration: OnceLock::new(),
            n_halves_ready: AtomicU32::new(0),
            n_backend_restarts: AtomicU32::new(0),
            is_backend_lost: AtomicBool::new(false),
            seeds: RandomState::new(),
            settler: Settler::default(),
            n_threads: Mutex::default(),
            stopped: Condvar::new(),
        }
    }

    /// Tell the engine thread; it may be gone.
    pub(super) fn send(&self, command: Command) {
        drop(self.commands.send(command));
    }

    /// End a request with what the core says of it, unless it ended before.
    pub(super) fn end(&self, finished: &Finished, wakes: &mut Wakes) {
        if let Some(removed) = self.remove(finished.request) {
            self.announce(&removed.mailbox, finished.clone(), wakes);
            if finished.end.is_err() {
                // Of several answers one alone is none.
                self.cancel_mailbox(&removed.mailbox);
            }
        }
    }

    /// The listeners hear of an end before the caller does: who has a result can rely on its event having been told,
    /// and who begins to listen then hears nothing of it. It is counted by then too.
    fn announce(&self, mailbox: &Mailbox, finished: Finished, wakes: &mut Wakes) {
        self.metrics.end(&finished);
        self.telemetry.publish(self.clock, || Event::Finished(Box::new(finished.clone())), wakes);
        mailbox.finish(finished, wakes);
    }

    /// End a request of which the core has nothing to say.
    pub(super) fn end_outside(&self, id: RequestId, end: Result<FinishReason, Error>) {
        let Some(removed) = self.remove(id) else { return };
        if removed.sent {
            self.send(Command::Cancel(id));
        } else {
            self.count_outside(&end);
        }
        self.tell_end(&removed.mailbox, id, end, &mut Wakes::default());
    }

    /// Count a request that the core has never seen.
    pub(super) fn count_outside(&self, end: &Result<FinishReason, Error>) {
        let [all, failed, cancelled] = &self.outside;
        all.fetch_add(1, Ordering::Relaxed);
        failed.fetch_add(u64::from(end.is_err()), Ordering::Relaxed);
        cancelled.fetch_add(u64::from(*end == Ok(FinishReason::Cancelled)), Ordering::Relaxed);
    }

    fn tell_end(&self, mailbox: &Mailbox, id: RequestId, end: Result<FinishReason, Error>, wakes: &mut Wakes) {
        if !mailbox.has_ended(id) {
            self.announce(mailbox, mailbox.ended_outside(id, end, self.clock.now()), wakes);
        }
    }

    /// Take a request off the books; the one who gets it ends it.
    fn remove(&self, id: RequestId) -> Option<Removed> {
        self.with_intake(|intake| {
            let mut removed = intake.remove(id)?;
            let next = std::mem::take(&mut removed.next);
            if !next.is_empty() {
                self.send(Command::Submit(next));
            }
            Some(removed)
        })
    }

    /// Cancel one request.
    pub(super) fn cancel(&self, id: RequestId) {
        let Some(mailbox) = self.with_intake(|intake| intake.find(id)) else { return };
        self.cancel_mailbox(&mailbox);
    }

    pub(super) fn cancel_mailbox(&self, mailbox: &Mailbox) {
        for (id, cancelling) in mailbox.cancel() {
            match cancelling {
                Cancelling::Now => self.end_outside(id, Ok(FinishReason::Cancelled)),
                Cancelling::Running => {
                    self.passes.cancel(id);
                    self.send(Command::Cancel(id));
                }
                Cancelling::Done => {}
            }
        }
    }

    /// End those who are held back here and have no time left. Costs one load while nobody has.
    pub(super) fn expire_held(&self, now: Time) {
        if now.0 < self.held_until.load(Ordering::Relaxed) {
            return;
        }
        for (id, error) in self.with_intake(|intake| intake.overdue(now)) {
            self.end_outside(id, Err(error));
        }
        self.with_intake(|intake| {
            let next = intake.next_deadline().unwrap_or(Time::NEVER);
            self.held_until.store(next.0, Ordering::Relaxed);
        });
    }

    /// When `expire_held` is due.
    pub(super) fn held_until(&self) -> Option<Time> {
        Some(Time(self.held_until.load(Ordering::Relaxed))).filter(|at| *at < Time::NEVER)
    }

    /// Somebody is held back, until then at most.
    pub(super) fn watch_held(&self, due: Time) {
        if self.held_until.fetch_min(due.0, Ordering::Relaxed) > due.0 {
            self.send(Command::Look);
        }
    }

    /// The engine is of no use any more: end everybody, now and later, with this error.
    pub(super) fn fail(&self, error: &Error) {
        self.end_everybody(&State::Failed(error.clone()), error, &Err(error.clone()));
        self.send(Command::Look);
    }

    /// The engine thread is done. Nobody should be left; if somebody is, it must not wait for ever.
    pub(super) fn retire(&self) {
        if !self.with_intake(|intake| matches!(intake.stage, Stage::Ended(_))) {
            self.end_everybody(&State::Closed, &Error::EngineClosed, &Ok(FinishReason::Cancelled));
        }
    }

    /// First shut the door, then say so, then tell those who are in.
    fn end_everybody(&self, state: &State, later: &Error, now: &Result<FinishReason, Error>) {
        let mut wakes = Wakes::default();
        let everybody = self.with_intake(|intake| intake.end(later.clone()));
        self.state.set(state.clone());
        for (id, mailbox) in &everybody.mailboxes {
            self.tell_end(mailbox, *id, now.clone(), &mut wakes);
        }
        self.telemetry.close(&mut wakes);
    }

    /// Begin to close; what was begun before goes on if it is stricter.
    pub(super) fn begin_close(&self, closing: Closing) {
        let ids = self.with_intake(|intake| {
            intake.close(closing);
            if intake.closing == Closing::Cancel { intake.live_ids() } else { Vec::new() }
        });
        self.state.set(State::Closed);
        if closing == Closing::Cancel {
            self.leaves_until.fetch_min((self.clock.now() + LEAVE_LIMIT).0, Ordering::Relaxed);
            self.passes.cancel_all();
        }
        for id in ids {
            self.cancel(id);
        }
        self.send(Command::Look);
    }

    /// Whether the engine thread has nothing more to do, ever. From then on nobody comes in.
    pub(super) fn may_stop(&self) -> bool {
        self.with_intake(|intake| match intake.stage {
            Stage::Ended(_) => true,
            Stage::Loading | Stage::Open(_) => intake.closing > Closing::No && intake.is_empty(),
        })
    }

    /// Whether the engine is being closed, and there is time left to store what it leaves behind.
    pub(super) fn leaves_states(&self) -> bool {
        self.options.prompt_cache_dir.is_some()
            && self.clock.now().0 < self.leaves_until.load(Ordering::Relaxed)
            && self.with_intake(|intake| intake.closing > Closing::No && matches!(intake.stage, Stage::Open(_)))
    }

    /// Whether the engine was closed, and not in peace, so long ago that no work is waited for.
    pub(super) fn is_given_up(&self) -> bool {
        self.clock.now().0 >= self.leaves_until.load(Ordering::Relaxed).saturating_add(END_LIMIT.as_nanos() as u64)
    }

    /// Whether anybody still wants the model that is being loaded.
    pub(super) fn is_wanted(&self) -> bool {
        !self.may_stop()
    }

    pub(super) fn set_load_progress(&self, done: f32) {
        self.load_progress.store(done.clamp(0.0, 1.0).to_bits(), Ordering::Relaxed);
    }

    /// # Errors
    /// Why there is no model (yet).
    pub(super) fn model(&self) -> Result<Model, Error> {
        self.with_intake(|intake| match &intake.stage {
            Stage::Ended(error) => Err(error.clone()),
            Stage::Loading | Stage::Open(_) if intake.closing > Closing::No => Err(Error::EngineClosed),
            Stage::Loading => Err(Error::EngineNotReady),
            Stage::Open(model) => Ok(model.clone()),
        })
    }

    pub(super) fn with_intake<T>(&self, change: impl FnOnce(&mut Intake) -> T) -> T {
        let mut intake = lock(&self.intake);
        let result = change(&mut intake);
        let (n_in_flight, n_held) = intake.counts();
        self.n_in_flight.store(n_in_flight, Ordering::Relaxed);
        self.n_held.store(n_held, Ordering::Relaxed);
        result
    }

    /// Not secret, only different: 32 bits, so that people can type it.
    pub(super) fn fresh_seed(&self, at: Time) -> u64 {
        self.seeds.hash_one((at.0, self.n_in_flight.load(Ordering::Relaxed))) >> 32
    }

    /// A thread of this engine is about to begin.
    pub(super) fn thread_starts(&self) {
        *lock(&self.n_threads) += 1;
    }

    /// A thread of this engine is over, or could not begin.
    pub(super) fn thread_stops(&self) {
        *lock(&self.n_threads) -= 1;
        self.stopped.notify_all();
    }

    /// Wait for all threads to end; false if the time runs out first.
    pub(super) fn wait_stopped(&self, timeout: Option<Duration>) -> bool {
        wait_for(&self.n_threads, &self.stopped, timeout, |n| *n == 0)
    }
}
