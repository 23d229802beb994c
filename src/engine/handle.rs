//! What callers hold of an engine.

use super::disk;
use super::intake::Closing;
use super::loader::{self, Loader};
use super::metrics::EngineMetrics;
use super::prompt::{Model, Prompt};
use super::shared::{Command, Shared};
use super::state::State;
use super::stats::EngineStats;
use super::telemetry::EventReceiver;
use super::ticket::Ticket;
use super::waker::Signal;
use super::{Callables, lock, thread};
use crate::core::{Limits, Mode, RequestId};
use crate::error::Error;
use crate::options::{EmbedOptions, RequestOptions, StartOptions};
use crate::tune::Report;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::mpsc::unbounded_channel;

/// How to make an engine.
pub struct EngineConfig {
    /// Its name in threads and telemetry.
    pub name: String,
    /// What the user chose.
    pub options: StartOptions,
    /// Custom strategies.
    pub callables: Arc<dyn Callables>,
}

/// An engine: shared by all its clones, from any thread. Dropping the last clone closes it as `close(false, None)` does.
///
/// In a process that was forked off, it refuses every call with [`Error::Forked`] and touches nothing.
#[derive(Clone)]
pub struct Engine(Arc<Handle>);

struct Handle {
    shared: Arc<Shared>,
    name: Arc<str>,
    id: u64,
    load_started: AtomicBool,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

static N_ENGINES: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The number of the engine that this thread belongs to: such a thread cannot wait for itself to end.
    static OWNER: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

impl Engine {
    /// An engine without a model. It takes requests in at once; they wait for [`Self::load`].
    ///
    /// # Errors
    /// [`Error::EngineCrashed`] when the system gives no thread.
    pub fn new(config: EngineConfig) -> Result<Self, Error> {
        let EngineConfig { name, options, callables } = config;
        disk::check(&options)?;
        let name: Arc<str> = name.into();
        let id = N_ENGINES.fetch_add(1, Ordering::Relaxed) + 1;
        let (sender, receiver) = unbounded_channel();
        let shared = Arc::new(Shared::new(Arc::clone(&name), id, options, sender));
        let handle = Handle { shared, name, id, load_started: AtomicBool::new(false), threads: Mutex::default() };
        let shared = Arc::clone(&handle.shared);
        handle.spawn("engine", thread::STACK_BYTES, move || thread::run(&shared, receiver, callables))?;
        Ok(Self(Arc::new(handle)))
    }

    /// Load the model, on a thread of its own. Only the first call of this or of [`Self::fail`] does anything.
    pub fn load(&self, loader: Box<dyn Loader>) {
        if !self.0.takes_model() {
            return;
        }
        let shared = Arc::clone(&self.0.shared);
        if let Err(error) = self.0.spawn("loader", thread::STACK_BYTES, move || loader::run(&shared, loader)) {
            self.0.shared.fail(&error);
        }
    }

    /// Say that there will be nothing to load, instead of loading it: all that queue end with this error, and so does
    /// whoever comes later.
    pub fn fail(&self, error: &Error) {
        if self.0.takes_model() {
            self.0.shared.fail(error);
        }
    }

    /// The name that it was given.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Its number in this process, from 1.
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// The options that it was made with.
    pub fn options(&self) -> &StartOptions {
        &self.0.shared.options
    }

    /// What was measured of the model before it was ready, where that was asked for.
    pub fn calibration(&self) -> Option<&Report> {
        self.0.shared.calibration.get()
    }

    /// What it does; a forked-off copy failed.
    pub fn state(&self) -> State {
        if self.0.shared.home.is_elsewhere() { State::Failed(Error::Forked) } else { self.0.shared.state.get() }
    }

    /// Wait until it is ready; false if the time runs out first.
    ///
    /// # Errors
    /// Why it will never be.
    pub fn wait_ready(&self, timeout: Option<Duration>) -> Result<bool, Error> {
        self.0.shared.home.check()?;
        self.0.shared.state.wait_ready(timeout)
    }

    /// Have a signal marked once, when loading is over, however. True if it is over already: nothing is marked then.
    pub fn on_loaded(&self, signal: Signal) -> bool {
        self.0.shared.home.is_elsewhere() || self.0.shared.state.subscribe(signal)
    }

    /// The model, as soon as prompts can become tokens.
    ///
    /// # Errors
    /// [`Error::EngineNotReady`], [`Error::EngineClosed`], or why loading failed.
    pub fn model(&self) -> Result<Model, Error> {
        self.0.shared.home.check()?;
        self.0.shared.model()
    }

    /// What the backend can hold, once it is there.
    pub fn limits(&self) -> Option<Limits> {
        self.0.shared.limits.get().cloned()
    }

    /// Submit a request. Returns at once; whatever is wrong with it, its ticket's mailbox says.
    ///
    /// The prompt is made into tokens here, in the caller's thread, unless the model is still loading.
    ///
    /// # Errors
    /// [`Error::Forked`] only.
    pub fn submit(&self, prompt: Prompt, options: RequestOptions, mode: Mode) -> Result<Ticket, Error> {
        let shared = &self.0.shared;
        shared.home.check()?;
        let (mailbox, seed) = shared.submit(prompt, options, mode);
        Ok(Ticket::new(mailbox, seed, Arc::clone(shared)))
    }

    /// Submit texts that are to become vectors. Returns at once; whatever is wrong with them, the ticket's mailbox says.
    ///
    /// # Errors
    /// [`Error::Forked`] only.
    pub fn embed(&self, texts: Vec<Prompt>, options: &EmbedOptions) -> Result<Ticket, Error> {
        let shared = &self.0.shared;
        shared.home.check()?;
        let mailbox = shared.embed(texts, options);
        Ok(Ticket::new(mailbox, 0, Arc::clone(shared)))
    }

    /// Cancel a request. Returns at once; a request that waits ends at once too, a running one after the pass under way,
    /// which is aborted if it computes for nobody else. Ended and unknown ones are left alone.
    pub fn cancel(&self, id: RequestId) {
        if !self.0.shared.home.is_elsewhere() {
            self.0.shared.cancel(id);
        }
    }

    /// Tell the engine thread something.
    pub(super) fn tell(&self, command: Command) {
        self.0.shared.send(command);
    }

    /// Figures of this moment; never waits for a pass.
    ///
    /// # Errors
    /// [`Error::Forked`] only.
    pub fn stats(&self) -> Result<EngineStats, Error> {
        self.0.shared.home.check()?;
        Ok(self.0.shared.engine_stats())
    }

    /// All that is measured since it was made; never waits for a pass, and makes nobody wait.
    ///
    /// # Errors
    /// [`Error::Forked`] only.
    pub fn metrics(&self) -> Result<EngineMetrics, Error> {
        let shared = &self.0.shared;
        shared.home.check()?;
        Ok(shared.metrics.read(|| shared.engine_stats()))
    }

    /// Listen to its telemetry from here on.
    ///
    /// # Errors
    /// [`Error::Forked`] only.
    pub fn subscribe(&self) -> Result<EventReceiver, Error> {
        self.0.shared.home.check()?;
        Ok(EventReceiver::new(&self.0.shared.telemetry))
    }

    /// Close it: nobody comes in any more; with `drain`, those who are in are served first, otherwise they end with
    /// [`crate::core::FinishReason::Cancelled`]. Then wait for its threads to end, for `timeout` at most in all.
    ///
    /// True if they have ended. False if the time ran out, in which case everything left is cancelled and the threads
    /// end by themselves soon; call it again to wait for that. From one of the engine's own threads it does not wait.
    /// May be called again, and from several threads at once: the strictest wins.
    ///
    /// # Errors
    /// [`Error::Forked`] only.
    pub fn close(&self, drain: bool, timeout: Option<Duration>) -> Result<bool, Error> {
        self.0.shared.home.check()?;
        Ok(self.0.close(drain, timeout))
    }
}

impl Handle {
    /// Whether the engine waits for its model to be loaded, or given up; true once.
    fn takes_model(&self) -> bool {
        !self.shared.home.is_elsewhere()
            && self.shared.state.get() == State::Loading
            && !self.load_started.swap(true, Ordering::SeqCst)
    }

    fn spawn(&self, what: &str, stack_bytes: usize, body: impl FnOnce() + Send + 'static) -> Result<(), Error> {
        let (id, shared) = (self.id, Arc::clone(&self.shared));
        shared.thread_starts();
        let running = Running(shared);
        let builder = std::thread::Builder::new().name(format!("{what} {}", self.name)).stack_size(stack_bytes);
        let spawned = builder.spawn(move || {
            let _running = running;
            OWNER.set(id);
            body();
        });
        let thread = spawned.map_err(|e| Error::EngineCrashed(format!("there is no thread for the {what}: {e}")))?;
        lock(&self.threads).push(thread);
        Ok(())
    }

    fn close(&self, drain: bool, timeout: Option<Duration>) -> bool {
        self.shared.begin_close(if drain { Closing::Drain } else { Closing::Cancel });
        if OWNER.get() == self.id {
            return false;
        }
        if !self.shared.wait_stopped(timeout) {
            self.shared.begin_close(Closing::Cancel);
            return false;
        }
        // Who comes second waits here for the first; the threads have nothing left to do.
        for thread in lock(&self.threads).drain(..) {
            drop(thread.join());
        }
        true
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.shared.home.is_elsewhere() {
            // The threads are not here, and what they were about to free is theirs: leave all of it alone.
            std::mem::forget(std::mem::take(&mut self.threads));
            std::mem::forget(Arc::clone(&self.shared));
            return;
        }
        self.close(false, None);
    }
}

/// Says that a thread is over, or could not begin.
pub(super) struct Running(pub(super) Arc<Shared>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.thread_stops();
    }
}
