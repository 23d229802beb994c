//! Loads the model on a thread of its own, so that requests are taken in meanwhile.

use super::panic_text;
use super::prompt::Model;
use super::shared::{Command, Shared};
use crate::backend::Backend;
use crate::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Makes the backend; runs on the engine thread, which keeps it.
pub type MakeBackend = Box<dyn FnOnce() -> Result<Box<dyn Backend>, Error> + Send>;

/// What a loader gives.
pub struct Loaded {
    /// For callers: from here on prompts become tokens.
    pub model: Model,
    /// For the engine thread.
    pub make_backend: MakeBackend,
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
        Ok(Ok(Loaded { model, make_backend })) => {
            shared.send(Command::Start(make_backend));
            shared.open(&model);
        }
        Ok(Err(error)) => shared.fail(&error),
        Err(panic) => shared.fail(&Error::EngineCrashed(panic_text(&*panic))),
    }
}
