//! Forward passes: what is computed, and what is left when one fails.

use super::{Bench, drawn, long, model, options, rows, tokens};
use llama_batch::backend::llama::{LlamaBackend, score};
use llama_batch::backend::{Backend, Tokenizer};
use llama_batch::core::{MemoryKind, PassStatus, RequestId, Row, SeqId, SeqPositions};
use llama_batch::options::StartOptions;
use std::sync::Arc;
use std::sync::atomic::Ordering;

#[test]
#[ignore = "needs LLAMA_BATCH_TEST_MODEL"]
fn greedy_text_is_sane() {
    let model = model();
    let mut bench = Bench::new(Arc::clone(&model), &options());
    let prompt = tokens(&model, "The capital of France is");
    bench.open(1, &prompt);
    let first = bench.prefill(1, 0, &prompt, 0);
    let text = bench.generate(1, 0, first, prompt.len(), 16);
    let text = model.detokenize(&text, false).unwrap();
    assert!(text.contains("Paris"), "{text:?}");
}

#[test]
#[ignore = "needs LLAMA_BATCH_TEST_MODEL"]
fn what_a_batch_draws_each_sequence_would_have_drawn_alone() {
    let model = model();
    let mut bench = Bench::new(Arc::clone(&model), &options());
    let prompts = ["Once upon a time", "A list of fruits: apples,", "def fib(n):", "Dear Sir or Madam,"];
    let prompts: Vec<_> = prompts.iter().map(|text| tokens(&model, text)).collect();
    let mut texts = Vec::new();
    // All prompts in one pass, then all sequences token by token.
    let mut pass = Vec::new();
    for (i, prompt) in prompts.iter().enumerate() {
        bench.open(i as u64, prompt);
        pass.extend(rows(i as u64, i as u32, prompt, 0));
    }
    let outcome = bench.backend.decode(&pass);
    assert_eq!(outcome.rows.iter().map(|row| row.request.0).collect::<Vec<_>>(), [0, 1, 2, 3]);
    texts.extend(
        drawn(&outcome).into_iter().zip(&prompts).map(|(token, prompt)| [prompt.as_slice(), &[token]].concat()),
    );
    for _ in 0..24 {
        let row = |i: usize, text: &Vec<i32>| rows(i as u64, i as u32, &text[text.len() - 1..], text.len() as u32 - 1);
        let pass: Vec<Row> = texts.iter().enumerate().flat_map(|(i, text)| row(i, text)).collect();
        let outcome = bench.backend.decode(&pass);
        texts.iter_mut().zip(drawn(&outcome)).for_each(|(text, token)| text.push(token));
    }
    for (text, prompt) in texts.iter().zip(&prompts) {
        let gaps = score(&model, &options(), text, prompt.len(), 1).unwrap();
        let again = score(&model, &options(), text, prompt.len(), 16).unwrap();
        let noise = gaps.iter().zip(&again).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        let worst = gaps.iter().copied().fold(0.0, f32::max);
        assert!(worst <= 2.0 * noise + 0.1, "{worst} against a noise of {noise}");
    }
}

#[test]
#[ignore = "needs LLAMA_BATCH_TEST_MODEL"]
fn a_score_tells_likely_text_from_unlikely() {
    let model = model();
    let text = tokens(&model, "One, two, three, four, five, six");
    let odd = tokens(&model, "One, two, three, four, five, piano");
    let last = |text: &[i32]| *score(&model, &options(), text, 3, 8).unwrap().last().unwrap();
    assert!(last(&text) + 2.0 < last(&odd));
}

#[test]
#[ignore = "needs LLAMA_BATCH_TEST_MODEL"]
fn limits_say_what_was_asked_for() {
    let limits = LlamaBackend::new(model(), &options()).unwrap().limits();
    assert_eq!((limits.n_ctx, limits.n_ctx_seq, limits.n_batch), (2048, 2048, 512));
    assert_eq!((limits.n_seq_max, limits.n_seq_ids), (6, 256));
    assert_eq!((limits.memory, limits.is_pool), (MemoryKind::Full, true));
    let small = StartOptions { n_ctx: 100, n_batch: Some(3), n_cache_seqs: Some(5), ..options() };
    let limits = LlamaBackend::new(model(), &small).unwrap().limits();
    assert_eq!((limits.n_ctx, limits.n_ctx_seq, limits.n_batch, limits.n_seq_ids), (100, 100, 3, 11));
    let split = StartOptions { kv_unified: Some(false), ..options() };
    let limits = LlamaBackend::new(model(), &split).unwrap().limits();
    assert_eq!((limits.n_ctx, limits.n_ctx_seq), (2048, 512));
    assert_eq!((limits.n_seq_max, limits.n_seq_ids, limits.is_pool), (4, 4, false));
    let trained = StartOptions { n_ctx: 0, n_parallel: 1, ..options() };
    assert_eq!(LlamaBackend::new(model(), &trained).unwrap().limits().n_ctx, model().n_ctx_train());
}

#[test]
#[ignore = "needs LLAMA_BATCH_TEST_MODEL"]
fn as_many_requests_as_the_options_allow_fit_a_small_batch() {
    let many = StartOptions { n_parallel: 253, n_batch: Some(8), n_ctx: 512, ..options() };
    let mut backend = LlamaBackend::new(model(), &many).unwrap();
    assert_eq!((backend.limits().n_seq_max, backend.limits().n_batch), (255, 8));
    let pass: Vec<Row> = (0..8).flat_map(|i| rows(i, 240 + i as u32, &[5], 0)).collect();
    assert_eq!(backend.decode(&pass).status, PassStatus::Done);
}

#[test]
#[ignore = "needs LLAMA_BATCH_TEST_MODEL"]
fn rows_that_llama_cpp_would_abort_on_fail_and_change_nothing() {
    let model = model();
    let mut bench = Bench::new(Arc::clone(&model), &options());
    let prompt = tokens(&model, "One two three");
    bench.open(1, &prompt);
    let first = bench.prefill(1, 0, &prompt, 0);
    let next = prompt.len() as u32;
    let bad = |seq: u32, pos: u32, token: i32| rows(1, seq, &[token], pos);
    for (pass, why) in [
        (vec![], "no rows"),
        (bad(6, 0, 5), "a sequence that cannot be computed"),
        (bad(0, next, -1), "a token below all"),
        (bad(0, next, model.n_vocab() as i32), "a token above all"),
        (bad(0, next + 3, 5), "a gap in the positions"),
        (bad(0, 0, 5), "a position that is taken"),
        (long(&model, 513).iter().enumerate().flat_map(|(i, t)| rows(1, 1, &[*t], i as u32)).collect(), "too many"),
    ] {
        let outcome = bench.backend.decode(&pass);
        assert!(matches!(outcome.status, PassStatus::Failed { code: -1, .. }), "{why}: {:?}", outcome.status);
        assert_eq!(bench.backend.held(SeqId(0)), Some((0, next - 1)), "{why}");
    }
    assert_eq!(bench.generate(1, 0, first, prompt.len(), 4).len(), 4);
}

#[test]
#[ignore = "needs LLAMA_BATCH_TEST_MODEL"]
fn a_request_without_a_sampler_fails_alone() {
    let mut bench = Bench::new(model(), &options());
    bench.open(1, &[]);
    let pass = [rows(1, 0, &[5], 0), rows(2, 1, &[5], 0)].concat();
    let outcome = bench.backend.decode(&pass);
    assert!(outcome.rows[0].drawn.is_ok() && outcome.rows[1].drawn.is_err());
    assert_eq!(outcome.rows[1].request, RequestId(2));
}

#[test]
#[ignore = "needs LLAMA_BATCH_TEST_MODEL"]
fn an_aborted_pass_leaves_what_was_there_before() {
    let model = model();
    let mut bench = Bench::new(Arc::clone(&model), &options());
    let prompt = long(&model, 40);
    bench.open(1, &prompt);
    let expected = bench.prefill(1, 0, &prompt, 0);
    let flag = bench.backend.abort_flag().expect("full attention can be aborted");
    flag.store(true, Ordering::Relaxed);
    let pass = [rows(1, 0, &[expected], 40), rows(1, 1, &prompt, 0)].concat();
    let outcome = bench.backend.decode(&pass);
    assert!(matches!(outcome.status, PassStatus::Failed { code: 2, .. }), "{:?}", outcome.status);
    let left = |seq, held| SeqPositions { seq: SeqId(seq), held };
    assert_eq!(outcome.positions, [left(0, Some((0, 39))), left(1, None)]);
    assert!(outcome.rows.is_empty());
    flag.store(false, Ordering::Relaxed);
    let outcome = bench.backend.decode(&pass);
    assert_eq!(outcome.status, PassStatus::Done);
    assert_eq!(bench.backend.held(SeqId(0)), Some((0, 40)));
}

#[test]
#[ignore = "needs LLAMA_BATCH_TEST_MODEL"]
fn a_full_cache_says_so_and_goes_on_when_room_is_made() {
    let model = model();
    for kv_unified in [true, false] {
        let small = StartOptions { n_ctx: 512, n_parallel: 2, kv_unified: Some(kv_unified), ..options() };
        let mut bench = Bench::new(Arc::clone(&model), &small);
        let n = if kv_unified { 512 } else { 256 };
        let prompt = long(&model, n);
        bench.open(1, &prompt);
        bench.prefill(1, 0, &prompt, 0);
        assert_eq!(bench.backend.used_cells(SeqId(0)), Some(n as u32));
        let more = rows(1, 0, &[5], n as u32);
        assert_eq!(bench.backend.decode(&more).status, PassStatus::KvFull);
        assert_eq!(bench.backend.held(SeqId(0)), Some((0, n as u32 - 1)));
        bench.trim(0, 100);
        assert_eq!(bench.backend.decode(&rows(1, 0, &[5], 100)).status, PassStatus::Done);
    }
}

#[test]
#[ignore = "needs LLAMA_BATCH_TEST_MODEL"]
fn two_contexts_compute_side_by_side() {
    let model = model();
    let prompt = tokens(&model, "Two and two make");
    let texts: Vec<_> = std::thread::scope(|scope| {
        let work = || {
            let mut bench = Bench::new(Arc::clone(&model), &options());
            bench.open(1, &prompt);
            let first = bench.prefill(1, 0, &prompt, 0);
            bench.generate(1, 0, first, prompt.len(), 12)
        };
        let threads = [scope.spawn(work), scope.spawn(work)];
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(texts[0], texts[1]);
}

#[test]
#[ignore = "needs LLAMA_BATCH_TEST_MODEL"]
fn a_backend_can_be_made_and_dropped_many_times() {
    for i in 0..20 {
        let opts = StartOptions { n_ctx: 256, n_threads: 1 + i % 2, ..options() };
        let mut bench = Bench::new(model(), &opts);
        bench.open(1, &[]);
        assert_eq!(bench.backend.decode(&rows(1, 0, &[5, 6], 0)).status, PassStatus::Done);
    }
}
