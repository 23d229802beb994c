//! The llama.cpp backend on real models. Each test is ignored unless asked for, because it needs a file:
//!
//! ```text
//! LLAMA_BATCH_TEST_MODEL=SmolLM2-135M-Instruct.gguf cargo test --release -- --include-ignored
//! ```
//!
//! `LLAMA_BATCH_TEST_SLIDING`, `LLAMA_BATCH_TEST_RECURRENT` and `LLAMA_BATCH_TEST_HYBRID` name a model with a sliding
//! window, a recurrent one, and one of both; `tests/stand_ins/tiny_models.py` writes such. The tests of a kind whose
//! model is not named do nothing.

mod account;
mod chain;
mod embed;
mod files;
mod grammar;
mod memory;
mod passes;
mod text;

use llama_batch::backend::llama::{LlamaBackend, Model, load};
use llama_batch::backend::{Backend, Tokenizer};
use llama_batch::core::{DecodeOutcome, Op, OpResult, PassStatus, RequestId, Row, SamplingParams, SeqId, Token};
use llama_batch::options::StartOptions;
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// The path in an environment variable.
fn named(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).map(PathBuf::from)
}

/// The file of the main test model.
fn model_file() -> PathBuf {
    named("LLAMA_BATCH_TEST_MODEL").expect("LLAMA_BATCH_TEST_MODEL names a GGUF file")
}

/// The main test model, loaded once.
fn model() -> Arc<Model> {
    static MODEL: OnceLock<Arc<Model>> = OnceLock::new();
    let load = || load(&StartOptions::default(), &model_file(), &|_| true).unwrap();
    Arc::clone(MODEL.get_or_init(load))
}

/// A small engine's options.
fn options() -> StartOptions {
    StartOptions { n_ctx: 2048, n_parallel: 4, n_threads: 1, ..StartOptions::default() }
}

fn greedy() -> SamplingParams {
    SamplingParams { temp: 0.0, seed: 1, ..SamplingParams::OFF }
}

/// A backend, and what a scheduler would keep in mind about its sequences.
struct Bench {
    backend: LlamaBackend,
}

impl Bench {
    fn new(model: Arc<Model>, options: &StartOptions) -> Self {
        Self { backend: LlamaBackend::new(model, options).unwrap() }
    }

    fn open(&mut self, request: u64, prompt: &[Token]) {
        let op = Op::Open {
            request: RequestId(request),
            sampling: greedy(),
            prompt: prompt.into(),
            stop_tokens: Arc::default(),
        };
        assert_eq!(self.op(op), OpResult::Done);
    }

    fn op(&mut self, op: Op) -> OpResult {
        self.backend.prepare(&[op]).remove(0)
    }

    fn copy(&mut self, from: u32, to: u32, len: u32) -> OpResult {
        self.op(Op::Copy { from: SeqId(from), to: SeqId(to), len })
    }

    fn trim(&mut self, seq: u32, len: u32) -> OpResult {
        self.op(Op::Trim { seq: SeqId(seq), len })
    }

    fn remove(&mut self, seq: u32) -> OpResult {
        self.op(Op::Remove(SeqId(seq)))
    }

    /// Compute a prompt from a position on; the token drawn from its last row.
    fn prefill(&mut self, request: u64, seq: u32, prompt: &[Token], from: usize) -> Token {
        let n_batch = self.backend.limits().n_batch as usize;
        let mut last = None;
        for chunk in rows(request, seq, &prompt[from..], from as u32).chunks(n_batch) {
            let outcome = self.backend.decode(chunk);
            assert_eq!(outcome.status, PassStatus::Done);
            last = drawn(&outcome).first().copied().or(last);
        }
        last.expect("the last row draws")
    }

    /// Generate greedily after a prefill: `n` tokens, the first one among them.
    fn generate(&mut self, request: u64, seq: u32, first: Token, pos: usize, n: usize) -> Vec<Token> {
        let mut tokens = vec![first];
        while tokens.len() < n {
            let row = Row {
                request: RequestId(request),
                seq: SeqId(seq),
                pos: (pos + tokens.len() - 1) as u32,
                token: *tokens.last().unwrap(),
                draws: true,
                scores: false,
            };
            tokens.extend(drawn(&self.backend.decode(&[row])));
        }
        tokens
    }
}

/// A run of tokens as rows, of which the last one draws.
fn rows(request: u64, seq: u32, tokens: &[Token], from: u32) -> Vec<Row> {
    let last = tokens.len() - 1;
    tokens
        .iter()
        .enumerate()
        .map(|(i, token)| Row {
            request: RequestId(request),
            seq: SeqId(seq),
            pos: from + i as u32,
            token: *token,
            draws: i == last,
            scores: false,
        })
        .collect()
}

/// The tokens that a pass drew.
fn drawn(outcome: &DecodeOutcome) -> Vec<Token> {
    outcome.rows.iter().map(|row| row.drawn.as_ref().unwrap()[0].token).collect()
}

fn tokens(model: &Model, text: &str) -> Vec<Token> {
    model.tokenize(text, true, true).unwrap()
}

/// Some text of so many tokens.
fn long(model: &Model, n: usize) -> Vec<Token> {
    let mut text = String::new();
    for i in 0..n {
        let _ = write!(text, "{} birds sat on {i} roofs. ", i * 7919 % 1000);
    }
    let mut tokens = tokens(model, &text);
    tokens.truncate(n);
    tokens
}
