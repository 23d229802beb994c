//! Loads the model on a thread of its own, so that requests are taken in meanwhile.

use super::intake::Stage;
use super::panic_text;
use super::prompt::Model;
use super::shared::{Command, Shared};
use super::state::State;
use crate::backend::Backend;
use crate::core::Limits;
use crate::error::Error;
use crate::tune::Report;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Makes the backend; runs on the engine thread, which keeps it.
pub type MakeBackend = Box<dyn FnOnce() -> Result<Box<dyn Backend>, Error> + Send>;

/// Makes the backend once more after it was lost, on a thread of its own; takes what [`Loader::load`] does.
pub type MakeAgain = Arc<dyn Fn(&dyn Fn(f32) -> bool) -> Result<MakeBackend, Error> + Send + Sync>;

/// What a loader gives.
pub struct Loaded {
    /// For callers: from here on prompts become tokens.
    pub model: Model,
    /// What was measured of it, where that was asked for.
    pub calibration: Option<Report>,
    /// For the engine thread.
    pub make_backend: MakeBackend,
    /// For a backend that may be lost.
    pub make_again: Option<MakeAgain>,
}

/// Loads a model.
pub trait Loader: Send {
    /// Load it. `progress` takes how much is done, from 0 to 1; when it gives false, nobody wants the model any more.
    ///
    /// # Errors
    /// Why it cannot be loaded: the engine fails with it, and so does every request.
    fn load(self: Box<Self>, progress: &dyn Fn(f32) -> bool) -> Result<Loaded, Error>;
}

/// The loader thread.
pub(super) fn run(shared: &Shared, loader: Box<dyn Loader>) {
    let progress = |done: f32| {
        shared.set_load_progress(done);
        shared.is_wanted()
    };
    match catch_unwind(AssertUnwindSafe(|| loader.load(&progress))) {
        Ok(Ok(Loaded { model, calibration, make_backend, make_again })) => {
            drop(calibration.map(|report| shared.calibration.set(report)));
            shared.send(Command::Start(make_backend, make_again, Arc::clone(&model.identity)));
            shared.open(&model);
        }
        Ok(Err(error)) => {
            shared.servers.note_failure(shared.clock.now(), &error);
            shared.fail(&error);
        }
        Err(panic) => shared.fail(&Error::EngineCrashed(panic_text(&*panic))),
    }
}

impl Shared {
    /// The tokenizer is there: let those through who waited for it, in order, then open the door for the others.
    fn open(&self, model: &Model) {
        self.empty_backlog(model);
        self.half_ready();
    }

    fn empty_backlog(&self, model: &Model) {
        loop {
            let held = self.with_intake(|intake| {
                let held = intake.pop_backlog();
                if held.is_none() && matches!(intake.stage, Stage::Loading) {
                    intake.stage = Stage::Open(model.clone());
                }
                held
            });
            let Some((mut entry, asked)) = held else { return };
            let n = asked.n;
            match self.settler.settle(asked, model, &mut entry.request) {
                Ok(()) => {
                    self.with_intake(|intake| {
                        let entries = intake.let_all_through(entry, n);
                        self.send(Command::Submit(entries));
                    });
                }
                Err(error) => entry.mailbox.ids().for_each(|id| self.end_outside(id, Err(error.clone()))),
            }
        }
    }

    /// The backend is there.
    pub(super) fn set_limits(&self, limits: Limits) {
        drop(self.limits.set(limits));
        self.half_ready();
    }

    /// The engine is ready once both are there, the open door and the backend, whichever comes first.
    fn half_ready(&self) {
        if self.n_halves_ready.fetch_add(1, Ordering::AcqRel) == 1 {
            self.set_load_progress(1.0);
            self.load_nanos.store(self.clock.now().0, Ordering::Relaxed);
            self.state.set(State::Ready);
        }
    }
}
