//! Random grammars, walked: what llguidance makes of the translation, against a recogniser that tries everything.

use super::ast::{Node, Rules};
use super::{check, parse};
use crate::core::Token;
use crate::grammar::{Compiler, GrammarSource, Matcher, Vocabulary};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

/// What is left of a text after a rule, by the rule and by how much is left before it: without it the ways to read a text
/// are as many as its parts can be put together.
type Known<'a> = BTreeMap<(usize, usize), BTreeSet<&'a [char]>>;

/// What is left of the text after a part, in every way to read it.
fn rests<'a>(node: &Node, rules: &Rules, text: &'a [char], known: &mut Known<'a>) -> BTreeSet<&'a [char]> {
    match node {
        Node::Class(class) => match text.split_first() {
            Some((c, rest)) if class.has(*c) => BTreeSet::from([rest]),
            _ => BTreeSet::new(),
        },
        Node::Rule(rule) => {
            if let Some(rests) = known.get(&(*rule, text.len())) {
                return rests.clone();
            }
            let found = rests(&rules.rules[*rule].body, rules, text, known);
            known.insert((*rule, text.len()), found.clone());
            found
        }
        Node::Seq(parts) => parts.iter().fold(BTreeSet::from([text]), |before, part| {
            before.into_iter().flat_map(|text| rests(part, rules, text, known)).collect()
        }),
        Node::Alt(options) => options.iter().flat_map(|option| rests(option, rules, text, known)).collect(),
        Node::Repeat(part, min, max) => {
            let mut all = BTreeSet::new();
            let mut now = BTreeSet::from([text]);
            for times in 0.. {
                if times >= *min {
                    let n_known = all.len();
                    all.extend(now.iter().copied());
                    if times > *min && all.len() == n_known {
                        break;
                    }
                }
                if max.is_some_and(|max| times >= max) || now.is_empty() {
                    break;
                }
                now = now.into_iter().flat_map(|text| rests(part, rules, text, known)).collect();
            }
            all
        }
    }
}

fn accepts(rules: &Rules, text: &str) -> bool {
    let text: Vec<char> = text.chars().collect();
    rests(&Node::Rule(rules.root), rules, &text, &mut Known::new()).contains(&[][..])
}

const ALPHABET: [&str; 5] = ["a", "b", "c", "é", "("];
const TOKENS: [&str; 14] = ["a", "b", "c", "(", "ab", "aa", "ba", "abc", "bb", "ca", "é", "aé", "((", "bca"];
const END: Token = TOKENS.len() as Token + 2;

fn compiler() -> &'static Compiler {
    static COMPILER: OnceLock<Compiler> = OnceLock::new();
    COMPILER.get_or_init(|| {
        let mut tokens: Vec<(Vec<u8>, bool)> = TOKENS.iter().map(|text| (text.as_bytes().to_vec(), false)).collect();
        tokens.extend([(vec![0xc3], false), (vec![0xa9], false), (b"</s>".to_vec(), true)]);
        Compiler::new(Vocabulary::new(tokens, &[END]).unwrap()).unwrap()
    })
}

fn part() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        prop::sample::select(vec![
            "\"a\"", "\"ab\"", "\"abc\"", "\"b\"", "\"ba\"", "\"c\"", "\"é\"", "\"(\"", "\"aa\""
        ])
        .prop_map(str::to_string),
        prop::sample::select(vec!["[ab]", "[^a]", "[a-c]", ".", "[b-é]", "[^(é]"]).prop_map(str::to_string),
        prop::sample::select(vec!["root", "x", "y"]).prop_map(str::to_string),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            3 => prop::collection::vec(inner.clone(), 1..4).prop_map(|parts| parts.join(" ")),
            2 => prop::collection::vec(inner.clone(), 1..4).prop_map(|parts| format!("({})", parts.join(" | "))),
            2 => (inner, prop::sample::select(vec!["*", "+", "?", "{2}", "{1,2}", "{0,3}", "{2,}"]))
                .prop_map(|(part, times)| format!("({part}){times}")),
        ]
    })
}

fn grammar() -> impl Strategy<Value = String> {
    let rule = || prop::collection::vec(part(), 1..4).prop_map(|options| options.join(" | "));
    (rule(), rule(), rule()).prop_map(|(root, x, y)| format!("root ::= {root}\nx ::= {x}\ny ::= {y}\n"))
}

/// Short texts over the alphabet.
fn texts() -> Vec<String> {
    let mut texts = vec![String::new()];
    let mut from = 0;
    for _ in 0..4 {
        let to = texts.len();
        for i in from..to {
            let longer: Vec<String> = ALPHABET.iter().map(|c| format!("{}{c}", texts[i])).collect();
            texts.extend(longer);
        }
        from = to;
    }
    texts
}

fn spelled(token: usize) -> &'static [u8] {
    match TOKENS.get(token) {
        Some(text) => text.as_bytes(),
        None => &[[0xc3], [0xa9]][token - TOKENS.len()],
    }
}

/// A way to write a text in tokens.
fn tokenized(text: &str, longest: bool) -> Vec<Token> {
    let (mut rest, mut tokens) = (text.as_bytes(), Vec::new());
    while !rest.is_empty() {
        let fits = (0..TOKENS.len() + 2).filter(|token| rest.starts_with(spelled(*token)));
        let by_len = |token: &usize| spelled(*token).len();
        let token = if longest { fits.max_by_key(by_len) } else { fits.min_by_key(by_len) }.unwrap();
        rest = &rest[spelled(token).len()..];
        tokens.push(token as Token);
    }
    tokens
}

fn takes(matcher: &Matcher, tokens: &[Token]) -> Result<bool, String> {
    let mut matcher = matcher.clone();
    for token in tokens {
        if !matcher.allows(*token)? {
            return Ok(false);
        }
        matcher.accept(*token)?;
    }
    matcher.allows(END)
}

fn cases(n: u32) -> ProptestConfig {
    ProptestConfig { cases: n, max_global_rejects: 1 << 20, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn the_translation_has_the_same_language(text in grammar()) {
        let rules = parse::parse(&text, "root").unwrap();
        prop_assume!(check::check(&rules).is_ok());
        let grammar = compiler().compile(&GrammarSource::Gbnf { text: text.clone(), root: "root".into() });
        let matcher = Matcher::new(&grammar.unwrap());
        for answer in texts() {
            let expected = accepts(&rules, &answer);
            for longest in [false, true] {
                let taken = takes(&matcher, &tokenized(&answer, longest)).unwrap();
                prop_assert_eq!(taken, expected, "{:?} in {}", answer, text);
            }
        }
    }

    #[test]
    fn a_walk_through_masks_gives_what_the_grammar_says(text in grammar(), choices in prop::collection::vec(any::<usize>(), 24)) {
        let rules = parse::parse(&text, "root").unwrap();
        prop_assume!(check::check(&rules).is_ok());
        let grammar = compiler().compile(&GrammarSource::Gbnf { text: text.clone(), root: "root".into() });
        let (mut matcher, mut said) = (Matcher::new(&grammar.unwrap()), Vec::new());
        for choice in choices {
            let mut logits = vec![0.0; END as usize + 1];
            // This vocabulary may not spell what the grammar wants.
            let Ok(()) = matcher.mask(&mut logits) else { break };
            let allowed: Vec<Token> = (0..=END).filter(|token| logits[*token as usize] == 0.0).collect();
            for token in 0..=END {
                prop_assert_eq!(matcher.allows(token).unwrap(), allowed.contains(&token));
            }
            if let Ok(text_said) = std::str::from_utf8(&said) && said.len() < 12 {
                prop_assert_eq!(allowed.contains(&END), accepts(&rules, text_said), "{:?} in {}", text_said, text);
            }
            let token = allowed[choice % allowed.len()];
            matcher.accept(token).unwrap();
            if token == END {
                break;
            }
            said.extend(spelled(token as usize));
        }
    }
}
