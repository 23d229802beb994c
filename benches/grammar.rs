//! What grammars cost: compiling, testing one token, and a mask, on a schema as requests bring them. With the feature
//! `llama` and a model in `LLAMA_BATCH_TEST_MODEL` over its vocabulary, and llama.cpp's own grammar beside it; else over a
//! vocabulary that is made up.

use criterion::{Criterion, criterion_group, criterion_main};
use llama_batch::core::Token;
use llama_batch::grammar::{Compiler, GrammarSource, Matcher, Vocabulary};
use std::hint::black_box;

const SCHEMA: &str = r##"{"type":"object","properties":{"id":{"type":"string","format":"uuid"},"name":{"type":"string",
"minLength":1,"maxLength":60},"email":{"type":"string","pattern":"^[a-z.]+@[a-z]+[.](com|org)$"},"status":{"enum":["active",
"suspended","closed"]},"age":{"type":"integer","minimum":0,"maximum":130},"tags":{"type":"array","items":{"type":"string",
"maxLength":20},"maxItems":5},"address":{"$ref":"#/$defs/address"},"orders":{"type":"array","maxItems":3,"items":{"type":
"object","properties":{"sku":{"type":"string","maxLength":12},"amount":{"type":"number"},"to":{"$ref":"#/$defs/address"}},
"required":["sku","amount"],"additionalProperties":false}}},"required":["id","name","email","status","age","tags","address",
"orders"],"additionalProperties":false,"$defs":{"address":{"type":"object","properties":{"street":{"type":"string",
"maxLength":40},"city":{"type":"string","maxLength":40},"zip":{"type":"string","maxLength":10}},"required":["street","city"],
"additionalProperties":false}}}"##;

const ANSWER: &str = r#"{"id":"123e4567-e89b-12d3-a456-426614174000","name":"Grace Hopper","email":"grace@navy.org","status":"active","age":85,"tags":["compilers"],"address":{"street":"1 Main Street","city":"Arlington"},"orders":[{"sku":"A-1","amount":12.5}]}"#;

const JSON: &str = include_str!("../tests/rust/json.gbnf");

/// Nothing of it but single characters can be a terminal.
const CHARACTERS: &str =
    "root ::= \"(\" root \")\" word | word\nword ::= [a-z ]+ \"in\" | \"in\" [a-z ]* | [^)]* \"t\"\n";

/// Tokens by their bytes.
struct Words {
    bytes: Vec<Vec<u8>>,
    control: Vec<bool>,
    eog: Vec<Token>,
}

impl Words {
    fn made_up() -> Self {
        let mut bytes: Vec<Vec<u8>> = (0..=255_u8).map(|byte| vec![byte]).collect();
        let parts = [
            "a", "e", "in", "th", "er", " ", "s", "on", "0", "1", "\"", ":", ",", "{", "}", "[", "st", "re", "an", "\n",
        ];
        for (i, a) in parts.iter().enumerate() {
            for b in parts {
                bytes.push(format!("{a}{b}").into_bytes());
                for c in parts.iter().skip(i) {
                    bytes.extend(parts.iter().map(|d| format!("{a}{b}{c}{d}").into_bytes()));
                }
            }
        }
        bytes.push(b"</s>".to_vec());
        let n = bytes.len();
        Self { control: (0..n).map(|i| i + 1 == n).collect(), eog: vec![n as Token - 1], bytes }
    }

    fn tokens(&self, text: &str) -> Vec<Token> {
        let (mut rest, mut found) = (text.as_bytes(), Vec::new());
        while !rest.is_empty() {
            let fits = |i: &usize| !self.control[*i] && !self.bytes[*i].is_empty() && rest.starts_with(&self.bytes[*i]);
            let longest =
                (0..self.bytes.len()).filter(fits).max_by_key(|i| self.bytes[*i].len()).expect("bytes are tokens");
            rest = &rest[self.bytes[longest].len()..];
            found.push(longest as Token);
        }
        found
    }

    fn compiler(&self) -> Compiler {
        let tokens = self.bytes.iter().cloned().zip(self.control.iter().copied());
        let vocabulary = Vocabulary::new(tokens, &self.eog).expect("a vocabulary");
        Compiler::new(vocabulary).expect("a compiler")
    }
}

fn costs(c: &mut Criterion) {
    #[cfg(feature = "llama")]
    let llama = llama::Llama::load();
    #[cfg(feature = "llama")]
    let words = llama.as_ref().map_or_else(Words::made_up, llama::Llama::words);
    #[cfg(not(feature = "llama"))]
    let words = Words::made_up();
    c.bench_function("vocabulary and compiler", |b| b.iter(|| words.compiler()));
    let compiler = words.compiler();
    let answer = words.tokens(ANSWER);
    let text = words.tokens("(the cat sat on the mat in");
    let schema = GrammarSource::JsonSchema(SCHEMA.into());
    let gbnf = |text: &str| GrammarSource::Gbnf { text: text.into(), root: "root".into() };
    for (name, source, answer) in
        [("schema", schema, &answer), ("json.gbnf", gbnf(JSON), &answer), ("characters", gbnf(CHARACTERS), &text)]
    {
        ours(c, name, &compiler, &source, answer, words.bytes.len());
        #[cfg(feature = "llama")]
        if let Some(llama) = &llama {
            llama.bench(c, name, &source, answer);
        }
    }
}

fn ours(c: &mut Criterion, name: &str, compiler: &Compiler, source: &GrammarSource, answer: &[Token], n_vocab: usize) {
    let mut i = 0;
    c.bench_function(&format!("{name}: compile"), |b| {
        b.iter(|| {
            i += 1;
            // Another text each time: what is known is not compiled again.
            let source = match source {
                GrammarSource::JsonSchema(text) => {
                    GrammarSource::JsonSchema(text.replacen('}', &format!("}}{}", " ".repeat(i)), 1))
                }
                GrammarSource::Gbnf { text, root } => {
                    GrammarSource::Gbnf { text: format!("{text}#{i}"), root: root.clone() }
                }
                GrammarSource::Regex(_) | GrammarSource::Choice(_) => source.clone(),
            };
            compiler.compile(&source).expect("a grammar")
        });
    });
    let grammar = compiler.compile(source).expect("a grammar");
    c.bench_function(&format!("{name}: a request's matcher"), |b| b.iter(|| Matcher::new(&grammar)));
    let mut logits = vec![0.0; n_vocab];
    let whole = |name: &str, c: &mut Criterion, step: &mut dyn FnMut(&mut Matcher, Token)| {
        c.bench_function(&format!("{name} ({} tokens)", answer.len()), |b| {
            b.iter_batched(
                || Matcher::new(&grammar),
                |mut matcher| {
                    for token in answer {
                        step(&mut matcher, *token);
                        matcher.accept(*token).expect("an allowed token");
                    }
                },
                criterion::BatchSize::LargeInput,
            );
        });
    };
    whole(&format!("{name}: accept"), c, &mut |_, _| {});
    whole(&format!("{name}: allows, accept"), c, &mut |matcher, token| {
        assert!(black_box(matcher.allows(token)).expect("an answer"));
    });
    whole(&format!("{name}: mask, accept"), c, &mut |matcher, _| {
        logits.fill(0.0);
        matcher.mask(&mut logits).expect("a mask");
    });
}

#[cfg(feature = "llama")]
mod llama {
    use super::{Criterion, GrammarSource, Token, Words};
    use llama_cpp_sys_2 as sys;
    use std::ffi::{CStr, CString};
    use std::ptr::{NonNull, null_mut};

    pub(super) struct Llama(NonNull<sys::llama_model>);

    impl Llama {
        pub(super) fn load() -> Option<Self> {
            let path = std::env::var_os("LLAMA_BATCH_TEST_MODEL")?;
            let path = CString::new(path.to_str()?).ok()?;
            // SAFETY: the path is a C string; the model lives until the process ends.
            let model = unsafe {
                sys::llama_backend_init();
                let params = sys::llama_model_params { vocab_only: true, ..sys::llama_model_default_params() };
                sys::llama_model_load_from_file(path.as_ptr(), params)
            };
            NonNull::new(model).map(Self)
        }

        fn vocab(&self) -> *const sys::llama_vocab {
            // SAFETY: the model is alive.
            unsafe { sys::llama_model_get_vocab(self.0.as_ptr()) }
        }

        pub(super) fn words(&self) -> Words {
            let vocab = self.vocab();
            // SAFETY: the vocabulary is alive, and at most as many bytes are written as there are.
            unsafe {
                let n = sys::llama_vocab_n_tokens(vocab);
                let piece = |token: Token| {
                    let mut bytes = vec![0_u8; 512];
                    let n = sys::llama_token_to_piece(vocab, token, bytes.as_mut_ptr().cast(), 512, 0, false);
                    bytes.truncate(n.max(0) as usize);
                    bytes
                };
                Words {
                    bytes: (0..n).map(piece).collect(),
                    control: (0..n).map(|token| sys::llama_vocab_is_control(vocab, token)).collect(),
                    eog: (0..n).filter(|token| sys::llama_vocab_is_eog(vocab, *token)).collect(),
                }
            }
        }

        fn sampler(&self, source: &GrammarSource) -> NonNull<sys::llama_sampler> {
            let text = match source {
                GrammarSource::JsonSchema(schema) => {
                    let schema = CString::new(schema.as_str()).expect("no NUL");
                    let mut text = null_mut();
                    // SAFETY: a C string, and room for a pointer; the text is never freed.
                    unsafe {
                        sys::llama_rs_json_schema_to_grammar(schema.as_ptr(), true, &raw mut text);
                        CStr::from_ptr(text).to_owned()
                    }
                }
                GrammarSource::Gbnf { text, .. } => CString::new(text.as_str()).expect("no NUL"),
                GrammarSource::Regex(_) | GrammarSource::Choice(_) => unreachable!("not measured"),
            };
            // SAFETY: C strings, and a vocabulary that is alive.
            let sampler = unsafe { sys::llama_sampler_init_grammar(self.vocab(), text.as_ptr(), c"root".as_ptr()) };
            NonNull::new(sampler).expect("a grammar")
        }

        pub(super) fn bench(&self, c: &mut Criterion, name: &str, source: &GrammarSource, answer: &[Token]) {
            // SAFETY: each sampler is alive until it is freed here; arrays are of the vocabulary; tokens are allowed.
            unsafe {
                c.bench_function(&format!("{name}: llama.cpp: compile"), |b| {
                    b.iter(|| sys::llama_sampler_free(self.sampler(source).as_ptr()));
                });
                let n = sys::llama_vocab_n_tokens(self.vocab());
                let apply = |sampler: NonNull<sys::llama_sampler>, data: &mut [sys::llama_token_data]| {
                    let (size, selected) = (data.len(), -1);
                    let mut array =
                        sys::llama_token_data_array { data: data.as_mut_ptr(), size, selected, sorted: false };
                    sys::llama_sampler_apply(sampler.as_ptr(), &raw mut array);
                };
                for (what, one) in [("accept", None), ("allows, accept", Some(true)), ("mask, accept", Some(false))] {
                    c.bench_function(&format!("{name}: llama.cpp: {what} ({} tokens)", answer.len()), |b| {
                        b.iter_batched(
                            || self.sampler(source),
                            |sampler| {
                                for token in answer {
                                    let all = 0..n;
                                    let ids = if one == Some(true) { *token..*token + 1 } else { all };
                                    if one.is_some() {
                                        let row = |id| sys::llama_token_data { id, logit: 0.0, p: 0.0 };
                                        apply(sampler, &mut ids.map(row).collect::<Vec<_>>());
                                    }
                                    sys::llama_sampler_accept(sampler.as_ptr(), *token);
                                }
                                sys::llama_sampler_free(sampler.as_ptr());
                            },
                            criterion::BatchSize::LargeInput,
                        );
                    });
                }
            }
        }
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10).warm_up_time(std::time::Duration::from_millis(200)).measurement_time(std::time::Duration::from_millis(800));
    targets = costs
}
criterion_main!(benches);
