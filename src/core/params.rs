//! How tokens are drawn, every value settled. For the backend's samplers; the core reads little of it.

use super::breakers::Breakers;
use super::ids::Token;
use super::logprobs::Telling;
pub use crate::options::SamplerKind;
use crate::options::{GrammarSource, RequestOptions, StartOptions, TokenOrText};
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::sync::Arc;

/// Where repetitions end for DRY, where the request does not say: llama.cpp's.
const DRY_BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];

/// How the tokens of one request are drawn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SamplingParams {
    /// 0 is greedy.
    pub temp: f32,
    /// How far the temperature follows the entropy up and down; 0 is off.
    pub dynatemp_range: f32,
    /// How it follows.
    pub dynatemp_exponent: f32,
    /// 0 means all.
    pub top_k: u32,
    /// 1 means all.
    pub top_p: f32,
    /// 0 means all.
    pub min_p: f32,
    /// 1 means all.
    pub typical_p: f32,
    /// 0 means all. Unit: standard deviations.
    pub top_n_sigma: f32,
    /// 0 is off.
    pub xtc_probability: f32,
    /// Above 0.5 is off.
    pub xtc_threshold: f32,
    /// 1 is off.
    pub penalty_repeat: f32,
    /// 0 is off.
    pub penalty_freq: f32,
    /// 0 is off.
    pub penalty_present: f32,
    /// Last tokens that penalties look at, prompt included; -1 means all.
    pub penalty_last_n: i32,
    /// 0 is off.
    pub dry_multiplier: f32,
    /// Below 1 is off.
    pub dry_base: f32,
    /// Repetitions up to so many tokens cost nothing.
    pub dry_allowed_length: u32,
    /// Last tokens that DRY looks at, prompt included; -1 means all.
    pub dry_penalty_last_n: i32,
    /// What no repetition goes beyond.
    pub dry_breakers: Option<Arc<Breakers>>,
    /// 0 is off; 1 or 2 the version.
    pub mirostat: u32,
    /// The target surprise. Unit: bits.
    pub mirostat_tau: f32,
    /// How fast it is approached.
    pub mirostat_eta: f32,
    /// The links of the chain, in order; none means llama.cpp's.
    pub samplers: Option<Arc<[SamplerKind]>>,
    /// Which tokens are likelier than the model has them, or may not be drawn.
    pub tokens: Option<Arc<TokenRules>>,
    /// What the answer must look like.
    pub constraint: Option<Arc<Constraint>>,
    /// Who draws in the place of the chain.
    pub custom: Option<u64>,
    /// Control tokens that are text in the answer, in order: it holds what they spell, and its grammar may ask for that.
    pub shown: Option<Arc<[Token]>>,
    /// What is told of each token.
    pub telling: Telling,
    /// The seed of this request's random stream.
    pub seed: u64,
    /// Tokens of the model's own that end a generation are never drawn.
    pub ignore_eos: bool,
    /// Nothing that would end the generation is drawn until so many tokens are; only limits end it before.
    pub min_tokens: u32,
}

impl SamplingParams {
    /// Every link off, at temperature 1.
    pub const OFF: Self = Self {
        temp: 1.0,
        dynatemp_range: 0.0,
        dynatemp_exponent: 1.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        typical_p: 1.0,
        top_n_sigma: 0.0,
        xtc_probability: 0.0,
        xtc_threshold: 0.1,
        penalty_repeat: 1.0,
        penalty_freq: 0.0,
        penalty_present: 0.0,
        penalty_last_n: 64,
        dry_multiplier: 0.0,
        dry_base: 1.75,
        dry_allowed_length: 2,
        dry_penalty_last_n: 64,
        dry_breakers: None,
        mirostat: 0,
        mirostat_tau: 5.0,
        mirostat_eta: 0.1,
        samplers: None,
        tokens: None,
        constraint: None,
        custom: None,
        shown: None,
        telling: Telling::NOTHING,
        seed: 0,
        ignore_eos: false,
        min_tokens: 0,
    };

    /// The values of a request where it gave them, the engine's otherwise.
    pub(super) fn draft(options: &RequestOptions, engine: &StartOptions, fresh_seed: u64) -> Self {
        // Every option is named, so that a new one does not compile before somebody looked at who reads it: those that
        // stand for the engine's here, the others below, in `Words` and in request.rs.
        macro_rules! settled {
            (of_the_engine: $($name:ident),*; others: $($other:ident),*) => {{
                let RequestOptions { $($name,)* $($other,)* } = options;
                let _ = ($($other),*);
                Self { $($name: $name.unwrap_or(engine.$name),)* ..Self::OFF }
            }};
        }
        let telling = Telling {
            drawn: options.logprobs,
            prompt: options.prompt_logprobs,
            after_sampling: options.post_sampling_logprobs,
        };
        Self {
            samplers: options.samplers.as_ref().map(|order| order.0.as_slice().into()),
            custom: options.sampler.map(|callable| callable.0),
            telling,
            seed: options.seed.or(engine.seed).unwrap_or(fresh_seed),
            ignore_eos: options.ignore_eos,
            min_tokens: options.min_tokens,
            ..settled!(
                of_the_engine: temp, dynatemp_range, dynatemp_exponent, top_k, top_p, min_p, typical_p, top_n_sigma,
                    xtc_probability, xtc_threshold, penalty_repeat, penalty_freq, penalty_present, penalty_last_n,
                    dry_multiplier, dry_base, dry_allowed_length, dry_penalty_last_n, mirostat, mirostat_tau,
                    mirostat_eta;
                others: max_tokens, n_draft, timeout, queue_timeout, stall_timeout, priority, cache_prompt, session, cache_scope, fair_scope,
                    stop, include_stop, stop_token_ids, min_tokens, ignore_eos, dry_sequence_breakers, samplers,
                    logit_bias, banned_token_ids, allowed_token_ids, bad_words, logprobs, prompt_logprobs,
                    post_sampling_logprobs, n, grammar, grammar_root, json_schema, regex, choice, grammar_triggers,
                    sampler, seed
            )
        }
    }
}

/// What a request says of single tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TokenRules {
    /// Added to their logits; -inf bans.
    pub bias: Vec<(Token, f32)>,
    /// No others are drawn; none means all.
    pub allowed: Option<Vec<Token>>,
    /// Sequences of two tokens or more that are not completed.
    pub banned_sequences: Vec<Vec<Token>>,
}

/// What the answer must look like.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Constraint {
    /// As the caller said it.
    pub source: GrammarSource,
    /// When it begins to hold.
    pub begin: Begin,
    /// What was compiled of it, for a sampler in this process.
    #[serde(skip)]
    pub compiled: Compiled,
}

/// When a grammar begins to hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Begin {
    /// At the answer's beginning, after a text that the prompt ends with; in general that is empty.
    After(String),
    /// With the first of these texts, itself included; everything is allowed before it.
    With(Vec<String>),
    /// Behind the first of these texts.
    Behind(Vec<String>),
}

impl Default for Begin {
    fn default() -> Self {
        Self::After(String::new())
    }
}

/// A compiled grammar, of which the core knows nothing.
#[derive(Clone, Default)]
pub struct Compiled(pub Option<Arc<dyn Any + Send + Sync>>);

impl std::fmt::Debug for Compiled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "compiled" } else { "not compiled" })
    }
}

impl PartialEq for Compiled {
    /// The source says what it is.
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// What the answer to a conversation looks like, as its template has it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shape {
    /// What it keeps to, in the place of what the request says.
    pub grammar: Option<(GrammarSource, Begin)>,
    /// Texts of control tokens that belong to it.
    pub shown: Vec<String>,
    /// Texts that end it.
    pub stop: Vec<String>,
}

/// What a request says in words, until the vocabulary makes tokens of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Words {
    /// Added to the logits of these; -inf bans.
    pub logit_bias: Vec<(TokenOrText, f32)>,
    /// Tokens that are not drawn.
    pub banned: Vec<u32>,
    /// No others are drawn; none means all.
    pub allowed: Option<Vec<u32>>,
    /// Texts that are not completed.
    pub bad_words: Vec<String>,
    /// Where repetitions end for DRY.
    pub dry_breakers: Vec<String>,
    /// What the answer must look like: one of these at most.
    pub grammars: Vec<GrammarSource>,
    /// When it begins to hold.
    pub begin: Begin,
    /// Texts of control tokens that belong to the answer.
    pub shown: Vec<String>,
}

impl Words {
    /// What a request says in words.
    pub(super) fn draft(options: &RequestOptions) -> Self {
        let breakers = options.dry_sequence_breakers.clone();
        let root = &options.grammar_root;
        let gbnf = options.grammar.clone().map(|text| GrammarSource::Gbnf { text, root: root.clone() });
        let schema = options.json_schema.clone().map(|schema| GrammarSource::JsonSchema(schema.0));
        let regex = options.regex.clone().map(GrammarSource::Regex);
        let choice = options.choice.clone().map(|texts| GrammarSource::Choice(texts.0));
        Self {
            logit_bias: options.logit_bias.as_ref().map(|bias| bias.0.clone()).unwrap_or_default(),
            banned: options.banned_token_ids.clone().unwrap_or_default(),
            allowed: options.allowed_token_ids.clone(),
            bad_words: options.bad_words.clone().unwrap_or_default().0,
            dry_breakers: breakers.map_or_else(|| DRY_BREAKERS.map(String::from).to_vec(), |texts| texts.0),
            grammars: [gbnf, schema, regex, choice].into_iter().flatten().collect(),
            begin: options.grammar_triggers.clone().map_or_else(Begin::default, |texts| Begin::With(texts.0)),
            shown: Vec::new(),
        }
    }
}
