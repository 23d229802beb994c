//! What the engine does about a backend that is gone: it is made again, on a thread of its own, with pauses that grow.
//! Meanwhile the engine stays ready: requests come in, and wait or fail as they chose.

use super::handle::Running;
use super::loader::{MakeAgain, MakeBackend};
use super::panic_text;
use super::shared::{Command, Shared};
use super::thread::{EngineThread, STACK_BYTES};
use super::waker::Wakes;
use crate::backend::{Backend, Sign};
use crate::core::{BackendEvent, Event, Time};
use crate::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A backend that has lived for so long was well: the next loss is a new trouble.
const WELL: Duration = Duration::from_secs(600);

/// The pause before the second try; it doubles from there, up to the last of these.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LAST_PAUSE: Duration = Duration::from_secs(30);

/// How often who pauses looks whether it still should.
const SLICE: Duration = Duration::from_millis(20);

/// How it goes with a backend that may be lost.
pub(super) struct Recovery {
    make_again: Option<MakeAgain>,
    /// Tries since a backend was last well.
    n_tries: u32,
    /// Tries since the loss, and when that was.
    attempts: u32,
    lost_at: Time,
    made_at: Time,
    /// Why the engine cannot go on, if so.
    pub(super) fatal: Option<Error>,
}

impl Recovery {
    pub(super) fn new(make_again: Option<MakeAgain>, now: Time) -> Self {
        Self { make_again, n_tries: 0, attempts: 0, lost_at: now, made_at: now, fatal: None }
    }
}

/// Have the engine told of what happens to its backend while nobody looks.
pub(super) fn watch(shared: &Arc<Shared>, backend: &mut dyn Backend) {
    let asked = Arc::clone(shared);
    backend.ask_whether_wanted(Arc::new(move || !asked.is_given_up()));
    let shared = Arc::clone(shared);
    backend.observe(Arc::new(move |sign| match sign {
        Sign::Lost => shared.send(Command::Look),
        Sign::Slow(elapsed, sights) => {
            let now = shared.clock.now();
            shared.servers.slow_since(Time(now.0.saturating_sub(elapsed.as_nanos() as u64)));
            shared.servers.note(now, &sights);
            let (endpoint, reason) = shared.suspects(&sights);
            tell(&shared, BackendEvent::Slow { elapsed, endpoint, reason }, &mut Wakes::default());
        }
        Sign::SlowOver(took) => shared.servers.slow_took(took),
        Sign::Seen(sights) => shared.servers.note(shared.clock.now(), &sights),
    }));
}

fn tell(shared: &Shared, event: BackendEvent, wakes: &mut Wakes) {
    shared.telemetry.publish(shared.clock, || Event::Backend(event), wakes);
}

impl EngineThread {
    /// See whether the backend went while it had nothing to do.
    pub(super) fn look_after_backend(&mut self, now: Time) {
        if self.scheduler.is_lost() {
            return;
        }
        if let Some(error) = self.backend.loss() {
            self.scheduler.lose_backend(now, &error);
            self.recover(now, &error);
        }
    }

    /// The backend is gone, and the scheduler knows: have it made again.
    pub(super) fn recover(&mut self, now: Time, error: &Error) {
        self.shared.is_backend_lost.store(true, Ordering::Relaxed);
        let endpoint = if let Error::Rpc { endpoint, .. } = error { endpoint.clone() } else { String::new() };
        tell(&self.shared, BackendEvent::Lost { reason: error.to_string(), endpoint }, &mut self.wakes);
        let recovery = &mut self.recovery;
        if now - recovery.made_at >= WELL {
            recovery.n_tries = 0;
        }
        (recovery.lost_at, recovery.attempts) = (now, 0);
        self.try_again(error);
    }

    fn try_again(&mut self, error: &Error) {
        let most = self.shared.options.max_backend_restarts;
        let recovery = &mut self.recovery;
        let (n_tries, make_again) = (recovery.n_tries, recovery.make_again.clone());
        let Some(make_again) = make_again.filter(|_| n_tries < most) else {
            let reason = format!("{error}; after {n_tries} restarts it is not made again (max_backend_restarts)");
            recovery.fatal = Some(Error::ModelLoad(reason));
            return;
        };
        recovery.n_tries += 1;
        recovery.attempts += 1;
        let delay = pause_before(recovery.n_tries);
        let attempt = recovery.attempts;
        tell(&self.shared, BackendEvent::Retry { attempt, delay, reason: error.to_string() }, &mut self.wakes);
        self.shared.thread_starts();
        let (shared, running) = (Arc::clone(&self.shared), Running(Arc::clone(&self.shared)));
        let thread = std::thread::Builder::new().name("loader again".into()).stack_size(STACK_BYTES);
        let spawned = thread.spawn(move || {
            let _running = running;
            if pause(&shared, delay) {
                shared.send(Command::Made(make(&shared, &make_again)));
            }
        });
        if let Err(error) = spawned {
            recovery.fatal = Some(Error::EngineCrashed(format!("there is no thread to load again: {error}")));
        }
    }

    /// It was made again, or could not be.
    pub(super) fn backend_made(&mut self, made: Result<MakeBackend, Error>) {
        let backend = match made.and_then(|make| make()) {
            Ok(backend) => backend,
            Err(error) => {
                self.shared.servers.note_failure(self.shared.clock.now(), &error);
                return self.try_again(&error);
            }
        };
        self.backend.replace(backend);
        watch(&self.shared, &mut self.backend);
        let now = self.shared.clock.now();
        if let Err(error) = self.scheduler.restore_backend(now, self.backend.limits()) {
            self.recovery.fatal = Some(error);
            return;
        }
        self.recovery.made_at = now;
        self.shared.servers.all_well(now);
        self.shared.n_backend_restarts.fetch_add(1, Ordering::Relaxed);
        self.shared.is_backend_lost.store(false, Ordering::Relaxed);
        let (attempts, took) = (self.recovery.attempts, now - self.recovery.lost_at);
        tell(&self.shared, BackendEvent::Restored { attempts, took }, &mut self.wakes);
    }
}

fn make(shared: &Shared, make_again: &MakeAgain) -> Result<MakeBackend, Error> {
    let is_wanted = |_| shared.is_wanted();
    let made = catch_unwind(AssertUnwindSafe(|| make_again(&is_wanted)));
    made.unwrap_or_else(|panic| Err(Error::EngineCrashed(panic_text(&*panic))))
}

/// How long is waited before the n-th try in a row, counted from 1.
fn pause_before(n: u32) -> Duration {
    match n.checked_sub(2) {
        None => Duration::ZERO,
        Some(doublings) => FIRST_PAUSE.saturating_mul(1 << doublings.min(16)).min(LAST_PAUSE),
    }
}

/// Wait; false if the engine is closed meanwhile.
fn pause(shared: &Shared, delay: Duration) -> bool {
    let until = shared.clock.now() + delay;
    loop {
        let left = until - shared.clock.now();
        if left.is_zero() || !shared.is_wanted() {
            return shared.is_wanted();
        }
        std::thread::sleep(left.min(SLICE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_try_is_at_once_and_pauses_grow_to_a_bound() {
        let pauses: Vec<u128> = (1..6).map(|n| pause_before(n).as_millis()).collect();
        assert_eq!(pauses, [0, 250, 500, 1000, 2000]);
        assert_eq!(pause_before(u32::MAX), LAST_PAUSE);
    }
}
