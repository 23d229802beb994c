//! Text to tokens and back. Runs on the callers' threads.

use super::ffi::{self, guarded};
use super::model::Model;
use crate::backend::Tokenizer;
use crate::core::Token;
use crate::error::Error;
use crate::grammar::{Grammar, GrammarSource};

/// Bytes that one token's text is first given room for.
const PIECE: usize = 64;

impl Model {
    /// Tokens to text, as the vocabulary joins them: a leading space that the tokenizer itself put in is taken out
    /// again. Bytes that are no characters become U+FFFD. Control tokens are left out unless `special`.
    ///
    /// # Errors
    /// [`Error::Prompt`] where a token is not of the vocabulary.
    pub fn detokenize(&self, tokens: &[Token], special: bool) -> Result<String, Error> {
        if let Some(token) = tokens.iter().find(|token| !self.holds(**token)) {
            return Err(Error::Prompt(format!("{token} is not a token: there are {} of them", self.n_vocab)));
        }
        self.need_vocab()?;
        if tokens.is_empty() {
            return Ok(String::new());
        }
        let n_tokens = i32::try_from(tokens.len()).map_err(|_| Error::Prompt("too many tokens".into()))?;
        let mut bytes = vec![0_u8; tokens.len() * 8 + PIECE];
        loop {
            let (mut n, cap) = (0, bytes.len() as i32);
            let pointer = bytes.as_mut_ptr().cast();
            // SAFETY: the vocabulary lives as long as the model; every token is of it; the call writes at most `cap`.
            let done = guarded(|err, err_cap| unsafe {
                let vocab = self.vocab.as_ptr();
                ffi::lb_detokenize(vocab, tokens.as_ptr(), n_tokens, pointer, cap, special, &raw mut n, err, err_cap)
            });
            done.map_err(Error::Prompt)?;
            match usize::try_from(n) {
                Ok(n) => {
                    bytes.truncate(n);
                    return Ok(String::from_utf8_lossy(&bytes).into_owned());
                }
                Err(_) if n == i32::MIN => return Err(Error::Prompt("the text is too long".into())),
                Err(_) => bytes.resize(n.unsigned_abs() as usize, 0),
            }
        }
    }

    /// Whether a token is of the vocabulary.
    fn holds(&self, token: Token) -> bool {
        u32::try_from(token).is_ok_and(|token| token < self.n_vocab)
    }

    fn need_vocab(&self) -> Result<(), Error> {
        if self.has_vocab {
            return Ok(());
        }
        Err(Error::Prompt("this model has no vocabulary: only token ids can be sent to it".into()))
    }
}

impl Tokenizer for Model {
    fn n_vocab(&self) -> u32 {
        self.n_vocab
    }

    fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<Token>, Error> {
        self.need_vocab()?;
        let too_long = || Error::Prompt(format!("the text is too long: {} bytes", text.len()));
        let length = i32::try_from(text.len()).map_err(|_| too_long())?;
        let mut tokens = vec![0; text.len() / 2 + 16];
        loop {
            let (mut n, cap) = (0, i32::try_from(tokens.len()).map_err(|_| too_long())?);
            let pointer = tokens.as_mut_ptr();
            // SAFETY: the vocabulary lives as long as the model; the text is passed with its length, so that a NUL in
            // it is a character like others; the call writes at most `cap` tokens.
            let done = guarded(|err, err_cap| unsafe {
                let (vocab, text) = (self.vocab.as_ptr(), text.as_ptr().cast());
                let n = &raw mut n;
                ffi::lb_tokenize(vocab, text, length, pointer, cap, add_special, parse_special, n, err, err_cap)
            });
            done.map_err(|reason| Error::Prompt(format!("the text cannot be tokenised: {reason}")))?;
            match usize::try_from(n) {
                Ok(n) => {
                    tokens.truncate(n);
                    return Ok(tokens);
                }
                Err(_) if n == i32::MIN => return Err(too_long()),
                Err(_) => tokens.resize(n.unsigned_abs() as usize, 0),
            }
        }
    }

    fn piece(&self, token: Token, special: bool) -> Vec<u8> {
        if !self.has_vocab || !self.holds(token) {
            return Vec::new();
        }
        let mut bytes = vec![0_u8; PIECE];
        loop {
            let (mut n, cap) = (0, bytes.len() as i32);
            let pointer = bytes.as_mut_ptr().cast();
            // SAFETY: the vocabulary lives as long as the model; the token is of it; the call writes at most `cap`.
            let done = guarded(|err, err_cap| unsafe {
                ffi::lb_piece(self.vocab.as_ptr(), token, pointer, cap, special, &raw mut n, err, err_cap)
            });
            match (done, usize::try_from(n)) {
                (Err(_), _) => return Vec::new(),
                (Ok(_), Ok(n)) => {
                    bytes.truncate(n);
                    return bytes;
                }
                (Ok(_), Err(_)) => bytes.resize(n.unsigned_abs() as usize, 0),
            }
        }
    }

    fn is_eog(&self, token: Token) -> bool {
        // SAFETY: the vocabulary lives as long as the model; a token that is not of it is not found in the set.
        self.holds(token) && unsafe { llama_cpp_sys_2::llama_vocab_is_eog(self.vocab.as_ptr(), token) }
    }

    fn compile(&self, source: &GrammarSource, shown: &[Token]) -> Result<Grammar, Error> {
        self.need_vocab()?;
        self.grammars.compiler(self, shown)?.compile(source).map_err(Error::Grammar)
    }
}
