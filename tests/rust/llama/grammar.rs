//! Grammars against llama.cpp's own: after the same text the same tokens are allowed.

use super::model_file;
use llama_batch::core::Token;
use llama_batch::grammar::{Compiler, GrammarSource, Matcher, Vocabulary};
use llama_cpp_sys_2 as sys;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::ffi::CString;
use std::ptr::NonNull;
use std::sync::OnceLock;

/// The vocabulary of the test model, to llama.cpp and to us.
struct Both {
    model: NonNull<sys::llama_model>,
    compiler: Compiler,
    /// Tokens that the two treat alike: no control tokens, whose names llama.cpp takes for text.
    compared: Vec<bool>,
    bytes: Vec<Vec<u8>>,
}

// SAFETY: a loaded model is only read.
unsafe impl Send for Both {}
// SAFETY: as above.
unsafe impl Sync for Both {}

fn both() -> &'static Both {
    static BOTH: OnceLock<Both> = OnceLock::new();
    BOTH.get_or_init(|| {
        // Loading through the crate sets llama.cpp up.
        let _ = super::model();
        let path = CString::new(model_file().to_str().unwrap()).unwrap();
        // SAFETY: the path is a C string; the model lives until the process ends.
        let model = unsafe {
            let params = sys::llama_model_params { vocab_only: true, ..sys::llama_model_default_params() };
            NonNull::new(sys::llama_model_load_from_file(path.as_ptr(), params)).unwrap()
        };
        // SAFETY: the model is alive.
        let vocab = unsafe { sys::llama_model_get_vocab(model.as_ptr()) };
        // SAFETY: as above.
        let n_tokens = unsafe { sys::llama_vocab_n_tokens(vocab) };
        let piece = |token: Token| {
            let mut bytes = vec![0_u8; 512];
            // SAFETY: as above; at most that many bytes are written.
            let n = unsafe { sys::llama_token_to_piece(vocab, token, bytes.as_mut_ptr().cast(), 512, 0, false) };
            bytes.truncate(n.max(0) as usize);
            bytes
        };
        // SAFETY: as above.
        let is_control = |token: Token| unsafe { sys::llama_vocab_is_control(vocab, token) };
        // SAFETY: as above.
        let is_eog = |token: &Token| unsafe { sys::llama_vocab_is_eog(vocab, *token) };
        let bytes: Vec<Vec<u8>> = (0..n_tokens).map(piece).collect();
        let tokens = (0..n_tokens).map(|token| (bytes[token as usize].clone(), is_control(token)));
        let eog: Vec<Token> = (0..n_tokens).filter(is_eog).collect();
        let vocabulary = Vocabulary::new(tokens, &eog).unwrap();
        // A piece that is no text of its own to us may be one to llama.cpp.
        let alike = |token: Token| is_eog(&token) || !(is_control(token) || bytes[token as usize].is_empty());
        let compared = (0..n_tokens).map(alike).collect();
        Both { model, compiler: Compiler::new(vocabulary).unwrap(), compared, bytes }
    })
}

/// llama.cpp's grammar.
struct Theirs(NonNull<sys::llama_sampler>);

impl Theirs {
    fn new(text: &str) -> Option<Self> {
        let text = CString::new(text).unwrap();
        // SAFETY: both are C strings, and the model is alive.
        let sampler = unsafe {
            let vocab = sys::llama_model_get_vocab(both().model.as_ptr());
            sys::llama_sampler_init_grammar(vocab, text.as_ptr(), c"root".as_ptr())
        };
        NonNull::new(sampler).map(Self)
    }

    fn allowed(&self) -> Vec<bool> {
        let n_tokens = both().bytes.len();
        let mut data: Vec<sys::llama_token_data> =
            (0..n_tokens).map(|id| sys::llama_token_data { id: id as Token, logit: 0.0, p: 0.0 }).collect();
        let mut array =
            sys::llama_token_data_array { data: data.as_mut_ptr(), size: n_tokens, selected: -1, sorted: false };
        // SAFETY: the sampler is alive and the array is one of the vocabulary.
        unsafe { sys::llama_sampler_apply(self.0.as_ptr(), &raw mut array) };
        let mut allowed = vec![false; n_tokens];
        for token in &data {
            allowed[token.id as usize] = token.logit == 0.0;
        }
        allowed
    }

    fn accept(&self, token: Token) {
        // SAFETY: the sampler is alive and the token one that it allows.
        unsafe { sys::llama_sampler_accept(self.0.as_ptr(), token) };
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        // SAFETY: it has no other owner.
        unsafe { sys::llama_sampler_free(self.0.as_ptr()) };
    }
}

/// Walk both through a grammar: how many steps were compared. None where one of the two refuses it.
fn walk(text: &str, choices: &[usize]) -> Option<usize> {
    let both = both();
    let source = GrammarSource::Gbnf { text: text.into(), root: "root".into() };
    // What is refused here for a reason is not compared.
    let grammar = both.compiler.compile(&source).ok()?;
    let theirs = Theirs::new(text)?;
    let mut ours = Matcher::new(&grammar);
    let mut said: Vec<u8> = Vec::new();
    for (step, choice) in choices.iter().enumerate() {
        let mut logits = vec![0.0_f32; both.bytes.len()];
        let masked = ours.mask(&mut logits);
        let allowed = theirs.allowed();
        let differs = |token: &usize| both.compared[*token] && (logits[*token] == 0.0) != allowed[*token];
        let differing: Vec<_> = (0..logits.len()).filter(differs).map(|token| &both.bytes[token]).collect();
        assert!(masked.is_ok() || allowed.iter().all(|allowed| !allowed), "{masked:?} after {said:?} in {text}");
        assert!(differing.is_empty(), "{differing:?} after {:?} in {text}", String::from_utf8_lossy(&said));
        let left: Vec<usize> = (0..logits.len()).filter(|token| both.compared[*token] && allowed[*token]).collect();
        if left.is_empty() {
            return Some(step + 1);
        }
        let token = left[choice % left.len()] as Token;
        assert!(ours.allows(token).unwrap());
        ours.accept(token).unwrap();
        if both.compiler.vocabulary().eog().contains(&token) {
            return Some(step + 1);
        }
        theirs.accept(token);
        said.extend(&both.bytes[token as usize]);
    }
    Some(choices.len())
}

fn part() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        prop::sample::select(vec![
            "\"a\"",
            "\"ab\"",
            "\" the\"",
            "\"in\"",
            "\"int\"",
            "\"é\"",
            "\"{\\\"\"",
            "\"12\"",
            "\"日本\""
        ])
        .prop_map(str::to_string),
        prop::sample::select(vec![
            "[a-z]",
            "[^a-z]",
            "[0-9 ]",
            ".",
            "[^\\x00-\\x7f]",
            "[à-ü日]",
            "[^\"\\\\]",
            "[\\n\\t -]"
        ])
        .prop_map(str::to_string),
        prop::sample::select(vec!["x", "y", "\"(\" root \")\""]).prop_map(str::to_string),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            3 => prop::collection::vec(inner.clone(), 1..4).prop_map(|parts| parts.join(" ")),
            2 => prop::collection::vec(inner.clone(), 1..3).prop_map(|parts| format!("({})", parts.join(" | "))),
            2 => (inner, prop::sample::select(vec!["*", "+", "?", "{2}", "{1,3}", "{2,}"]))
                .prop_map(|(part, times)| format!("(\".\" {part}){times}")),
        ]
    })
}

fn rules() -> impl Strategy<Value = String> {
    let rule = || prop::collection::vec(part(), 1..4).prop_map(|options| options.join(" | "));
    (rule(), rule(), rule()).prop_map(|(root, x, y)| format!("root ::= {root}\nx ::= \"-\" {x}\ny ::= {y}\n"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, rng_seed: RngSeed::Fixed(5), max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    #[ignore = "needs LLAMA_BATCH_TEST_MODEL"]
    fn the_same_tokens_are_allowed_as_by_llama_cpp(text in rules(), choices in prop::collection::vec(any::<usize>(), 12)) {
        prop_assume!(walk(&text, &choices).is_some());
    }
}

/// llama.cpp's own example (`grammars/json.gbnf`), written anew.
const JSON: &str = include_str!("../json.gbnf");

#[test]
#[ignore = "needs LLAMA_BATCH_TEST_MODEL"]
fn json_is_the_same_to_both() {
    let mut n_steps = 0;
    for seed in 0..20_usize {
        let choices: Vec<usize> =
            (1..60_usize).map(|i| i.wrapping_mul(2_654_435_761).wrapping_mul(seed * 2 + 1) >> 7).collect();
        n_steps += walk(JSON, &choices).unwrap();
    }
    assert!(n_steps > 200, "{n_steps}");
}
