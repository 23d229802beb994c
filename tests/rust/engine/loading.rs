//! What happens before the model is there, and when it never comes.

use super::*;
use llama_batch::core::Shape;
use llama_batch::engine::State;
use llama_batch::error::TimeoutKind;

/// A loader that does what the closure says.
struct LoadWith<F>(F);

impl<F: FnOnce(&dyn Fn(f32) -> bool) -> Result<Loaded, Error> + Send> Loader for LoadWith<F> {
    fn load(self: Box<Self>, progress: &dyn Fn(f32) -> bool) -> Result<Loaded, Error> {
        (self.0)(progress)
    }
}

/// Notes the texts that it is given, and in which thread.
#[derive(Default)]
struct NotingTokenizer(Mutex<Vec<(String, String)>>);

impl Tokenizer for NotingTokenizer {
    fn n_vocab(&self) -> u32 {
        512
    }

    fn tokenize(&self, text: &str, _: bool, _: bool) -> Result<Vec<Token>, Error> {
        let thread = std::thread::current().name().unwrap_or_default().to_owned();
        self.0.lock().unwrap().push((text.to_owned(), thread));
        if text == "impossible" { Err(Error::Prompt("impossible".into())) } else { Ok(vec![65; text.len()]) }
    }

    fn piece(&self, _: Token, _: bool) -> Vec<u8> {
        Vec::new()
    }

    fn is_eog(&self, _: Token) -> bool {
        false
    }
}

fn failure() -> Error {
    Error::ModelLoad("not a model".into())
}

fn failing(make: impl FnOnce() -> Result<Loaded, Error> + Send + 'static) -> (Engine, Ticket) {
    let engine = engine(options(1));
    let queued = submit(&engine, "queued", 3);
    engine.load(Box::new(LoadWith(|_: &dyn Fn(f32) -> bool| make())));
    (engine, queued)
}

#[test]
fn texts_that_come_while_loading_become_tokens_in_order_off_the_engine_thread() {
    let engine = engine(options(4));
    let texts: Vec<String> = (0..30).map(|i| format!("text {i}")).collect();
    let tickets: Vec<_> = texts.iter().map(|text| submit(&engine, text, 2)).collect();
    assert_eq!(engine.stats().unwrap().held, 30);
    assert_eq!(engine.stats().unwrap().core.queue_depth, 30);
    let tokenizer = Arc::new(NotingTokenizer::default());
    let (noting, gate) = (Arc::clone(&tokenizer), Arc::new(Gate::default()));
    let before = Arc::clone(&gate);
    engine.load(Box::new(LoadWith(move |_: &dyn Fn(f32) -> bool| {
        before.pass(&|| false);
        let Loaded { make_backend, .. } = loaded(config(4), None);
        Ok(Loaded {
            model: Model { tokenizer: noting, handle: None, identity: identity() },
            make_backend,
            make_again: None,
            calibration: None,
        })
    })));
    gate.open();
    assert!(tickets.iter().all(|ticket| end(ticket).end == Ok(FinishReason::MaxTokens)));
    let noted = tokenizer.0.lock().unwrap();
    assert_eq!(noted.iter().map(|(text, _)| text.clone()).collect::<Vec<_>>(), texts);
    assert!(noted.iter().all(|(_, thread)| thread == "loader test"), "{noted:?}");
    assert_eq!(engine.stats().unwrap().core.n_submitted, 30);
}

#[test]
fn a_prompt_that_cannot_be_made_fails_alone() {
    let engine = engine(options(4));
    let panics = || Prompt::Chat(Box::new(|_: &Model| panic!("no template")));
    let chat = || {
        Prompt::Chat(Box::new(|model: &Model| Ok((model.tokenizer.tokenize("hello", true, true)?, Shape::default()))))
    };
    let submit = |prompt| engine.submit(prompt, RequestOptions::default(), Mode::Generate).unwrap();
    let early = [submit(panics()), submit(chat())];
    engine.load(loader(4, None, None));
    assert_eq!(engine.wait_ready(None), Ok(true));
    let late = [submit(panics()), submit(chat())];
    for [bad, good] in [&early, &late] {
        let error = end(bad).end.clone().unwrap_err();
        assert!(matches!(&error, Error::Prompt(text) if text.contains("no template")), "{error}");
        assert_eq!(end(good).end, Ok(FinishReason::MaxTokens));
    }
    assert_eq!(engine.stats().unwrap().in_flight, 0);
}

#[test]
fn a_load_that_fails_ends_those_who_wait_and_those_who_come_later() {
    let no_backend = || {
        let Loaded { model, .. } = loaded(config(1), None);
        Ok(Loaded { model, make_backend: Box::new(|| Err(failure())), make_again: None, calibration: None })
    };
    for (engine, queued) in [failing(|| Err(failure())), failing(no_backend)] {
        assert_eq!(engine.wait_ready(None), Err(failure()));
        assert_eq!(engine.state(), State::Failed(failure()));
        assert_eq!(end(&queued).end, Err(failure()));
        assert_eq!(end(&submit(&engine, "late", 3)).end, Err(failure()));
        assert_eq!(engine.model().err(), Some(failure()));
        assert_eq!(engine.close(true, None), Ok(true));
        assert_eq!(end(&submit(&engine, "closed", 3)).end, Err(Error::EngineClosed));
    }
}

#[test]
fn a_loader_that_panics_is_a_crash() {
    let (engine, queued) = failing(|| panic!("loader trouble"));
    let crash = Error::EngineCrashed("loader trouble".into());
    assert_eq!(end(&queued).end, Err(crash.clone()));
    assert_eq!(engine.wait_ready(None), Err(crash));
}

#[test]
fn an_engine_can_be_given_up_before_anything_is_loaded() {
    let engine = engine(options(1));
    let queued = submit(&engine, "queued", 3);
    let gone = Error::ModelNotFound("the download failed".into());
    engine.fail(&gone);
    assert_eq!(end(&queued).end, Err(gone.clone()));
    assert_eq!(engine.state(), State::Failed(gone.clone()));
    engine.fail(&failure());
    assert_eq!(end(&submit(&engine, "late", 3)).end, Err(gone));
    let serving = ready(options(1), None);
    serving.fail(&failure());
    assert_eq!(serving.state(), State::Ready);
}

#[test]
fn time_runs_while_the_model_loads() {
    let engine = engine(options(1));
    let gate = Arc::new(Gate::default());
    engine.load(loader(1, None, Some(&gate)));
    gate.wait_for_arrival();
    let patient = submit(&engine, "patient", 3);
    let request = RequestOptions { timeout: Some(0.0), ..RequestOptions::default() };
    let hasty = engine.submit(Prompt::Text("hasty".into()), request, Mode::Generate).unwrap();
    assert_eq!(end(&hasty).end, Err(Error::RequestTimeout { kind: TimeoutKind::Total, limit_s: 0.0 }));
    let leaves = submit(&engine, "leaves", 3);
    leaves.cancel();
    assert_eq!(end(&leaves).end, Ok(FinishReason::Cancelled));
    gate.open();
    assert_eq!(end(&patient).end, Ok(FinishReason::MaxTokens));
    let core = engine.stats().unwrap().core;
    assert_eq!((core.n_submitted, core.n_finished, core.n_failed, core.n_cancelled), (3, 3, 1, 1));
}

#[test]
fn closing_stops_the_load() {
    let engine = engine(options(1));
    let gate = Arc::new(Gate::default());
    engine.load(loader(1, None, Some(&gate)));
    gate.wait_for_arrival();
    let queued = submit(&engine, "queued", 3);
    assert_eq!(engine.wait_ready(Some(std::time::Duration::ZERO)), Ok(false));
    assert_eq!(engine.stats().unwrap().load_progress.to_bits(), 0.5_f32.to_bits());
    assert_eq!(engine.close(false, None), Ok(true));
    assert_eq!(end(&queued).end, Ok(FinishReason::Cancelled));
    assert_eq!(engine.wait_ready(None), Err(Error::EngineClosed));
}

#[test]
fn draining_an_engine_that_loads_serves_those_who_are_in() {
    let engine = engine(options(1));
    let gate = Arc::new(Gate::default());
    engine.load(loader(1, None, Some(&gate)));
    let queued = submit(&engine, "queued", 3);
    std::thread::scope(|scope| {
        let closing = scope.spawn(|| engine.close(true, None));
        assert_eq!(engine.wait_ready(None), Err(Error::EngineClosed));
        gate.open();
        assert_eq!(closing.join().unwrap(), Ok(true));
    });
    assert_eq!(end(&queued).end, Ok(FinishReason::MaxTokens));
}
