//! What a request says in words, once the vocabulary makes tokens of it. On the caller's thread, before the queue.

use super::lock;
use super::prompt::{Model, Prompt};
use crate::backend::Tokenizer;
use crate::core::{Begin, Breakers, Compiled, Constraint, Request, Shape, Token, TokenRules, Words};
use crate::error::Error;
use crate::options::TokenOrText;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Breakers that are remembered: each took a look at the whole vocabulary.
const MAX_KNOWN: usize = 64;

/// What of a request waits for the vocabulary.
pub(super) struct Asked {
    pub(super) input: Input,
    /// Answers.
    pub(super) n: u32,
}

/// What a request begins with.
pub(super) enum Input {
    /// A prompt, and what else of the request is in words.
    Prompt(Prompt, Box<Words>),
    /// Texts to embed.
    Texts(Vec<Prompt>),
}

/// Makes tokens of words, and remembers what was costly.
#[derive(Default)]
pub(super) struct Settler {
    breakers: Mutex<BTreeMap<String, Arc<Breakers>>>,
}

impl Settler {
    /// Complete a request.
    pub(super) fn settle(&self, asked: Asked, model: &Model, request: &mut Request) -> Result<(), Error> {
        let Asked { input, n: _ } = asked;
        let (prompt, mut words) = match input {
            Input::Prompt(prompt, words) => (prompt, words),
            Input::Texts(texts) => return embed(texts, model, request),
        };
        let tokenizer = &*model.tokenizer;
        let (tokens, Shape { grammar, shown, stop }) = prompt.tokens(model)?;
        request.prompt = tokens.into();
        if let Some((source, begin)) = grammar {
            (words.grammars, words.begin) = (vec![source], begin);
        }
        if !stop.is_empty() {
            request.stop.strings = request.stop.strings.iter().cloned().chain(stop).collect();
        }
        request.sampling.shown = shown_tokens(&shown, tokenizer)?;
        request.sampling.tokens = token_rules(&words, tokenizer)?;
        let shown = request.sampling.shown.as_deref().unwrap_or_default();
        request.sampling.constraint = constraint(&words, shown, tokenizer)?;
        if request.sampling.dry_multiplier > 0.0 {
            request.sampling.dry_breakers = Some(self.breakers(&words, tokenizer));
        }
        Ok(())
    }

    fn breakers(&self, words: &Words, tokenizer: &dyn Tokenizer) -> Arc<Breakers> {
        let mut all = Breakers::default();
        for text in words.dry_breakers.iter().filter(|text| !text.is_empty()) {
            let known = lock(&self.breakers).get(text).cloned();
            let one = known.unwrap_or_else(|| {
                let one = Arc::new(breakers_of(text, tokenizer));
                let mut known = lock(&self.breakers);
                if known.len() >= MAX_KNOWN {
                    known.clear();
                }
                known.insert(text.clone(), Arc::clone(&one));
                one
            });
            all.join(&one);
        }
        Arc::new(all)
    }
}

/// The tokens of texts. What is wrong with one names it.
fn embed(texts: Vec<Prompt>, model: &Model, request: &mut Request) -> Result<(), Error> {
    let is_one = texts.len() == 1;
    let tokens = |(index, text): (usize, Prompt)| {
        let tokens = text.tokens(model).map(|(tokens, _)| Arc::from(tokens));
        tokens.map_err(|error| {
            if let Error::Prompt(what) = &error
                && !is_one
            {
                return Error::Prompt(format!("text {index} of the input: {what}"));
            }
            error
        })
    };
    let texts: Vec<Arc<[Token]>> = texts.into_iter().enumerate().map(tokens).collect::<Result<_, _>>()?;
    if let Some(embed) = &mut request.embed {
        embed.texts = texts.into();
    }
    Ok(())
}

fn breakers_of(text: &str, tokenizer: &dyn Tokenizer) -> Breakers {
    let pieces = (0..tokenizer.n_vocab() as Token).map(|token| (token, tokenizer.piece(token, true)));
    let mut breakers = Breakers::default();
    breakers.add(text.as_bytes(), pieces, |rest| {
        tokenizer.tokenize(&String::from_utf8_lossy(rest), false, false).unwrap_or_default()
    });
    breakers
}

/// What the answer must look like, compiled.
fn constraint(words: &Words, shown: &[Token], tokenizer: &dyn Tokenizer) -> Result<Option<Arc<Constraint>>, Error> {
    let source = match &*words.grammars {
        [] if matches!(words.begin, Begin::After(_)) => return Ok(None),
        [] => return Err(Error::Grammar("grammar_triggers without a grammar".into())),
        [source] => source.clone(),
        [_, _, ..] => {
            return Err(Error::Grammar("of grammar, json_schema, regex and choice a request has one".into()));
        }
    };
    let compiled = Compiled(Some(Arc::new(tokenizer.compile(&source, shown)?)));
    Ok(Some(Arc::new(Constraint { source, begin: words.begin.clone(), compiled })))
}

/// The control tokens that these texts are, in order.
fn shown_tokens(texts: &[String], tokenizer: &dyn Tokenizer) -> Result<Option<Arc<[Token]>>, Error> {
    let mut shown = Vec::new();
    for text in texts {
        if let [token] = tokenizer.tokenize(text, false, true)?[..]
            && tokenizer.piece(token, false).is_empty()
        {
            shown.push(token);
        }
    }
    shown.sort_unstable();
    shown.dedup();
    Ok((!shown.is_empty()).then(|| shown.into()))
}

/// What is said of single tokens; none where that is nothing.
fn token_rules(words: &Words, tokenizer: &dyn Tokenizer) -> Result<Option<Arc<TokenRules>>, Error> {
    let check = |option: &str, token: u32| match Token::try_from(token) {
        Ok(token) if is_known(tokenizer, token) => Ok(token),
        Ok(_) | Err(_) => Err(unknown(option, token, tokenizer)),
    };
    let mut rules = TokenRules::default();
    let mut biases: BTreeMap<Token, f32> = BTreeMap::new();
    for (named, bias) in &words.logit_bias {
        let tokens = match named {
            TokenOrText::Token(token) => vec![check("logit_bias", *token)?],
            TokenOrText::Text(text) => tokenizer.tokenize(text, false, true)?,
        };
        for token in tokens {
            *biases.entry(token).or_insert(0.0) += bias;
        }
    }
    for token in &words.banned {
        biases.insert(check("banned_token_ids", *token)?, f32::NEG_INFINITY);
    }
    for word in &words.bad_words {
        for text in [word.clone(), format!(" {word}")] {
            let sequence = tokenizer.tokenize(&text, false, false)?;
            match *sequence {
                [] => {}
                [token] => drop(biases.insert(token, f32::NEG_INFINITY)),
                [..] => rules.banned_sequences.push(sequence),
            }
        }
    }
    if let Some(allowed) = &words.allowed {
        let mut allowed: Vec<Token> =
            allowed.iter().map(|token| check("allowed_token_ids", *token)).collect::<Result<_, _>>()?;
        allowed.sort_unstable();
        allowed.dedup();
        if allowed.iter().all(|token| biases.get(token) == Some(&f32::NEG_INFINITY)) {
            return Err(Error::Option("allowed_token_ids leaves no token that may be drawn".into()));
        }
        rules.allowed = Some(allowed);
    }
    rules.bias = biases.into_iter().collect();
    Ok((rules != TokenRules::default()).then(|| Arc::new(rules)))
}

fn is_known(tokenizer: &dyn Tokenizer, token: Token) -> bool {
    u32::try_from(token).is_ok_and(|token| token < tokenizer.n_vocab())
}

fn unknown(option: &str, token: impl std::fmt::Display, tokenizer: &dyn Tokenizer) -> Error {
    Error::Option(format!("{option} holds {token}, which is no token: there are {} of them", tokenizer.n_vocab()))
}
