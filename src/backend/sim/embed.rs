//! Vectors of the simulated model: those of a token are a function of all tokens of its text up to it, so that a part that
//! is missing, doubled or of another text changes the vector.

use super::{Fault, SimBackend, config, extend_hash};
use crate::core::{EmbedOutcome, EmbedPart, EmbedStatus, PassStatus, Pool, RequestId, mix};

/// A text that takes more passes than one.
#[derive(Debug)]
pub(super) struct Reading {
    request: RequestId,
    index: u32,
    n_done: u32,
    hash: u64,
    pool: Pool,
}

impl SimBackend {
    pub(super) fn embed_parts(&mut self, parts: &[EmbedPart]) -> EmbedOutcome {
        self.assert_parts(parts);
        assert!(!self.strikes(|fault| *fault == Fault::Panic, |_| 0), "injected: the backend panics");
        let n_rows = parts.iter().map(|part| part.tokens.len()).sum();
        let eval = self.config.latency.pass(n_rows);
        let failed = |code: i32, reason: &str| EmbedStatus::Failed { code, reason: reason.into() };
        let status = match self.pass_fault(n_rows) {
            Some((PassStatus::Failed { code, reason }, _)) => failed(code, &reason),
            Some((PassStatus::KvFull | PassStatus::Done, _)) => failed(1, "injected: no room"),
            None if self.config.real_time && !config::wait(eval, &self.abort) => failed(2, "aborted"),
            None => EmbedStatus::Done(parts.iter().filter_map(|part| self.read(part)).collect()),
        };
        if !matches!(status, EmbedStatus::Done(_)) {
            self.reading = None;
        }
        EmbedOutcome { status, eval }
    }

    /// llama.cpp's rules, and this contract's.
    fn assert_parts(&self, parts: &[EmbedPart]) {
        let limits = self.limits.embed.expect("a model that embeds");
        assert!(!parts.is_empty() && parts.len() <= limits.n_texts as usize, "a pass has texts");
        let n_rows: usize = parts.iter().map(|part| part.tokens.len()).sum();
        assert!(n_rows <= limits.n_batch as usize, "a pass of {n_rows} rows, {} fit", limits.n_batch);
        for part in parts {
            assert!(!part.tokens.is_empty() && part.end() <= part.n_text, "a part of its text");
            assert!(part.n_text <= limits.n_text, "a text that fits");
            assert!(part.tokens.iter().all(|token| (0..self.limits.n_vocab as i32).contains(token)), "known tokens");
            let is_whole = part.from == 0 && part.is_last();
            assert!(is_whole || (limits.in_parts && parts.len() == 1), "a part of a text is alone in its pass");
        }
    }

    /// Read a part; the vector of its text, if that ends with it.
    fn read(&mut self, part: &EmbedPart) -> Option<Vec<f32>> {
        let begun = self.reading.take().filter(|_| part.from > 0);
        assert_eq!(begun.is_some(), part.from > 0, "what goes on was begun");
        let mut reading = begun.unwrap_or_else(|| Reading {
            request: part.request,
            index: part.index,
            n_done: 0,
            hash: 0,
            pool: Pool::new(part.pooling, self.config.n_embd),
        });
        let is_same = (reading.request, reading.index, reading.n_done) == (part.request, part.index, part.from);
        assert!(is_same, "a text goes on where it was left");
        for token in part.tokens.iter() {
            reading.hash = extend_hash(reading.hash, *token);
            reading.pool.add(&vector(reading.hash, self.config.n_embd));
        }
        reading.n_done = part.end();
        if part.is_last() {
            return Some(reading.pool.finish());
        }
        self.reading = Some(reading);
        None
    }
}

/// Values between -1 and 1.
fn vector(hash: u64, n_embd: u32) -> Vec<f32> {
    let value = |i| (mix(hash.wrapping_add(i)) >> 40) as f32 / (1 << 23) as f32 - 1.0;
    (0..u64::from(n_embd)).map(value).collect()
}
