//! Loads a model whose backend has a process of its own, and loads it again when that is lost.

use super::loader::{Loaded, Loader, MakeBackend};
use super::prompt::Model;
use crate::backend::Backend;
use crate::backend::remote::{Launch, Recipe, RemoteBackend};
use crate::error::Error;
use std::sync::Arc;
use std::time::Duration;

/// Gives what callers need of a model, in this process: its vocabulary and templates, nothing that computes.
pub type LoadVocabulary = Box<dyn FnOnce(&dyn Fn(f32) -> bool) -> Result<Model, Error> + Send>;

/// The loader of an isolated backend.
pub struct Isolated {
    /// How its process is started.
    pub launch: Launch,
    /// What that makes.
    pub recipe: Recipe,
    /// What a work may take, and the time between two signs of life while it loads.
    pub timeout: Duration,
    /// What stays here.
    pub vocabulary: LoadVocabulary,
}

impl Loader for Isolated {
    fn load(self: Box<Self>, progress: &dyn Fn(f32) -> bool) -> Result<Loaded, Error> {
        let Self { launch, recipe, timeout, vocabulary } = *self;
        let start = move |progress: &dyn Fn(f32) -> bool| {
            let remote = RemoteBackend::start(&launch, &recipe, timeout, progress)?;
            let make: MakeBackend = Box::new(move || Ok(Box::new(remote) as Box<dyn Backend>));
            Ok(make)
        };
        // First what has more reasons to fail: servers are proved before anybody looks at the model's file.
        let make_backend = start(progress)?;
        let model = vocabulary(&|_| progress(1.0))?;
        Ok(Loaded { model, calibration: None, make_backend, make_again: Some(Arc::new(start)) })
    }
}
