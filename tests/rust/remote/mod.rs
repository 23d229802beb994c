//! A backend in a real process, which is this test binary once more: it dies, hangs, and says what nobody understands.

#![allow(
    clippy::disallowed_methods,
    reason = "processes are waited for by the clock, and told what to do by their environment"
)]

mod dying;
mod starting;

use llama_batch::backend::remote::{Launch, Recipe, RemoteBackend, serve};
use llama_batch::backend::sim::{Latency, SimConfig, SimTokenizer};
use llama_batch::backend::{Backend, Tokenizer};
use llama_batch::core::{FinishReason, Finished, Mode};
use llama_batch::engine::{
    Engine, EngineConfig, Loaded, Loader, MakeAgain, MakeBackend, Model, NoCallables, Prompt, State, Ticket,
};
use llama_batch::error::Error;
use llama_batch::options::{RequestOptions, StartOptions};
use llama_batch::store::Fingerprint;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What the process does; it does nothing where this is not set.
const ROLE: &str = "LLAMA_BATCH_TEST_ROLE";

/// Long enough for whatever is not to take for ever.
const PATIENCE: Duration = Duration::from_secs(60);

/// The process. Of no interest among the tests.
#[test]
fn process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let stdin = || UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    match role.as_str() {
        "serve" => {
            let alarm = UnixStream::from(std::io::stdout().as_fd().try_clone_to_owned().unwrap());
            serve(stdin(), alarm, Recipe::make).unwrap();
        }
        "garbage" => {
            stdin().write_all(b"Segmentation fault, perhaps\n").unwrap();
            std::thread::sleep(PATIENCE);
        }
        "exit" => {
            std::io::stderr().write_all(b"error: no room on the device\n").unwrap();
            std::process::exit(3);
        }
        "silent" => std::thread::sleep(PATIENCE),
        "parent" => {
            let (engine, pids) = started(options(1), fast());
            std::io::stderr().write_all(format!("{}\n", last(&pids)).as_bytes()).unwrap();
            let _running = submit(&engine, 1000);
            kill(std::process::id(), Signal::KILL);
        }
        other => panic!("nobody plays {other}"),
    }
    std::process::exit(0);
}

fn launch(role: &str) -> Launch {
    Launch {
        program: std::env::current_exe().unwrap().into(),
        args: ["--exact", "remote::process", "--nocapture"].map(Into::into).to_vec(),
        env: vec![(ROLE.into(), role.into()), ("RUST_BACKTRACE".into(), "0".into())],
        on_log: |_, _| {},
    }
}

fn recipe(config: SimConfig) -> Recipe {
    Recipe::Simulated { config: Box::new(config), load: Duration::ZERO, fails: None, fault: None }
}

/// Passes of two milliseconds.
fn fast() -> SimConfig {
    passes_of(Duration::from_millis(2))
}

fn passes_of(fixed: Duration) -> SimConfig {
    SimConfig { real_time: true, latency: Latency { fixed, ..Latency::default() }, ..SimConfig::default() }
}

type Pids = Arc<Mutex<Vec<u32>>>;

fn last(pids: &Pids) -> u32 {
    *pids.lock().unwrap().last().unwrap()
}

fn kill(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

/// Whether there is such a process, if only a dead one that nobody has heard out.
fn exists(pid: u32) -> bool {
    test_kill_process(Pid::from_raw(pid as i32).unwrap()).is_ok()
}

/// Whether it does anything: a dead one whose new parent does not hear it out is still there.
fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    exists(pid) && !stat.rsplit(')').next().unwrap_or_default().trim_start().starts_with('Z')
}

fn wait_until(what: impl Fn() -> bool) {
    let deadline = std::time::Instant::now() + PATIENCE;
    while !what() {
        assert!(std::time::Instant::now() < deadline, "it never happens");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Loads by the first recipe, and again by the second, writing down the numbers of the processes.
struct Noting {
    first: (Launch, Recipe),
    again: (Launch, Recipe),
    timeout: Duration,
    pids: Pids,
}

impl Loader for Noting {
    fn load(self: Box<Self>, progress: &dyn Fn(f32) -> bool) -> Result<Loaded, Error> {
        let Self { first, again, timeout, pids } = *self;
        let start = move |(launch, recipe): &(Launch, Recipe), progress: &dyn Fn(f32) -> bool| {
            let remote = RemoteBackend::start(launch, recipe, timeout, progress)?;
            pids.lock().unwrap().push(remote.process_id());
            let make: MakeBackend = Box::new(move || Ok(Box::new(remote) as Box<dyn Backend>));
            Ok(make)
        };
        let make_backend = start(&first, progress)?;
        let tokenizer: Arc<dyn Tokenizer> = Arc::new(SimTokenizer::new(&SimConfig::default()));
        let model = Model { tokenizer, handle: None, identity: Arc::new(|_| Ok(Fingerprint([7; 32]))) };
        let make_again: Option<MakeAgain> = Some(Arc::new(move |progress| start(&again, progress)));
        Ok(Loaded { model, make_backend, make_again, calibration: None })
    }
}

fn options(n_parallel: u32) -> StartOptions {
    StartOptions { n_parallel, ..StartOptions::default() }
}

/// An engine that is loading.
fn loading(options: StartOptions, first: (Launch, Recipe), again: (Launch, Recipe)) -> (Engine, Pids) {
    let pids = Pids::default();
    let timeout = Duration::from_secs_f64(options.backend_timeout);
    let engine = Engine::new(EngineConfig { name: "isolated".into(), options, callables: Arc::new(NoCallables) });
    let engine = engine.unwrap();
    engine.load(Box::new(Noting { first, again, timeout, pids: Arc::clone(&pids) }));
    (engine, pids)
}

/// An engine that is ready.
fn started(options: StartOptions, config: SimConfig) -> (Engine, Pids) {
    let how = (launch("serve"), recipe(config));
    let (engine, pids) = loading(options, how.clone(), how);
    assert_eq!(engine.wait_ready(Some(PATIENCE)), Ok(true));
    (engine, pids)
}

fn submit(engine: &Engine, max_tokens: u32) -> Ticket {
    let options = RequestOptions { max_tokens, seed: Some(1), ..RequestOptions::default() };
    engine.submit(Prompt::Text("Once upon a time".into()), options, Mode::Stream).unwrap()
}

fn end(ticket: &Ticket) -> Arc<Finished> {
    ticket.mailbox().wait_end(Some(PATIENCE)).expect("it ends")
}

fn generates(ticket: &Ticket) -> bool {
    ticket.mailbox().wait(Some(PATIENCE))
}

/// What a request that was running ends with when its backend is lost.
fn why_lost(ticket: &Ticket) -> String {
    match &end(ticket).end {
        Err(Error::BackendLost(why)) => why.clone(),
        other => panic!("{other:?}"),
    }
}

fn is_served(engine: &Engine) {
    assert_eq!(end(&submit(engine, 5)).end, Ok(FinishReason::MaxTokens));
}

fn failed_with(engine: &Engine) -> Error {
    wait_until(|| matches!(engine.state(), State::Failed(_)));
    match engine.state() {
        State::Failed(error) => error,
        other => panic!("{other:?}"),
    }
}
