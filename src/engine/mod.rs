//! Joins the core with a backend on one thread, and both with the callers.
//!
//! - [`Engine`] (`handle.rs`) is what callers hold: it admits, cancels and answers without waiting for the thread.
//! - `thread.rs` is the loop: it owns the scheduler and the backend, and takes no lock for longer than a moment.
//! - `loader.rs` loads the model, and turns into tokens what was asked for meanwhile.
//! - `intake.rs` and `shared.rs` are what these three share; a [`Mailbox`] is what comes out, one for each request.
//!
//! A request takes this way: `Engine::submit` → its prompt's tokens, made in the caller's thread → the command channel →
//! `Scheduler::submit` → events → its mailbox. Whoever takes it off the list of live requests ends it: the engine
//! thread in general, the handle where the core never heard of it or needs not be waited for.

mod clock;
mod disk;
mod handle;
mod home;
mod intake;
#[cfg(unix)]
mod isolated;
mod loader;
mod mailbox;
mod metrics;
mod pass_watch;
mod prompt;
mod recovery;
mod room;
mod servers;
mod sessions;
mod settle;
mod shared;
mod state;
mod stats;
mod submit;
mod telemetry;
mod thread;
mod ticket;
mod waker;

pub use clock::Clock;
pub use handle::{Engine, EngineConfig};
#[cfg(feature = "python")]
pub(crate) use home::{forked, n_forks};
#[cfg(unix)]
pub use isolated::{Isolated, LoadVocabulary};
pub use loader::{Loaded, Loader, MakeAgain, MakeBackend};
pub use mailbox::{Chunk, Interest, Item, Mailbox, SoFar};
pub use metrics::{EngineMetrics, Histogram, TierFlow};
pub use prompt::{Identity, Model, Prompt, RenderPrompt};
pub use servers::{ServerHealth, Slow};
pub use sessions::SessionFile;
pub use state::State;
pub use stats::EngineStats;
pub use telemetry::{EVENT_QUEUE_LEN, EventReceiver, Received, TelemetryEvent};
pub use ticket::Ticket;
pub use waker::{Signal, Waker};

use crate::backend::Pick;
use crate::core::{Grant, StrategyView};
use std::any::Any;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What the engine calls and cannot do itself: batch strategies that the user wrote.
pub trait Callables: Send + Sync {
    /// Ask strategy number `id`, waiting for `deadline` at most.
    ///
    /// # Errors
    /// Why there is no answer; the default strategy then stands in.
    fn strategy(&self, id: u64, view: StrategyView, deadline: Duration) -> Result<Vec<Grant>, String>;

    /// Ask sampler number `id` to draw from the logits of one row. Returns at once; `reply` is called from anywhere, once.
    fn sample(&self, id: u64, logits: Vec<f32>, reply: Reply) {
        drop(logits);
        reply(Err(format!("there is no sampler number {id}")));
    }
}

/// Takes what a sampler drew, or why it did not.
pub type Reply = Box<dyn FnOnce(Result<Pick, String>) + Send>;

/// For engines without custom strategies.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoCallables;

impl Callables for NoCallables {
    fn strategy(&self, id: u64, _: StrategyView, _: Duration) -> Result<Vec<Grant>, String> {
        Err(format!("there is no strategy number {id}"))
    }
}

/// Lock, whoever panicked while holding it: what our locks guard is whole between any two statements.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a panic said.
pub(crate) fn panic_text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic without a message".into())
}
