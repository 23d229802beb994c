//! What goes over the wire. The core's works and outcomes are data already; this wraps them.

use crate::backend::Backend;
use crate::backend::sim::{Fault, SimBackend, SimConfig, load_slowly};
use crate::core::{DecodeOutcome, EmbedOutcome, EmbedPart, Limits, Op, OpResult, Row};
use crate::error::Error;
use crate::options::{Endpoint, StartOptions};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How the process makes its backend.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Recipe {
    /// Of a GGUF file, by llama.cpp.
    File {
        /// The file.
        path: PathBuf,
        /// As the engine has them.
        options: Box<StartOptions>,
    },
    /// A simulated one.
    Simulated {
        /// What is simulated.
        config: Box<SimConfig>,
        /// How long it takes to load.
        load: Duration,
        /// What it cannot be loaded for.
        fails: Option<String>,
        /// What happens in its first pass.
        fault: Option<Fault>,
    },
}

impl Recipe {
    /// The servers that it computes with, if any, and how long they may take to answer.
    pub(super) fn servers(&self) -> (&[Endpoint], Duration) {
        let Self::File { options, .. } = self else { return (&[], Duration::ZERO) };
        let servers = options.rpc_servers.as_ref().map_or(&[][..], |servers| &servers.0);
        (servers, Duration::from_secs_f64(options.rpc_timeout))
    }

    /// Make the backend: what the process does first.
    ///
    /// # Errors
    /// Why it cannot be made.
    pub fn make(self, progress: &dyn Fn(f32) -> bool) -> Result<Box<dyn Backend>, Error> {
        match self {
            Self::File { path, options } => from_file(&path, &options, progress),
            Self::Simulated { config, load, fails, fault } => {
                load_slowly(load, fails.as_deref(), progress)?;
                let mut backend = SimBackend::new(*config);
                if let Some(fault) = fault {
                    backend.inject(fault);
                }
                Ok(Box::new(backend))
            }
        }
    }
}

#[cfg(feature = "llama")]
fn from_file(path: &Path, options: &StartOptions, progress: &dyn Fn(f32) -> bool) -> Result<Box<dyn Backend>, Error> {
    use crate::backend::llama;
    llama::backend(llama::load(options, path, progress)?, options)
}

#[cfg(not(feature = "llama"))]
fn from_file(path: &Path, _: &StartOptions, _: &dyn Fn(f32) -> bool) -> Result<Box<dyn Backend>, Error> {
    Err(Error::ModelLoad(format!("{} cannot be loaded: this build has no llama.cpp", path.display())))
}

/// The first thing that the process is told.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Begin {
    /// Of this package: both ends must have the same.
    pub(super) version: String,
    pub(super) recipe: Recipe,
}

/// What the process is asked. Passes are numbered, so that one can be aborted and not the next.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Ask<'a> {
    Prepare(Cow<'a, [Op]>),
    Decode { pass: u64, rows: Cow<'a, [Row]> },
    Embed { pass: u64, parts: Cow<'a, [EmbedPart]> },
}

/// What it answers; while it loads, how far it is.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    Progress(f32),
    Ready { limits: Box<Limits>, can_abort: bool },
    Refused(Error),
    Prepared(Vec<OpResult>),
    Decoded(Box<DecodeOutcome>),
    Embedded(Box<EmbedOutcome>),
}
