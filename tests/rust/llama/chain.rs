//! Each distribution against llama.cpp's own chain, on the same logits. Needs no model. The cases are the same each time:
//! where its floats and integers overflow is not for ours to follow, and is looked at when they are changed.

use llama_batch::core::{SamplerKind, SamplingParams, Token, TokenRules};
use llama_batch::sampling::Sampler;
use llama_cpp_sys_2 as sys;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::collections::BTreeMap;
use std::ptr::{null, null_mut};
use std::sync::Arc;

type Probabilities = BTreeMap<Token, f64>;

const OFF: SamplingParams = SamplingParams { seed: 1, ..SamplingParams::OFF };

/// What llama.cpp's chain leaves, as its own programs build it.
fn theirs(p: &SamplingParams, prompt: &[Token], logits: &[f32]) -> Probabilities {
    let data =
        logits.iter().enumerate().map(|(id, logit)| sys::llama_token_data { id: id as i32, logit: *logit, p: 0.0 });
    let mut data: Vec<_> = data.collect();
    let mut array =
        sys::llama_token_data_array { data: data.as_mut_ptr(), size: data.len(), selected: -1, sorted: false };
    let n_vocab = logits.len() as i32;
    // SAFETY: the chain owns what is added to it and is freed; the array outlives the call.
    unsafe {
        let chain = sys::llama_sampler_chain_init(sys::llama_sampler_chain_default_params());
        if let Some(rules) = &p.tokens {
            let bias: Vec<_> =
                rules.bias.iter().map(|(token, bias)| sys::llama_logit_bias { token: *token, bias: *bias }).collect();
            let link = sys::llama_sampler_init_logit_bias(n_vocab, bias.len() as i32, bias.as_ptr());
            sys::llama_sampler_chain_add(chain, link);
        }
        let order = p.samplers.as_deref().unwrap_or(&SamplerKind::ORDER);
        for kind in order.iter().filter(|_| p.mirostat == 0) {
            sys::llama_sampler_chain_add(chain, link(*kind, p, n_vocab));
        }
        if p.mirostat > 0 {
            sys::llama_sampler_chain_add(chain, link(SamplerKind::Temperature, p, n_vocab));
            sys::llama_sampler_chain_add(
                chain,
                match p.mirostat {
                    1 => sys::llama_sampler_init_mirostat(n_vocab, 1, p.mirostat_tau, p.mirostat_eta, 100),
                    _ => sys::llama_sampler_init_mirostat_v2(1, p.mirostat_tau, p.mirostat_eta),
                },
            );
        }
        for token in prompt {
            sys::llama_sampler_accept(chain, *token);
        }
        sys::llama_sampler_apply(chain, &raw mut array);
        let left = std::slice::from_raw_parts(array.data, array.size);
        let max = left.iter().map(|t| t.logit).fold(f32::NEG_INFINITY, f32::max);
        let weights: Vec<_> = left.iter().map(|t| (t.id, f64::from(t.logit - max).exp())).collect();
        sys::llama_sampler_free(chain);
        let total: f64 = weights.iter().map(|(_, weight)| weight).sum();
        weights.into_iter().map(|(id, weight)| (id, weight / total)).filter(|(_, p)| *p > 1e-30).collect()
    }
}

/// One link of it.
unsafe fn link(kind: SamplerKind, p: &SamplingParams, n_vocab: i32) -> *mut sys::llama_sampler {
    let top_k = i32::try_from(p.top_k).unwrap_or(i32::MAX);
    // SAFETY: DRY looks at the vocabulary for breakers alone, and there are none.
    unsafe {
        match kind {
            SamplerKind::Penalties => {
                // What means all is resolved before, in its own programs.
                let n = if p.penalty_last_n < 0 { 1000 } else { p.penalty_last_n };
                let repeat = p.penalty_repeat;
                sys::llama_sampler_init_penalties(n_vocab, n, repeat, p.penalty_freq, p.penalty_present)
            }
            SamplerKind::Dry => {
                let (multiplier, base, n) = (p.dry_multiplier, p.dry_base, p.dry_penalty_last_n);
                let allowed = p.dry_allowed_length as i32;
                sys::llama_sampler_init_dry(null(), multiplier, base, allowed, n, null_mut(), 0)
            }
            SamplerKind::TopNSigma => sys::llama_sampler_init_top_n_sigma(p.top_n_sigma),
            SamplerKind::TopK => sys::llama_sampler_init_top_k(top_k),
            SamplerKind::TypicalP => sys::llama_sampler_init_typical(p.typical_p, 1),
            SamplerKind::TopP => sys::llama_sampler_init_top_p(p.top_p, 1),
            SamplerKind::MinP => sys::llama_sampler_init_min_p(p.min_p, 1),
            SamplerKind::Xtc => sys::llama_sampler_init_xtc(p.xtc_probability, p.xtc_threshold, 1, 1),
            SamplerKind::Temperature => sys::llama_sampler_init_temp_ext(p.temp, p.dynatemp_range, p.dynatemp_exponent),
        }
    }
}

fn ours(p: &SamplingParams, prompt: &[Token], logits: &[f32]) -> Probabilities {
    let mut sampler = Sampler::new(p, prompt, logits.len() as u32);
    let left = sampler.distribution(&mut logits.to_vec()).unwrap();
    left.into_iter().filter(|(_, p)| *p > 1e-30).collect()
}

fn differ(a: &Probabilities, b: &Probabilities) -> Option<String> {
    if !a.keys().eq(b.keys()) {
        return Some(format!("{} tokens against {}", a.len(), b.len()));
    }
    let off = a.values().zip(b.values()).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    (off > 1e-5).then(|| format!("a probability is {off} off"))
}

/// Sums of thousands of 32-bit floats decide where llama.cpp cuts: a limit may lie a hair beside ours.
fn nearly(p: &SamplingParams) -> Vec<SamplingParams> {
    let mut all = vec![p.clone()];
    let limits: [fn(&mut SamplingParams) -> &mut f32; 6] = [
        |p| &mut p.mirostat_tau,
        |p| &mut p.top_p,
        |p| &mut p.typical_p,
        |p| &mut p.min_p,
        |p| &mut p.top_n_sigma,
        |p| &mut p.xtc_threshold,
    ];
    for limit in limits {
        for known in all.clone() {
            for hair in [-1e-5, 1e-5] {
                let mut moved = known.clone();
                let value = limit(&mut moved);
                if *value > 0.0 && *value < 1.0 || *value > 1.0 {
                    *value += hair * value.max(1.0);
                    all.push(moved);
                }
            }
        }
    }
    all
}

/// Whether Mirostat leaves all that the temperature leaves.
fn keeps_all(p: &SamplingParams, prompt: &[Token], logits: &[f32]) -> bool {
    let temperature = Some(Arc::from([SamplerKind::Temperature]));
    let without = SamplingParams { mirostat: 0, samplers: temperature, ..p.clone() };
    ours(p, prompt, logits).len() == ours(&without, prompt, logits).len()
}

fn check(p: &SamplingParams, prompt: &[Token], logits: &[f32]) -> Result<(), String> {
    let theirs = theirs(p, prompt, logits);
    let first = differ(&ours(p, prompt, logits), &theirs);
    match first {
        // Its count of candidates is no number that its integer holds: what that gives depends on the machine.
        Some(_) if p.mirostat == 1 && theirs.len() == 1 && keeps_all(p, prompt, logits) => Ok(()),
        Some(why) if nearly(p).iter().all(|near| differ(&ours(near, prompt, logits), &theirs).is_some()) => Err(why),
        Some(_) | None => Ok(()),
    }
}

/// Logits like a language model's, without two that are equal.
fn any_logits() -> impl Strategy<Value = Vec<f32>> {
    let long = prop_oneof![1..4_usize, 2..200_usize, 500..1500_usize];
    long.prop_flat_map(|n| prop::collection::vec((-12.0_f32..12.0, 0.0_f32..1.0), n)).prop_map(|logits| {
        let mut logits: Vec<f32> = logits.into_iter().map(|(x, tail)| x - tail.max(1e-6).ln()).collect();
        for (i, logit) in logits.iter_mut().enumerate() {
            *logit += i as f32 * 1e-4;
        }
        logits
    })
}

fn any_params() -> impl Strategy<Value = SamplingParams> {
    let or_off = |off: f32, on: std::ops::Range<f32>| prop_oneof![1 => Just(off), 1 => on];
    let temp = prop_oneof![1 => Just(0.0_f32), 9 => 0.3_f32..3.0];
    let first = (temp, prop_oneof![Just(0_u32), 1..60_u32, Just(100_000)], or_off(1.0, 0.02..0.999));
    let second =
        (or_off(0.0, 0.01..0.9), or_off(1.0, 0.05..0.999), or_off(0.0, 0.2..4.0), any::<bool>(), 0.01_f32..0.5);
    let third =
        (or_off(0.0, 0.1..2.0), 0.3_f32..3.0, prop_oneof![8 => Just(0_u32), 1 => Just(1), 1 => Just(2)], 0.5_f32..6.0);
    let penalties = (or_off(1.0, 0.5..2.0), or_off(0.0, -1.0..1.0), or_off(0.0, -1.0..1.0), -1..40_i32);
    let dry = (or_off(0.0, 0.1..2.0), 1.0_f32..2.5, 0..4_u32, 0..60_i32);
    let order = prop_oneof![
        2 => Just(None),
        1 => Just(SamplerKind::ORDER.to_vec()).prop_shuffle().prop_flat_map(|all| {
            (0..=all.len()).prop_map(move |n| Some(all[..n].to_vec()))
        }),
    ];
    let bias = prop::collection::vec((1..300_i32, prop_oneof![3 => -8.0_f32..8.0, 1 => Just(f32::NEG_INFINITY)]), 0..6);
    (first, second, third, penalties, dry, order, bias).prop_map(|(a, b, c, d, e, order, bias)| {
        // Of what top-n-sigma masks, of what is banned and of what a low temperature leaves no probability that a float
        // holds, llama.cpp's typical-p and Mirostat take the logarithm of 0.
        let place = |kind| order.iter().flatten().position(|other| *other == kind);
        let is_late = place(SamplerKind::Temperature) < place(SamplerKind::TypicalP);
        let typical_p = if is_late && place(SamplerKind::Temperature).is_some() { 1.0 } else { b.1 };
        let is_typical = typical_p < 1.0 || c.2 == 1;
        let bias: BTreeMap<Token, f32> = bias.into_iter().filter(|(_, b)| !is_typical || b.is_finite()).collect();
        let rules = TokenRules { bias: bias.into_iter().collect(), ..TokenRules::default() };
        SamplingParams {
            temp: a.0,
            top_k: a.1,
            top_p: a.2,
            min_p: b.0,
            typical_p,
            top_n_sigma: if is_typical { 0.0 } else { b.2 },
            xtc_probability: if b.3 { 1.0 } else { 0.0 },
            xtc_threshold: b.4,
            dynatemp_range: c.0,
            dynatemp_exponent: c.1,
            mirostat: c.2,
            mirostat_tau: c.3,
            penalty_repeat: d.0,
            penalty_freq: d.1,
            penalty_present: d.2,
            penalty_last_n: d.3,
            dry_multiplier: e.0,
            dry_base: e.1,
            dry_allowed_length: e.2,
            dry_penalty_last_n: e.3,
            samplers: order.map(Arc::from),
            tokens: (!rules.bias.is_empty()).then(|| Arc::new(rules)),
            ..OFF
        }
    })
}

#[test]
fn each_filter_alone_leaves_what_llama_cpp_leaves() {
    let logits: Vec<f32> = (0..400).map(|i| ((i * 7919 % 997) as f32).sqrt() * 0.3 + i as f32 * 1e-3).collect();
    for p in [
        SamplingParams { temp: 0.7, ..OFF },
        SamplingParams { top_k: 13, ..OFF },
        SamplingParams { top_p: 0.6, ..OFF },
        SamplingParams { min_p: 0.2, ..OFF },
        SamplingParams { typical_p: 0.5, ..OFF },
        SamplingParams { top_n_sigma: 1.2, ..OFF },
        SamplingParams { xtc_probability: 1.0, xtc_threshold: 0.01, ..OFF },
        SamplingParams { dynatemp_range: 0.5, dynatemp_exponent: 0.7, ..OFF },
        SamplingParams { mirostat: 1, mirostat_tau: 5.0, ..OFF },
        SamplingParams { mirostat: 2, mirostat_tau: 4.0, ..OFF },
        SamplingParams { dry_multiplier: 0.8, dry_allowed_length: 1, ..OFF },
        SamplingParams { penalty_repeat: 1.5, penalty_freq: 0.2, penalty_present: 0.1, ..OFF },
    ] {
        let n_left = theirs(&p, &[3, 9, 3, 9, 3], &logits).len();
        assert!(n_left > 1, "{p:?}");
        assert_eq!(check(&p, &[3, 9, 3, 9, 3], &logits), Ok(()), "{p:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, rng_seed: RngSeed::Fixed(5), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_combination_leaves_what_llama_cpp_leaves(
        p in any_params(),
        logits in any_logits(),
        prompt in prop_oneof![prop::collection::vec(0..2000_usize, 0..60), prop::collection::vec(0..4_usize, 0..60)],
    ) {
        let prompt: Vec<Token> = prompt.into_iter().map(|token| (token % logits.len()) as Token).collect();
        prop_assert_eq!(check(&p, &prompt, &logits), Ok(()));
    }

    #[test]
    fn a_draw_is_one_of_its_distribution(p in any_params(), logits in any_logits(), seed in any::<u64>()) {
        let p = SamplingParams { seed, ..p };
        let mut sampler = Sampler::new(&p, &[], logits.len() as u32);
        for _ in 0..20 {
            let left = sampler.distribution(&mut logits.clone()).unwrap();
            let drawn = sampler.draw(&mut logits.clone()).unwrap();
            let probability = left.iter().find(|(token, _)| *token == drawn).map(|(_, p)| *p);
            prop_assert!(probability.is_some_and(|p| p > 0.0), "{} of {:?}", drawn, left);
        }
    }
}
