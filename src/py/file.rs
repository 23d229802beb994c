//! What an engine loads from a GGUF file through llama.cpp, with the settings that suit model and machine.

use crate::backend::llama;
use crate::engine::{Identity, Loaded, Loader, Model};
use crate::error::Error;
use crate::options::{Calibrate, StartOptions};
use crate::store::fingerprint;
use crate::tune::{Report, note};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The loader of a file.
pub(super) struct File {
    pub(super) options: StartOptions,
    pub(super) path: PathBuf,
    /// Where it is noted what was measured.
    pub(super) notes: Option<PathBuf>,
}

impl Loader for File {
    fn load(self: Box<Self>, progress: &dyn Fn(f32) -> bool) -> Result<Loaded, Error> {
        let Self { options, path, notes } = *self;
        let model = llama::load(&options, &path, progress)?;
        let calibration = calibration(&model, &options, &path, notes.as_deref(), &|| progress(1.0));
        let chosen = calibration.as_ref().map(|report| llama::settled(&options, &model, report.choice()));
        let options = chosen.unwrap_or(options);
        let shared = Arc::clone(&model);
        Ok(Loaded {
            model: model_of(&options, path, &model),
            calibration,
            make_backend: Box::new(move || llama::backend(shared, &options)),
            make_again: None,
        })
    }
}

/// What was measured of the settings that the options leave open: now, or at an earlier load. None where they leave none
/// open, where nothing is to be measured, or nothing could be.
fn calibration(
    model: &Arc<llama::Model>,
    options: &StartOptions,
    path: &Path,
    notes: Option<&Path>,
    is_wanted: &dyn Fn() -> bool,
) -> Option<Report> {
    if options.calibrate == Calibrate::Off {
        return None;
    }
    let key = || {
        let of_model = fingerprint::of_model(&llama::shards(path)).ok()?;
        let machine = (llama::processor(), llama::n_physical_cores(), options.n_threads);
        let asked = (options.flash_attn, options.kv_unified, options.swa_full);
        let about = [
            ("shape", format!("{:?}", llama::shape(model, options))),
            ("asked", format!("{asked:?}")),
            ("machine", format!("{machine:?}")),
        ];
        Some(of_model.with(&context_properties(options)).with(&about).to_string())
    };
    let place = notes.and_then(|folder| Some((folder, key()?)));
    if options.calibrate == Calibrate::Auto
        && let Some(noted) = place.as_ref().and_then(|(folder, key)| note::read(folder, key))
    {
        return Some(noted);
    }
    let budget = Duration::from_secs_f64(options.calibrate_s);
    let report = llama::calibrate(model, options, budget, is_wanted)?;
    if let Some((folder, key)) = &place {
        note::write(folder, key, &report);
    }
    Some(report)
}

/// What callers get of a model. Templates that do harm are refused.
pub(super) fn model_of(options: &StartOptions, path: PathBuf, model: &Arc<llama::Model>) -> Model {
    if let Some(reason) = model.chat_templates().iter().find_map(|source| super::chat::refusal(source)) {
        model.refuse_template(reason);
    }
    let identity = identity(path, model.n_ctx_orig(), context_properties(options));
    Model { tokenizer: model.clone(), handle: Some(model.clone()), identity }
}

/// What tells a model's saved states from those of others. Its files are read when that is asked first.
fn identity(path: PathBuf, n_ctx_orig: u32, properties: Vec<(&'static str, String)>) -> Identity {
    let known = std::sync::OnceLock::new();
    Arc::new(move |limits| {
        let read = || {
            let files = llama::shards(&path);
            let of_model = fingerprint::of_model(&files);
            let of_model = of_model.map_err(|error| Error::Session(error.to_string()))?;
            // LongRoPE turns K by other factors in a longer context than the model was made for.
            let is_long = limits.n_ctx_seq > n_ctx_orig;
            Ok(of_model.with(&properties).with(&[("long", is_long.to_string())]))
        };
        known.get_or_init(read).clone()
    })
}

/// What a saved state depends on besides the model: llama.cpp refuses one of another kind of context, or would read it
/// wrongly.
fn context_properties(options: &StartOptions) -> Vec<(&'static str, String)> {
    let unified = options.kv_unified.unwrap_or(true);
    let streams = if unified { 1 } else { options.n_parallel };
    let rope = (options.rope_scaling_type, options.rope_freq_base, options.rope_freq_scale, options.yarn_orig_ctx);
    let yarn = (
        options.yarn_ext_factor,
        options.yarn_attn_factor,
        options.yarn_beta_fast,
        options.yarn_beta_slow,
        options.attention_type,
    );
    vec![
        ("cells", format!("{:?}", (options.type_k, options.type_v, options.flash_attn, options.swa_full))),
        ("streams", streams.to_string()),
        ("rope", format!("{rope:?} {yarn:?}")),
        ("llama.cpp", llama::build()),
    ]
}
