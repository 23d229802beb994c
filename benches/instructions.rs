//! Draws for counting instructions: `instructions NAME` draws with one sampler, and nothing else is in `measured_draw`.
//! benches/instructions.py runs it under valgrind. Without a name it lists them.

use llama_batch::core::{Breakers, SamplerKind, SamplingParams, Token, TokenRules};
use llama_batch::sampling::Sampler;
use std::sync::Arc;

const N_VOCAB: usize = 49_152;
const N_DRAWS: usize = 4;

/// Each sampler alone, then what is common together.
fn settings() -> Vec<(&'static str, SamplingParams)> {
    let alone =
        |kind: SamplerKind| SamplingParams { temp: 0.8, samplers: Some([kind].into()), seed: 1, ..SamplingParams::OFF };
    let rules = TokenRules { bias: vec![(5, 1.0), (900, f32::NEG_INFINITY)], ..TokenRules::default() };
    let defaults = SamplingParams { temp: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05, seed: 1, ..SamplingParams::OFF };
    vec![
        ("greedy", SamplingParams { temp: 0.0, ..SamplingParams::OFF }),
        ("temperature", alone(SamplerKind::Temperature)),
        ("dynamic temperature", SamplingParams { dynatemp_range: 0.5, ..alone(SamplerKind::Temperature) }),
        ("top_k", SamplingParams { top_k: 40, ..alone(SamplerKind::TopK) }),
        ("top_p", SamplingParams { top_p: 0.9, ..alone(SamplerKind::TopP) }),
        ("min_p", SamplingParams { min_p: 0.05, ..alone(SamplerKind::MinP) }),
        ("typical_p", SamplingParams { typical_p: 0.9, ..alone(SamplerKind::TypicalP) }),
        ("top_n_sigma", SamplingParams { top_n_sigma: 1.5, ..alone(SamplerKind::TopNSigma) }),
        ("xtc", SamplingParams { xtc_probability: 1.0, xtc_threshold: 0.05, ..alone(SamplerKind::Xtc) }),
        (
            "penalties",
            SamplingParams {
                penalty_repeat: 1.1,
                penalty_freq: 0.1,
                penalty_present: 0.1,
                ..alone(SamplerKind::Penalties)
            },
        ),
        (
            "dry",
            SamplingParams {
                dry_multiplier: 0.8,
                dry_penalty_last_n: -1,
                dry_breakers: Some(Arc::new(Breakers::default())),
                ..alone(SamplerKind::Dry)
            },
        ),
        ("mirostat 1", SamplingParams { mirostat: 1, temp: 0.8, seed: 1, ..SamplingParams::OFF }),
        ("mirostat 2", SamplingParams { mirostat: 2, temp: 0.8, seed: 1, ..SamplingParams::OFF }),
        ("logit_bias", SamplingParams { temp: 0.0, tokens: Some(Arc::new(rules)), ..SamplingParams::OFF }),
        ("defaults", defaults.clone()),
        ("defaults, penalties", SamplingParams { penalty_repeat: 1.1, penalty_present: 0.1, ..defaults }),
    ]
}

/// Logits shaped like a language model's: a wide tail and a few far above it.
fn row(seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1_u64 << 24) as f32
    };
    (0..N_VOCAB).map(|_| (0..4).map(|_| uniform()).sum::<f32>() * 6.0 - 12.0 - uniform().max(1e-6).ln()).collect()
}

/// What is counted.
#[inline(never)]
fn measured_draw(sampler: &mut Sampler, row: &mut [f32]) -> Token {
    sampler.draw(row).expect("a row of numbers gives a token")
}

#[expect(clippy::print_stdout, reason = "its output is what it is for")]
fn main() {
    let asked = std::env::args().nth(1).filter(|name| !name.starts_with("--"));
    let settings = settings();
    let Some(name) = asked else {
        for (name, _) in settings {
            println!("{name}");
        }
        return;
    };
    let (_, params) = settings.iter().find(|(known, _)| *known == name).expect("one of the names");
    let prompt: Vec<Token> = (0..500).map(|i| i * 7 % 300).collect();
    let mut sampler = Sampler::new(params, &prompt, N_VOCAB as u32);
    let mut total = 0;
    for seed in 0..N_DRAWS {
        total += measured_draw(&mut sampler, &mut row(seed as u64));
    }
    println!("{total}");
}
