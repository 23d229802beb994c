//! The simulated vocabulary: bytes, a few words, and a llama whose four bytes are four tokens.

use super::SimConfig;
use crate::backend::{Tokenizer, compiler};
use crate::core::{Token, mix};
use crate::error::Error;
use crate::grammar::{Compiler, Grammar, GrammarSource};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Ends a generation.
pub(super) const EOG: Token = 256;
/// Words start here.
const FIRST_WORD: Token = 258;
/// The first of four tokens that are one character.
const LLAMA: Token = 300;
const LLAMA_BYTES: [u8; 4] = [0xf0, 0x9f, 0xa6, 0x99];
const N_VOCAB_MIN: Token = 512;

/// Text is its UTF-8 bytes, one token each.
#[derive(Clone, Copy, Debug)]
pub struct SimTokenizer {
    n_vocab: u32,
}

impl SimTokenizer {
    /// The tokenizer of a simulated model.
    pub fn new(config: &SimConfig) -> Self {
        Self { n_vocab: config.limits().n_vocab }
    }
}

impl Tokenizer for SimTokenizer {
    fn n_vocab(&self) -> u32 {
        self.n_vocab
    }

    fn tokenize(&self, text: &str, _add_special: bool, _parse_special: bool) -> Result<Vec<Token>, Error> {
        Ok(text.bytes().map(Token::from).collect())
    }

    fn piece(&self, token: Token, _special: bool) -> Vec<u8> {
        piece(token)
    }

    fn is_eog(&self, token: Token) -> bool {
        token == EOG
    }

    fn compile(&self, source: &GrammarSource, _shown: &[Token]) -> Result<Grammar, Error> {
        // Two simulated vocabularies of one size are one.
        static KNOWN: Mutex<BTreeMap<u32, Arc<Compiler>>> = Mutex::new(BTreeMap::new());
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let compiler = match known.get(&self.n_vocab) {
            Some(compiler) => Arc::clone(compiler),
            None => Arc::clone(known.entry(self.n_vocab).or_insert(Arc::new(compiler(self, &[])?))),
        };
        drop(known);
        compiler.compile(source).map_err(Error::Grammar)
    }
}

/// The bytes of a token.
pub(super) fn piece(token: Token) -> Vec<u8> {
    match token {
        0..EOG => vec![token as u8],
        LLAMA..304 => vec![LLAMA_BYTES[(token - LLAMA) as usize]],
        FIRST_WORD.. => format!(" w{token}").into_bytes(),
        _ => Vec::new(),
    }
}

/// The token that follows, from a hash of all that it depends on. A llama that has begun is finished first.
pub(super) fn next_token(hash: u64, last: Token, config: &SimConfig) -> Token {
    if (LLAMA..LLAMA + 3).contains(&last) {
        return last + 1;
    }
    if config.eog_every > 0 && hash.is_multiple_of(u64::from(config.eog_every)) {
        return EOG;
    }
    let repeats = (hash >> 20) % 1000 < u64::from(config.repeat);
    let hash = if repeats { mix(last.unsigned_abs().into()) } else { hash };
    let words = (N_VOCAB_MIN - 304) as u64;
    match (hash >> 32) % 16 {
        0 => LLAMA,
        _ => 304 + ((hash >> 8) % words) as Token,
    }
}
