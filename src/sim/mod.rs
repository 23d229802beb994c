//! The scheduler over the simulated backend in virtual time: a capacity planner for users, the target of property
//! tests, and a benchmark.

use crate::backend::sim::{Fault, Latency, SimBackend, SimConfig};
use crate::backend::{Backend, Pick};
use crate::core::{
    Event, Outcome, Request, RequestId, Scheduler, SchedulerOptions, SessionState, Stats, Time, TransferId, Work,
};
use crate::error::Error;
use crate::options::Key;
use std::collections::VecDeque;
use std::time::Duration;

/// A scheduler, a backend and a clock that moves only as passes are told to take their time.
#[derive(Debug)]
pub struct Simulation {
    scheduler: Scheduler,
    backend: SimBackend,
    now: Time,
    in_flight: Option<(Work, Outcome)>,
    /// Whose next token a sampler of the caller's own is still to draw.
    undrawn: VecDeque<RequestId>,
    turn: u64,
}

impl Simulation {
    /// A simulation at time 0.
    pub fn new(config: SimConfig, options: SchedulerOptions) -> Self {
        let backend = SimBackend::new(config);
        let scheduler = Scheduler::new(options, backend.limits());
        Self { scheduler, backend, now: Time(0), in_flight: None, undrawn: VecDeque::new(), turn: 0 }
    }

    /// End it, and begin a new one that has nothing of it but what is on disk.
    #[must_use]
    pub fn restarted(self, options: SchedulerOptions) -> Self {
        let mut backend = self.backend;
        backend.restart();
        let mut scheduler = Scheduler::new(options, backend.limits());
        scheduler.adopt_disk(backend.disk().entries());
        Self { scheduler, backend, now: Time(0), in_flight: None, undrawn: VecDeque::new(), turn: 0 }
    }

    /// The virtual time.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Submit a request now.
    ///
    /// # Errors
    /// Those of [`Scheduler::submit`].
    pub fn submit(&mut self, request: Request) -> Result<(), Error> {
        self.scheduler.submit(self.now, request)
    }

    /// Take out the state of a session.
    ///
    /// # Errors
    /// Those of [`Scheduler::save_session`].
    pub fn save_session(&mut self, transfer: u64, scope: Option<&Key>, session: &Key) -> Result<(), Error> {
        self.scheduler.save_session(self.now, TransferId(transfer), scope, session)
    }

    /// Put the state of a session into the RAM tier.
    ///
    /// # Errors
    /// Those of [`Scheduler::load_session`].
    pub fn load_session(
        &mut self,
        transfer: u64,
        scope: Option<&Key>,
        session: &Key,
        state: SessionState,
    ) -> Result<(), Error> {
        self.scheduler.load_session(self.now, TransferId(transfer), scope, session, state)
    }

    /// Cancel a request now, also one whose work is under way.
    pub fn cancel(&mut self, id: RequestId) {
        self.scheduler.cancel(self.now, id);
    }

    /// Let time go by.
    pub fn advance(&mut self, by: Duration) {
        self.now = self.now + by;
        self.scheduler.handle_timeout(self.now);
    }

    /// Let passes take another time from now on.
    pub fn set_latency(&mut self, latency: Latency) {
        self.backend.set_latency(latency);
    }

    /// Let so many others want a core from now on.
    pub fn set_busy(&mut self, n: u32) {
        self.backend.set_busy(n);
    }

    /// Let the next op or pass that the fault can hit fail with it.
    pub fn inject(&mut self, fault: Fault) {
        self.backend.inject(fault);
    }

    /// The backend is gone, with the work under way, which may have been done in part or whole.
    pub fn lose_backend(&mut self) {
        if self.scheduler.is_lost() {
            return;
        }
        let error = Error::BackendLost("injected: the backend is gone".into());
        self.backend.restart();
        self.undrawn.clear();
        match self.in_flight.take() {
            Some((work, _)) => self.scheduler.apply(self.now, work, Outcome::Lost(error)),
            None => self.scheduler.lose_backend(self.now, &error),
        }
    }

    /// Have the next backend be of another kind.
    pub fn replace_backend(&mut self, config: SimConfig) {
        self.backend = SimBackend::new(config);
    }

    /// There is one again, if it was lost.
    ///
    /// # Errors
    /// Those of [`Scheduler::restore_backend`].
    pub fn restore_backend(&mut self) -> Result<(), Error> {
        if self.scheduler.is_lost() { self.scheduler.restore_backend(self.now, self.backend.limits()) } else { Ok(()) }
    }

    /// Plan the next work and let the backend do it, without telling the scheduler yet; whether there was any.
    pub fn begin(&mut self) -> bool {
        if self.in_flight.is_some() {
            return false;
        }
        // A sampler of the caller's own takes its time: every other turn one of them answers.
        self.turn += 1;
        if self.turn.is_multiple_of(2) {
            self.answer_one();
        }
        let mut work = self.scheduler.plan(self.now);
        while work.is_none() && self.answer_one() {
            work = self.scheduler.plan(self.now);
        }
        let Some(work) = work else { return false };
        let outcome = match &work {
            Work::Prepare(ops) => Outcome::Prepare(self.backend.prepare(ops)),
            Work::Decode(rows) => {
                let outcome = self.backend.decode(rows);
                self.now = self.now + outcome.eval + outcome.sample;
                Outcome::Decode(outcome)
            }
            Work::Embed(parts) => {
                let outcome = self.backend.embed(parts);
                self.now = self.now + outcome.eval;
                Outcome::Embed(outcome)
            }
            Work::Strategy(_) => Outcome::Strategy(Err("a simulation has no callables".into())),
        };
        self.in_flight = Some((work, outcome));
        true
    }

    /// Have one of the callers' own samplers take the likeliest of what it was offered; whether there was any.
    fn answer_one(&mut self) -> bool {
        let Some(request) = self.undrawn.pop_front() else { return false };
        let pick = self.backend.offered(request).map(|(_, logits)| Pick::Logits(logits));
        let drawn = pick.map_or_else(
            || Err(Error::Inference("nothing was offered".into())),
            |pick| self.backend.settle(request, pick),
        );
        self.scheduler.supply(self.now, request, drawn);
        true
    }

    /// Tell the scheduler what came of the work under way; whether there was any.
    pub fn complete(&mut self) -> bool {
        let Some((work, outcome)) = self.in_flight.take() else { return false };
        if let Outcome::Decode(outcome) = &outcome {
            self.undrawn.extend(outcome.undrawn());
        }
        self.scheduler.apply(self.now, work, outcome);
        self.scheduler.handle_timeout(self.now);
        true
    }

    /// One work from plan to outcome; whether there was any.
    pub fn step(&mut self) -> bool {
        self.begin();
        self.complete()
    }

    /// Step until nothing is left to do or `max_steps` are over; whether nothing is left.
    pub fn run(&mut self, max_steps: u64) -> bool {
        (0..max_steps).any(|_| !self.step())
    }

    /// What the scheduler told, oldest first.
    pub fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.scheduler.poll_event()).collect()
    }

    /// Figures of this moment.
    pub fn stats(&self) -> Stats {
        self.scheduler.stats()
    }

    /// The engine is about to end: what is cached is stored.
    pub fn leave(&mut self) {
        self.scheduler.leave();
    }

    /// KV cells up to the highest one in use, where that matters.
    pub fn span(&self) -> u32 {
        self.backend.span()
    }

    /// When something times out next.
    pub fn next_timeout(&self) -> Option<Time> {
        self.scheduler.poll_timeout()
    }

    /// All invariants of the scheduler, and its account against the backend's own count.
    ///
    /// # Panics
    /// When one is broken.
    pub fn check(&self) {
        self.scheduler.check();
        if self.scheduler.is_settled() {
            let stats = self.scheduler.stats();
            assert_eq!(stats.kv_cells_used, self.backend.n_cells_used(), "the account of KV cells");
            assert_eq!(stats.ram_cache_entries as usize, self.backend.n_blobs(), "the account of the RAM tier");
            let n_on_disk = if self.scheduler.has_disk() { self.backend.disk().len() } else { 0 };
            assert_eq!(stats.disk_cache_entries as usize, n_on_disk, "the account of the disk tier");
        }
        if self.scheduler.is_idle() {
            assert_eq!(self.backend.n_samplers(), 0, "samplers outlive their requests");
        }
    }
}
