//! The tokens of a model, as a grammar sees them.

use crate::core::Token;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The trie of llguidance holds no longer token, and models have none that is worth one.
const MAX_TOKEN_BYTES: usize = 1000;

/// No character of UTF-8 has it, and to llguidance it marks special tokens.
const MARKER: u8 = 0xff;

/// The tokens of a model: the bytes of each, and which of them end a generation.
#[derive(Clone)]
pub struct Vocabulary {
    env: TokEnv,
    n_tokens: usize,
    /// For each token the first one with the same bytes, which stands for it in the trie; none where it is no text.
    stands_for: Arc<[Option<u32>]>,
    /// Tokens that another one stands for.
    twins: Arc<[(u32, u32)]>,
    eog: Arc<[Token]>,
}

impl std::fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vocabulary").field("n_tokens", &self.n_tokens).field("eog", &self.eog).finish_non_exhaustive()
    }
}

impl Vocabulary {
    /// The vocabulary of tokens in order, each with its bytes and whether it is a control token, and the tokens that end a
    /// generation.
    ///
    /// No grammar ever allows a control token, nor one whose bytes no text can have: none, or the byte 0xff.
    ///
    /// # Errors
    /// Where there is no token, or more than llguidance counts.
    pub fn new(tokens: impl IntoIterator<Item = (Vec<u8>, bool)>, eog: &[Token]) -> Result<Self, String> {
        let (mut words, mut stands_for, mut twins) = (Vec::new(), Vec::new(), Vec::new());
        let mut first_with: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
        for (token, (bytes, is_control)) in tokens.into_iter().enumerate() {
            let id = u32::try_from(token).ok().filter(|id| *id < (1 << 24) - 2);
            let id = id.ok_or("the vocabulary has too many tokens")?;
            let ends = eog.iter().any(|token| u32::try_from(*token) == Ok(id));
            let is_text = !(is_control || ends || bytes.is_empty() || bytes.len() > MAX_TOKEN_BYTES);
            if !is_text || bytes.contains(&MARKER) {
                stands_for.push(None);
                words.push(Vec::new());
                continue;
            }
            let first = *first_with.entry(bytes.clone()).or_insert(id);
            stands_for.push(Some(first));
            if first == id {
                words.push(bytes);
            } else {
                twins.push((id, first));
                words.push(Vec::new());
            }
        }
        if first_with.is_empty() {
            return Err("the vocabulary has no token that is text".into());
        }
        let n_tokens = words.len();
        // llguidance has one token for the end. It gets one that no model has; the model's own are told apart here.
        words.push(Vec::new());
        let info = TokRxInfo::new(words.len() as u32, n_tokens as u32);
        // A vocabulary without canonical tokens: llguidance would else force its own way to write what is certain.
        let env = ApproximateTokEnv::new(TokTrie::from(&info, &words));
        Ok(Self { env: Arc::new(env), n_tokens, stands_for: stands_for.into(), twins: twins.into(), eog: eog.into() })
    }

    /// How many tokens there are.
    pub fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    /// The tokens that end a generation.
    pub fn eog(&self) -> &[Token] {
        &self.eog
    }

    pub(super) fn env(&self) -> &TokEnv {
        &self.env
    }

    /// The token that llguidance takes for the end.
    pub(super) fn end(&self) -> u32 {
        self.n_tokens as u32
    }

    pub(super) fn is_eog(&self, token: Token) -> bool {
        self.eog.contains(&token)
    }

    /// The token of the trie with the same text; none for what is no text.
    pub(super) fn in_trie(&self, token: Token) -> Option<u32> {
        let token = usize::try_from(token).ok()?;
        self.stands_for.get(token).copied().flatten()
    }

    /// The text of a token; nothing for what is no text.
    pub(super) fn bytes(&self, token: Token) -> &[u8] {
        self.in_trie(token).map_or(&[], |token| self.env.tok_trie().token(token))
    }

    /// Tokens that another one stands for in the trie, each with that one.
    pub(super) fn twins(&self) -> &[(u32, u32)] {
        &self.twins
    }
}
