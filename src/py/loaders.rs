//! What an engine loads: a GGUF file through llama.cpp, or a simulated model.

use super::isolated::Launch;
use crate::backend::Backend;
#[cfg(unix)]
use crate::backend::remote::Recipe;
use crate::backend::sim::{Latency, SimBackend, SimConfig, SimTokenizer, load_slowly};
use crate::core::MemoryKind;
#[cfg(unix)]
use crate::engine::Isolated;
use crate::engine::{Identity, Loaded, Loader, Model};
use crate::error::Error;
use crate::options::StartOptions;
use crate::store::Fingerprint;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The loader of a file.
///
/// # Errors
/// None here; in a build without llama.cpp there is no such loader.
#[cfg(feature = "llama")]
#[expect(clippy::unnecessary_wraps, reason = "the signature of the build without llama.cpp")]
pub(super) fn file(
    options: StartOptions,
    path: PathBuf,
    notes: Option<PathBuf>,
    launch: Option<Launch>,
) -> Result<Box<dyn Loader>, Error> {
    #[cfg(unix)]
    if let Some(launch) = launch {
        let recipe = Recipe::File { path: path.clone(), options: Box::new(options.clone()) };
        let kept = options.clone();
        let vocabulary = move |progress: &dyn Fn(f32) -> bool| {
            let model = crate::backend::llama::load_vocabulary(&path, progress)?;
            Ok(super::file::model_of(&kept, path, &model))
        };
        return Ok(isolated(&options, launch, recipe, vocabulary));
    }
    #[cfg(not(unix))]
    let _ = launch;
    Ok(Box::new(super::file::File { options, path, notes }))
}

/// The loader of a file.
///
/// # Errors
/// [`Error::ModelLoad`], as this build has no llama.cpp.
#[cfg(not(feature = "llama"))]
#[expect(clippy::needless_pass_by_value, reason = "the signature of the build with llama.cpp")]
pub(super) fn file(
    options: StartOptions,
    path: PathBuf,
    notes: Option<PathBuf>,
    launch: Option<Launch>,
) -> Result<Box<dyn Loader>, Error> {
    let _ = (options, notes, launch);
    Err(Error::ModelLoad(format!("{} cannot be loaded: this build has no llama.cpp", path.display())))
}

/// How a simulated model loads.
struct Simulated {
    config: SimConfig,
    load: Duration,
    fails: Option<String>,
}

/// The loader of a simulated model.
///
/// # Errors
/// [`Error::Option`] where a setting is unknown or its value is wrong.
pub(super) fn simulated(
    options: &StartOptions,
    settings: &BTreeMap<String, String>,
    launch: Option<Launch>,
) -> Result<Box<dyn Loader>, Error> {
    let simulated = read(options, settings)?;
    #[cfg(unix)]
    if let Some(launch) = launch {
        let Simulated { config, load, fails } = simulated;
        let recipe = Recipe::Simulated { config: Box::new(config.clone()), load, fails, fault: None };
        return Ok(isolated(options, launch, recipe, move |_| Ok(simulated_model(&config))));
    }
    #[cfg(not(unix))]
    let _ = launch;
    Ok(Box::new(simulated))
}

/// A simulated model in virtual time.
///
/// # Errors
/// Those of [`simulated`].
pub(super) fn sim_config(options: &StartOptions, settings: &BTreeMap<String, String>) -> Result<SimConfig, Error> {
    Ok(SimConfig { real_time: false, ..read(options, settings)?.config })
}

fn read(options: &StartOptions, settings: &BTreeMap<String, String>) -> Result<Simulated, Error> {
    let n_ctx = if options.n_ctx == 0 { 8192 } else { options.n_ctx };
    let mut simulated = Simulated {
        config: SimConfig {
            n_ctx,
            n_parallel: options.n_parallel,
            n_batch: options.n_batch.unwrap_or(2048).min(n_ctx).min(options.n_ubatch),
            kv_unified: options.kv_unified.unwrap_or(true),
            latency: Latency {
                fixed: Duration::from_micros(500),
                per_row: Duration::from_micros(10),
                ..Latency::default()
            },
            real_time: true,
            ..SimConfig::default()
        },
        load: Duration::ZERO,
        fails: None,
    };
    for (name, value) in settings {
        set(&mut simulated, name, value)?;
    }
    Ok(simulated)
}

fn set(simulated: &mut Simulated, name: &str, value: &str) -> Result<(), Error> {
    let number = || {
        let wrong = || Error::Option(format!("sim: {name} must be a number that is not negative, not {value:?}"));
        value.parse::<f64>().ok().filter(|x| x.is_finite() && *x >= 0.0).ok_or_else(wrong)
    };
    let duration = || number().map(|ms| Duration::from_secs_f64(ms.min(1e9) / 1e3));
    let whole = || number().map(|x| x as u32);
    let config = &mut simulated.config;
    match name {
        "pass_ms" => config.latency.fixed = duration()?,
        "row_ms" => config.latency.per_row = duration()?,
        "decode_row_ms" => config.latency.per_decode_row = duration()?,
        "context_ms" => config.latency.per_context = duration()?,
        "noise" => config.latency.noise = whole()?,
        "load_ms" => simulated.load = duration()?,
        "load_error" => simulated.fails = Some(value.to_owned()),
        "memory" => config.memory = memory(value)?,
        "seed" => config.seed = number()? as u64,
        "n_vocab" => config.n_vocab = whole()?,
        "eog_every" => config.eog_every = whole()?,
        "repeat" => config.repeat = whole()?,
        "n_embd" => config.n_embd = whole()?,
        "encoder" => config.is_encoder = number()? > 0.0,
        "kv_full" => config.fault_rates.kv_full = whole()?,
        "fail" => config.fault_rates.fail = whole()?,
        "fail_draw" => config.fault_rates.fail_draw = whole()?,
        "refuse_copy" => config.fault_rates.refuse_copy = whole()?,
        "refuse_trim" => config.fault_rates.refuse_trim = whole()?,
        "refuse_save" => config.fault_rates.refuse_save = whole()?,
        "refuse_restore" => config.fault_rates.refuse_restore = whole()?,
        "refuse_store" => config.fault_rates.refuse_store = whole()?,
        "refuse_load" => config.fault_rates.refuse_load = whole()?,
        "refuse_open" => config.fault_rates.refuse_open = whole()?,
        other => return Err(Error::Option(format!("sim: unknown setting {other:?}"))),
    }
    Ok(())
}

fn memory(value: &str) -> Result<MemoryKind, Error> {
    match value.split_once(':') {
        None if value == "full" => Ok(MemoryKind::Full),
        None if value == "recurrent" => Ok(MemoryKind::Recurrent),
        None if value == "hybrid" => Ok(MemoryKind::Hybrid),
        Some(("window", size)) if size.parse::<u32>().is_ok_and(|size| size > 0) => {
            Ok(MemoryKind::SlidingWindow(size.parse().unwrap_or_default()))
        }
        None | Some(_) => {
            Err(Error::Option(format!("sim: memory must be full, recurrent, hybrid or window:TOKENS, not {value:?}")))
        }
    }
}

impl Loader for Simulated {
    fn load(self: Box<Self>, progress: &dyn Fn(f32) -> bool) -> Result<Loaded, Error> {
        let Self { config, load, fails } = *self;
        load_slowly(load, fails.as_deref(), progress)?;
        Ok(Loaded {
            model: simulated_model(&config),
            make_backend: Box::new(move || Ok(Box::new(SimBackend::new(config)) as Box<dyn Backend>)),
            make_again: None,
            calibration: None,
        })
    }
}

fn simulated_model(config: &SimConfig) -> Model {
    let kind = format!("{:?}", (config.memory, config.kv_unified, config.n_vocab, config.block));
    let identity: Identity = Arc::new(move |_| Ok(Fingerprint([0; 32]).with(&[("sim", kind.clone())])));
    Model { tokenizer: Arc::new(SimTokenizer::new(config)), handle: None, identity }
}

/// The loader of a model whose backend has a process of its own.
#[cfg(unix)]
fn isolated(
    options: &StartOptions,
    launch: Launch,
    recipe: Recipe,
    vocabulary: impl FnOnce(&dyn Fn(f32) -> bool) -> Result<Model, Error> + Send + 'static,
) -> Box<dyn Loader> {
    let timeout = Duration::from_secs_f64(options.backend_timeout);
    Box::new(Isolated { launch, recipe, timeout, vocabulary: Box::new(vocabulary) })
}
