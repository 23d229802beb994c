//! What drawing costs: one row and a batch of 16, at the vocabularies of SmolLM2 and Gemma.

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use llama_batch::core::{SamplingParams, Token};
use llama_batch::sampling::{Pool, Sampler};
use std::hint::black_box;

const DEFAULTS: SamplingParams =
    SamplingParams { temp: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05, seed: 1, ..SamplingParams::OFF };
// The penalty is as good as none, because it edits the rows in place and each row is drawn from many times.
const SETTINGS: [(&str, SamplingParams); 5] = [
    ("greedy", SamplingParams { temp: 0.0, ..DEFAULTS }),
    ("defaults", DEFAULTS),
    ("defaults+penalties", SamplingParams { penalty_repeat: 1.000_001, ..DEFAULTS }),
    ("top_k=0", SamplingParams { top_k: 0, ..DEFAULTS }),
    ("all", SamplingParams { top_k: 0, top_p: 1.0, min_p: 0.0, ..DEFAULTS }),
];

/// Logits shaped like a language model's: a wide tail and a few far above it.
fn row(n_vocab: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1_u64 << 24) as f32
    };
    (0..n_vocab).map(|_| (0..4).map(|_| uniform()).sum::<f32>() * 6.0 - 12.0 - uniform().max(1e-6).ln()).collect()
}

fn draws(c: &mut Criterion) {
    let pool = Pool::new(std::thread::available_parallelism().map_or(1, usize::from));
    let prompt: Vec<Token> = (0..500).map(|i| i * 7 % 300).collect();
    for n_vocab in [49_152, 262_144] {
        for n_rows in [1, 16] {
            let mut group = c.benchmark_group(format!("{n_rows} rows of {n_vocab}"));
            for (name, params) in SETTINGS {
                let mut samplers: Vec<_> =
                    (0..n_rows).map(|_| Sampler::new(&params, &prompt, n_vocab as u32)).collect();
                let mut rows: Vec<_> = (0..n_rows).map(|i| row(n_vocab, i as u64)).collect();
                group.bench_function(BenchmarkId::from_parameter(name), |b| {
                    b.iter(|| {
                        let mut batch: Vec<_> =
                            samplers.iter_mut().zip(rows.iter_mut().map(Vec::as_mut_slice)).collect();
                        black_box(pool.draw(&mut batch))
                    });
                });
            }
        }
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(50).measurement_time(std::time::Duration::from_secs(2));
    targets = draws
}
criterion_main!(benches);
