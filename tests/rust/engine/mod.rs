//! The engine over the simulated backend.

mod cancelling;
mod closing;
mod embedding;
mod loading;
mod measuring;
mod queueing;
mod serving;
mod telling;

use llama_batch::backend::sim::{Fault, SimBackend, SimConfig, SimTokenizer};
use llama_batch::backend::{Backend, Tokenizer};
use llama_batch::core::{
    DecodeOutcome, EmbedOutcome, EmbedPart, EmbedStatus, FinishReason, Finished, Limits, Mode, Op, OpResult,
    PassStatus, Row, SeqPositions, Token,
};
use llama_batch::engine::{
    Engine, EngineConfig, Identity, Item, Loaded, Loader, Mailbox, MakeBackend, Model, NoCallables, Prompt, Ticket,
};
use llama_batch::error::{Error, QueueBound};
use llama_batch::options::{RequestOptions, StartOptions};
use llama_batch::store::Fingerprint;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Something that is shut until it is opened.
#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    open: bool,
    n_tickets: u32,
    n_waiting: u32,
}

impl Gate {
    fn open(&self) {
        self.state.lock().unwrap().open = true;
        self.changed.notify_all();
    }

    /// Let one through, now or when it comes.
    fn let_one_pass(&self) {
        self.state.lock().unwrap().n_tickets += 1;
        self.changed.notify_all();
    }

    /// Stand before the gate; who gives up passes too.
    fn pass(&self, gives_up: &dyn Fn() -> bool) {
        let mut state = self.state.lock().unwrap();
        state.n_waiting += 1;
        self.changed.notify_all();
        while !state.open && state.n_tickets == 0 && !gives_up() {
            state = self.changed.wait_timeout(state, Duration::from_millis(1)).unwrap().0;
        }
        state.n_tickets = state.n_tickets.saturating_sub(1);
        state.n_waiting -= 1;
    }

    /// Wait until somebody stands before it and will stay there.
    fn wait_for_arrival(&self) {
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_while(state, |state| state.n_waiting == 0 || state.n_tickets > 0).unwrap());
    }

    fn n_waiting(&self) -> u32 {
        self.state.lock().unwrap().n_waiting
    }
}

/// A simulated backend whose passes wait before a gate, if they have one.
struct GatedBackend {
    sim: SimBackend,
    gate: Option<Arc<Gate>>,
    abort: Arc<AtomicBool>,
}

impl GatedBackend {
    /// As llama.cpp ends a pass that was aborted before its first node.
    fn aborted(&self, rows: &[Row]) -> DecodeOutcome {
        let held = |seq| self.sim.seq_len(seq).checked_sub(1).map(|last| (0, last));
        let positions = rows.iter().map(|row| SeqPositions { seq: row.seq, held: held(row.seq) }).collect();
        let status = PassStatus::Failed { code: 2, reason: "aborted".into() };
        DecodeOutcome {
            status,
            rows: Vec::new(),
            scored: Vec::new(),
            positions,
            span: 0,
            eval: Duration::ZERO,
            sample: Duration::ZERO,
            idle: None,
        }
    }
}

impl Backend for GatedBackend {
    fn limits(&self) -> Limits {
        self.sim.limits()
    }

    fn prepare(&mut self, ops: &[Op]) -> Vec<OpResult> {
        self.sim.prepare(ops)
    }

    fn decode(&mut self, rows: &[Row]) -> DecodeOutcome {
        if let Some(gate) = &self.gate {
            gate.pass(&|| self.abort.load(Ordering::SeqCst));
            if self.abort.load(Ordering::SeqCst) {
                return self.aborted(rows);
            }
        }
        self.sim.decode(rows)
    }

    fn embed(&mut self, parts: &[EmbedPart]) -> EmbedOutcome {
        if let Some(gate) = &self.gate {
            gate.pass(&|| self.abort.load(Ordering::SeqCst));
            if self.abort.load(Ordering::SeqCst) {
                let status = EmbedStatus::Failed { code: 2, reason: "aborted".into() };
                return EmbedOutcome { status, eval: Duration::ZERO };
            }
        }
        self.sim.embed(parts)
    }

    fn abort_flag(&self) -> Option<Arc<AtomicBool>> {
        Some(Arc::clone(&self.abort))
    }
}

/// Loads the simulated model.
struct SimLoader {
    config: SimConfig,
    fault: Option<Fault>,
    pass_gate: Option<Arc<Gate>>,
    load_gate: Option<Arc<Gate>>,
}

impl Loader for SimLoader {
    fn load(self: Box<Self>, progress: &dyn Fn(f32) -> bool) -> Result<Loaded, Error> {
        if let Some(gate) = &self.load_gate {
            gate.pass(&|| !progress(0.5));
        }
        if !progress(1.0) {
            return Err(Error::ModelLoad("cancelled".into()));
        }
        Ok(loaded_with(self.config, self.pass_gate, self.fault))
    }
}

/// Of the simulated model.
fn identity() -> Identity {
    Arc::new(|_| Ok(Fingerprint([7; 32])))
}

fn loaded(config: SimConfig, gate: Option<Arc<Gate>>) -> Loaded {
    loaded_with(config, gate, None)
}

fn loaded_with(config: SimConfig, gate: Option<Arc<Gate>>, fault: Option<Fault>) -> Loaded {
    let tokenizer: Arc<dyn Tokenizer> = Arc::new(SimTokenizer::new(&config));
    let make_backend: MakeBackend = Box::new(move || {
        let mut sim = SimBackend::new(config);
        if let Some(fault) = fault {
            sim.inject(fault);
        }
        let abort = sim.abort_flag().unwrap_or_default();
        Ok(Box::new(GatedBackend { sim, gate, abort }))
    });
    Loaded {
        model: Model { tokenizer, handle: None, identity: identity() },
        make_backend,
        make_again: None,
        calibration: None,
    }
}

fn engine(options: StartOptions) -> Engine {
    Engine::new(EngineConfig { name: "test".into(), options, callables: Arc::new(NoCallables) }).unwrap()
}

fn options(n_parallel: u32) -> StartOptions {
    StartOptions { n_parallel, ..StartOptions::default() }
}

fn config(n_parallel: u32) -> SimConfig {
    SimConfig { n_parallel, ..SimConfig::default() }
}

fn loader(n_parallel: u32, pass_gate: Option<&Arc<Gate>>, load_gate: Option<&Arc<Gate>>) -> Box<dyn Loader> {
    let (pass_gate, load_gate) = (pass_gate.cloned(), load_gate.cloned());
    Box::new(SimLoader { config: config(n_parallel), fault: None, pass_gate, load_gate })
}

/// A ready engine over the simulated backend.
fn ready(options: StartOptions, gate: Option<&Arc<Gate>>) -> Engine {
    let loader = loader(options.n_parallel, gate, None);
    let engine = engine(options);
    engine.load(loader);
    assert_eq!(engine.wait_ready(None), Ok(true));
    engine
}

fn queue_full(limit: u32) -> Error {
    Error::QueueFull { bound: QueueBound::All, limit }
}

fn submit(engine: &Engine, text: &str, max_tokens: u32) -> Ticket {
    let options = RequestOptions { max_tokens, seed: Some(1), ..RequestOptions::default() };
    engine.submit(Prompt::Text(text.into()), options, Mode::Stream).unwrap()
}

fn end(ticket: &Ticket) -> Arc<Finished> {
    ticket.mailbox().wait_end(None).unwrap()
}

/// What an engine in this process makes of a prompt.
pub(crate) fn text_of(text: &str, max_tokens: u32) -> String {
    let engine = ready(options(1), None);
    read(submit(&engine, text, max_tokens).mailbox()).0
}

/// Everything that a mailbox gives, to its end.
pub(crate) fn read(mailbox: &Mailbox) -> (String, Vec<Token>, Arc<Finished>) {
    let (mut text, mut tokens) = (String::new(), Vec::new());
    loop {
        assert!(mailbox.wait(None));
        match mailbox.take() {
            Some(Item::Chunk(chunk)) => {
                assert_eq!(chunk.index as usize, tokens.len());
                text += &chunk.text;
                tokens.extend(chunk.tokens);
            }
            Some(Item::End(finished)) => return (text, tokens, finished),
            None => {}
        }
    }
}
