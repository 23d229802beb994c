//! Structured output over a small vocabulary: all bytes, some longer tokens, two ends and a control token.

mod gbnf;
mod hostile;
mod lazy;
mod schemas;
mod texts;
mod walks;

use llama_batch::core::Token;
use llama_batch::grammar::{Compiler, Grammar, GrammarSource, Matcher, Vocabulary};
use proptest::prelude::Rng;
use proptest::test_runner::TestRng;
use std::sync::OnceLock;

const LONGER: [&str; 24] = [
    "ab", "abc", "aa", "ba", "{\"", "\":", "\": ", "\",", "true", "false", "null", "12", "00", "3.", "xx", "  ", "]}",
    "}}", "\n ", "name", "\"a", "\"b", "日本", "é",
];
const N_BYTES: usize = 256;

/// Both end a generation.
const EOG: [Token; 2] = [(N_BYTES + LONGER.len()) as Token, (N_BYTES + LONGER.len() + 1) as Token];
const CONTROL: Token = EOG[1] + 1;
/// Another token with the text of one above.
const TWIN: Token = CONTROL + 1;
/// Half a character, and the rest of it with a letter.
const HALF: Token = TWIN + 1;
const REST: Token = HALF + 1;
const N_TOKENS: usize = REST as usize + 1;

fn tokens() -> Vec<(Vec<u8>, bool)> {
    let mut tokens: Vec<(Vec<u8>, bool)> = (0..=255_u8).map(|byte| (vec![byte], false)).collect();
    tokens.extend(LONGER.iter().map(|text| (text.as_bytes().to_vec(), false)));
    tokens.extend([(b"<end>".to_vec(), true), (Vec::new(), true), (b"abc".to_vec(), true), (b"abc".to_vec(), false)]);
    tokens.extend([(vec![b'a', 0xe2, 0x98], false), (vec![0x83, b'a'], false)]);
    tokens
}

fn compiler() -> &'static Compiler {
    static COMPILER: OnceLock<Compiler> = OnceLock::new();
    COMPILER.get_or_init(|| Compiler::new(Vocabulary::new(tokens(), &EOG).unwrap()).unwrap())
}

fn compile(source: &GrammarSource) -> Result<Grammar, String> {
    compiler().compile(source)
}

fn gbnf(text: &str) -> GrammarSource {
    GrammarSource::Gbnf { text: text.into(), root: "root".into() }
}

fn bytes(token: Token) -> Vec<u8> {
    tokens()[token as usize].0.clone()
}

/// The tokens that the mask leaves.
fn left(matcher: &mut Matcher) -> Result<Vec<Token>, String> {
    let mut logits = vec![0.0; N_TOKENS];
    matcher.mask(&mut logits)?;
    Ok((0..N_TOKENS as Token).filter(|token| logits[*token as usize] == 0.0).collect())
}

/// Whether a grammar takes a whole text, token by token: by bytes, and with the longest token at each place.
fn takes(grammar: &Grammar, text: &str) -> bool {
    let by_bytes: Vec<Token> = text.bytes().map(Token::from).collect();
    let results = [by_bytes, greedy(text.as_bytes())].map(|tokens| takes_tokens(grammar, &tokens));
    assert_eq!(results[0], results[1], "{text:?} is taken in one way to write it and not in another");
    results[0]
}

fn takes_tokens(grammar: &Grammar, tokens: &[Token]) -> bool {
    let mut matcher = Matcher::new(grammar);
    for token in tokens {
        if !matcher.allows(*token).unwrap() {
            return false;
        }
        matcher.accept(*token).unwrap();
    }
    let ends = EOG.map(|token| matcher.allows(token).unwrap());
    assert_eq!(ends[0], ends[1]);
    ends[0]
}

fn greedy(mut text: &[u8]) -> Vec<Token> {
    let all = tokens();
    let mut found = Vec::new();
    while !text.is_empty() {
        let fits = |token: &usize| !all[*token].1 && !all[*token].0.is_empty() && text.starts_with(&all[*token].0);
        let longest = (0..N_TOKENS).filter(fits).max_by_key(|token| all[*token].0.len()).unwrap();
        text = &text[all[longest].0.len()..];
        found.push(longest as Token);
    }
    found
}

/// Walk through tokens that are allowed, each of some checked against the mask, until the answer ends or is so long.
fn walk(grammar: &Grammar, rng: &mut TestRng, most: usize) -> Option<String> {
    let (mut matcher, mut text) = (Matcher::new(grammar), Vec::new());
    for step in 0..most {
        let allowed = left(&mut matcher).unwrap();
        if step % 16 == 0 {
            for token in 0..N_TOKENS as Token {
                assert_eq!(matcher.allows(token).unwrap(), allowed.contains(&token), "token {token} after {text:?}");
            }
        }
        let token = allowed[rng.next_u32() as usize % allowed.len()];
        matcher.accept(token).unwrap();
        if EOG.contains(&token) {
            return Some(String::from_utf8(text).unwrap());
        }
        text.extend(bytes(token));
    }
    None
}
