//! The engine's handle, as Python's `Engine` holds it.

use super::chat::{self, Syntax};
use super::events::EventReceiver;
use super::hub::{Hub, duration, wait_in_slices};
use super::model::Model;
use super::strategy::{self, PyCallables};
use super::ticket::{Registered, Ticket};
use super::{convert, embeddings, errors, isolated, key, loaders, metrics};
use crate::chat::{Asked, Conversation};
use crate::core::{Mode, RequestId};
use crate::engine::{self, EngineConfig, Prompt};
use crate::error::Error;
use crate::options::{Key, OptionSpec, Options, RequestOptions, StartOptions, StrategyOption, Value};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// An engine. Dropping it closes it, cancelling what runs.
#[pyclass(frozen, module = "llama_batch._core")]
pub(super) struct Engine {
    /// Always there, until `drop` takes it.
    inner: Option<engine::Engine>,
    /// The custom batch strategy, by its number in the registry.
    strategy: Option<u64>,
}

impl Engine {
    fn get(&self) -> &engine::Engine {
        self.inner.as_ref().expect("an engine is there until it is dropped")
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let Some(inner) = self.inner.take() else { return };
        // Closing waits for the pass under way; other Python threads go on meanwhile.
        let mut inner = Some(inner);
        if Python::try_attach(|py| py.detach(|| drop(inner.take()))).is_none() {
            drop(inner.take());
        }
        if let Some(id) = self.strategy {
            strategy::unregister(id);
        }
    }
}

fn request_table() -> &'static [OptionSpec] {
    static TABLE: OnceLock<Vec<OptionSpec>> = OnceLock::new();
    TABLE.get_or_init(RequestOptions::table)
}

/// Read the options of a request; a callable is let go of if anything is wrong with them.
pub(super) fn request_options(py: Python<'_>, given: &Bound<'_, PyDict>) -> PyResult<RequestOptions> {
    let values = convert::options(given, request_table())?;
    RequestOptions::default().apply(&values).map_err(|error| let_go(py, &values, &error))
}

fn let_go(py: Python<'_>, values: &[(String, Value)], error: &Error) -> PyErr {
    for (_, value) in values {
        if let Value::Callable(id) = value {
            strategy::unregister(*id);
        }
    }
    errors::raise(py, error)
}

/// Read the start options; a callable is let go of if anything is wrong with them.
pub(super) fn start_options(py: Python<'_>, given: &Bound<'_, PyDict>) -> PyResult<StartOptions> {
    let values = convert::options(given, &StartOptions::table())?;
    StartOptions::default().apply(&values).map_err(|error| let_go(py, &values, &error))
}

/// Whether an answer keeps to a grammar of the caller's.
fn constrains(options: &RequestOptions) -> bool {
    options.grammar.is_some() || options.regex.is_some() || options.choice.is_some() || options.json_schema.is_some()
}

#[pymethods]
impl Engine {
    /// Check the options and make an engine that takes requests in; nothing loads yet.
    #[new]
    fn new(py: Python<'_>, name: String, options: &Bound<'_, PyDict>) -> PyResult<Self> {
        let options = start_options(py, options)?;
        // The model may come later, from another thread: what is wrong is told here.
        isolated::launch(py, &options).map_err(|e| errors::raise(py, &e))?;
        let strategy = match options.batch_strategy {
            StrategyOption::Callable(id) => Some(id),
            StrategyOption::Builtin(_) => None,
        };
        let config = EngineConfig { name, options, callables: Arc::new(PyCallables::default()) };
        let inner = py.detach(|| engine::Engine::new(config)).map_err(|e| errors::raise(py, &e))?;
        Ok(Self { inner: Some(inner), strategy })
    }

    /// Its number in this process.
    #[getter]
    fn id(&self) -> u64 {
        self.get().id()
    }

    /// Slots, and requests that may wait for one (0: any number).
    #[getter]
    fn capacity(&self) -> (u32, u32) {
        let options = self.get().options();
        (options.n_parallel, options.max_queue)
    }

    /// Load a GGUF file in the background; `notes` is the folder that keeps what is measured of models.
    #[pyo3(signature = (path, notes=None))]
    fn load_file(&self, py: Python<'_>, path: PathBuf, notes: Option<PathBuf>) -> PyResult<()> {
        let options = self.get().options();
        let launch = isolated::launch(py, options);
        let loader = launch.and_then(|launch| loaders::file(options.clone(), path, notes, launch));
        let loader = loader.map_err(|e| errors::raise(py, &e))?;
        py.detach(|| self.get().load(loader));
        Ok(())
    }

    /// Simulate a model; `settings` are those of a `sim:` URI, texts by name.
    fn load_sim(&self, py: Python<'_>, settings: &Bound<'_, PyDict>) -> PyResult<()> {
        let (options, settings) = (self.get().options(), settings.extract()?);
        let loader = isolated::launch(py, options).and_then(|launch| loaders::simulated(options, &settings, launch));
        let loader = loader.map_err(|e| errors::raise(py, &e))?;
        py.detach(|| self.get().load(loader));
        Ok(())
    }

    /// The model never comes: end everybody who waits for it.
    fn fail(&self, py: Python<'_>, exception: &Bound<'_, PyAny>) {
        let error = errors::from_exception(exception);
        py.detach(|| self.get().fail(&error));
    }

    /// What was measured of the model, as JSON; None where nothing was.
    #[getter]
    fn calibration(&self) -> Option<String> {
        self.get().calibration().and_then(|report| serde_json::to_string(report).ok())
    }

    /// The word for what it does.
    #[getter]
    fn state(&self) -> &'static str {
        self.get().state().word()
    }

    /// Wait until it is ready; False if `timeout` seconds pass first.
    #[pyo3(signature = (timeout=None))]
    fn wait_ready(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        wait_in_slices(py, timeout, |slice| !matches!(self.get().wait_ready(Some(slice)), Ok(false)))?;
        self.get().wait_ready(Some(Duration::ZERO)).map_err(|e| errors::raise(py, &e))
    }

    /// Have a key marked at a hub once loading is over. True if it is already.
    fn watch_ready(&self, hub: &Hub, key: u64) -> bool {
        self.get().on_loaded(hub.signal(key))
    }

    /// Check the options of a request, and submit nothing.
    fn check(&self, py: Python<'_>, options: &Bound<'_, PyDict>) -> PyResult<()> {
        self.request_options(py, options).map(|options| drop(Registered::of(&options)))
    }

    /// Submit text or token ids.
    fn submit(
        &self,
        py: Python<'_>,
        prompt: &Bound<'_, PyAny>,
        options: &Bound<'_, PyDict>,
        stream: bool,
    ) -> PyResult<Ticket> {
        let prompt = match convert::prompt(prompt)? {
            Ok(convert::PromptInput::Text(text)) => Prompt::Text(text),
            Ok(convert::PromptInput::Tokens(tokens)) => Prompt::Tokens(tokens),
            Err(error) => Prompt::Chat(Box::new(move |_| Err(error))),
        };
        self.send(py, prompt, options, stream)
    }

    /// Submit a conversation, as JSON.
    #[expect(clippy::needless_pass_by_value, reason = "pyo3 makes the text")]
    fn submit_chat(
        &self,
        py: Python<'_>,
        asked: String,
        options: &Bound<'_, PyDict>,
        stream: bool,
    ) -> PyResult<Ticket> {
        let (syntax, given) = (Syntax::default(), self.request_options(py, options)?);
        let (asked, told) = (py.detach(|| Asked::parse(&asked)), Arc::clone(&syntax));
        let schema = given.json_schema.as_ref().filter(|_| given.grammar_triggers.is_none());
        let (json_schema, is_constrained) = (schema.map(|schema| schema.0.clone()), constrains(&given));
        let render = move |model: &engine::Model| {
            let asked = Asked { json_schema, is_constrained, ..asked? };
            let Conversation { prompt: _, tokens, shape, syntax } = chat::render(model, &asked)?;
            drop(told.set(syntax));
            Ok((tokens, shape))
        };
        self.send_checked(py, Prompt::Chat(Box::new(render)), given, stream, Some(syntax))
    }

    /// Submit something that was found wrong before: its error comes from the generation, as all errors do.
    fn submit_wrong(
        &self,
        py: Python<'_>,
        code: &str,
        message: String,
        options: &Bound<'_, PyDict>,
        stream: bool,
    ) -> PyResult<Ticket> {
        let error = if code == "invalid_template" { Error::Template(message) } else { Error::Prompt(message) };
        self.send(py, Prompt::Chat(Box::new(move |_| Err(error))), options, stream)
    }

    /// Submit texts that are to become vectors.
    fn embed(&self, py: Python<'_>, texts: &Bound<'_, PyAny>, options: &Bound<'_, PyDict>) -> PyResult<Ticket> {
        let options = embeddings::options(options)?;
        let texts = embeddings::texts(texts)?;
        let ticket = py.detach(|| self.get().embed(texts, &options)).map_err(|e| errors::raise(py, &e))?;
        Ok(Ticket::new(ticket, None, None))
    }

    /// Cancel a request; unknown and ended ones are left alone.
    fn cancel(&self, py: Python<'_>, request_id: i128) {
        // A number that none can have is one that never was.
        if let Ok(id) = u64::try_from(request_id) {
            py.detach(|| self.get().cancel(RequestId(id)));
        }
    }

    /// Figures of this moment, by the names of `llama_batch.Stats`.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.get().stats().map_err(|e| errors::raise(py, &e))?;
        stats_dict(py, &stats)
    }

    /// All that is measured since its start, by the names of `llama_batch.metrics.Metrics`.
    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let metrics = self.get().metrics().map_err(|e| errors::raise(py, &e))?;
        let dict = metrics::to_dict(py, &metrics)?;
        dict.set_item("stats", stats_dict(py, &metrics.stats)?)?;
        Ok(dict)
    }

    /// Save a session's last finished request to a file: all tokens, and those that need not be computed again.
    #[pyo3(signature = (session, path, scope=None))]
    fn save_session(
        &self,
        py: Python<'_>,
        session: &Bound<'_, PyAny>,
        path: PathBuf,
        scope: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<(u32, u32)> {
        let session = named_key("session", session)?;
        let scope = scope.map(|scope| named_key("cache_scope", scope)).transpose()?;
        let engine = self.get();
        let saved = py.detach(move || engine.save_session(session, scope, &path));
        let saved = saved.map_err(|e| errors::raise(py, &e))?;
        Ok((saved.n_tokens, saved.n_restorable))
    }

    /// Load a saved session: its name, all its tokens, and those that need not be computed again.
    #[pyo3(signature = (path, session=None, scope=None))]
    fn load_session<'py>(
        &self,
        py: Python<'py>,
        path: PathBuf,
        session: Option<&Bound<'py, PyAny>>,
        scope: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<(Bound<'py, PyAny>, u32, u32)> {
        let session = session.map(|session| named_key("session", session)).transpose()?;
        let scope = scope.map(|scope| named_key("cache_scope", scope)).transpose()?;
        let engine = self.get();
        let loaded = py.detach(move || engine.load_session(&path, session, scope));
        let loaded = loaded.map_err(|e| errors::raise(py, &e))?;
        Ok((key::decode(py, &loaded.session.0)?, loaded.n_tokens, loaded.n_restorable))
    }

    /// The model, as soon as it turns text into tokens.
    fn model(&self, py: Python<'_>) -> PyResult<Model> {
        self.get().model().map(|m| Model::new(m, self.get().options().clone())).map_err(|e| errors::raise(py, &e))
    }

    /// Close it: True if its threads have ended, False if `timeout` seconds passed first.
    #[pyo3(signature = (drain, timeout=None))]
    fn close(&self, py: Python<'_>, drain: bool, timeout: Option<f64>) -> PyResult<bool> {
        if drain {
            // A drain may take long: look at signals meanwhile. What an interrupt leaves is the caller's to cancel.
            return self.drain(py, timeout);
        }
        py.detach(|| self.get().close(false, duration(timeout))).map_err(|e| errors::raise(py, &e))
    }

    /// Listen to its events from here on.
    fn subscribe(&self, py: Python<'_>) -> PyResult<EventReceiver> {
        self.get().subscribe().map(EventReceiver::new).map_err(|e| errors::raise(py, &e))
    }
}

impl Engine {
    fn send(&self, py: Python<'_>, prompt: Prompt, given: &Bound<'_, PyDict>, stream: bool) -> PyResult<Ticket> {
        self.send_checked(py, prompt, self.request_options(py, given)?, stream, None)
    }

    /// Read the options of a request to this engine.
    fn request_options(&self, py: Python<'_>, given: &Bound<'_, PyDict>) -> PyResult<RequestOptions> {
        let options = request_options(py, given)?;
        if options.sampler.is_some() && self.get().options().is_isolated() {
            drop(Registered::of(&options));
            let error = "sampler: an isolated backend takes no Python callables as samplers; isolate=False does";
            return Err(errors::raise(py, &Error::Option(error.into())));
        }
        Ok(options)
    }

    fn send_checked(
        &self,
        py: Python<'_>,
        prompt: Prompt,
        options: RequestOptions,
        stream: bool,
        syntax: Option<Syntax>,
    ) -> PyResult<Ticket> {
        let mode = if stream { Mode::Stream } else { Mode::Generate };
        let callable = Registered::of(&options);
        let ticket = py.detach(|| self.get().submit(prompt, options, mode)).map_err(|e| errors::raise(py, &e))?;
        Ok(Ticket::new(ticket, callable, syntax))
    }

    fn drain(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let engine = self.get().clone();
        let done = Arc::new((std::sync::Mutex::new(None), std::sync::Condvar::new()));
        let answer = Arc::clone(&done);
        let spawned = std::thread::Builder::new().name("llama-batch-close".into()).spawn(move || {
            let closed = engine.close(true, duration(timeout));
            *answer.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(closed);
            answer.1.notify_all();
        });
        spawned
            .map_err(|e| errors::raise(py, &Error::EngineCrashed(format!("there is no thread to close it: {e}"))))?;
        wait_in_slices(py, None, |slice| {
            let guard = done.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let waited = done.1.wait_timeout_while(guard, slice, |closed| closed.is_none());
            waited.unwrap_or_else(std::sync::PoisonError::into_inner).0.is_some()
        })?;
        let closed = done.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        closed.unwrap_or(Ok(false)).map_err(|e| errors::raise(py, &e))
    }
}

fn stats_dict<'py>(py: Python<'py>, stats: &engine::EngineStats) -> PyResult<Bound<'py, PyDict>> {
    let engine::EngineStats {
        core,
        state,
        in_flight,
        held,
        n_events_dropped,
        load_progress,
        load_time,
        n_backend_restarts,
        is_backend_lost,
        slow,
        servers,
    } = stats;
    let dict = super::stats_dict(py, core)?;
    dict.set_item("state", state.word())?;
    dict.set_item("in_flight", in_flight + held)?;
    dict.set_item("n_events_dropped", n_events_dropped)?;
    dict.set_item("load_progress", load_progress)?;
    dict.set_item("load_s", load_time.map(|t| t.as_secs_f64()))?;
    dict.set_item("n_backend_restarts", n_backend_restarts)?;
    dict.set_item("is_backend_lost", is_backend_lost)?;
    let engine::Slow { n, is_now, last } = slow;
    dict.set_item("n_slow_passes", n)?;
    dict.set_item("is_backend_slow", is_now)?;
    dict.set_item("slow_pass_s", last.map(|t| t.as_secs_f64()))?;
    let health = servers.iter().map(|server| {
        let engine::ServerHealth { endpoint, is_reachable, trouble, age } = server;
        (endpoint, *is_reachable, trouble.as_ref(), age.map(|t| t.as_secs_f64()))
    });
    dict.set_item("rpc_servers", health.collect::<Vec<_>>())?;
    Ok(dict)
}

/// A key, or the error that names it.
fn named_key(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Key> {
    let wrong = || Error::Option(format!("{name} must be text, bytes, an integer, a UUID or a tuple of those"));
    key::encode(value)?.map(Key).ok_or_else(|| errors::raise(value.py(), &wrong()))
}
