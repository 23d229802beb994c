//! Sequences: copies, trims and removals in each kind of memory.

use super::{Bench, long, model, named, options, rows, tokens};
use llama_batch::backend::llama::load;
use llama_batch::backend::{Backend, Tokenizer};
use llama_batch::core::{BlobId, MemoryKind, Op, OpResult, PassStatus, SeqId, TransferId};
use llama_batch::error::Error;
use llama_batch::options::StartOptions;
use std::sync::Arc;

fn refused(result: &OpResult) -> bool {
    matches!(result, OpResult::Refused(_))
}

#[test]
#[ignore = "needs LLAMA_BATCH_TEST_MODEL"]
fn a_prefix_survives_in_an_id_beyond_the_computing_ones_and_costs_no_cells() {
    let model = model();
    let mut bench = Bench::new(Arc::clone(&model), &options());
    let prompt = long(&model, 120);
    bench.open(1, &prompt);
    let expected = bench.prefill(1, 0, &prompt, 0);
    for there in [6, 100, 255] {
        assert_eq!(bench.copy(0, there, 120), OpResult::Done);
        assert_eq!(bench.backend.used_cells(SeqId(0)), Some(120));
        assert_eq!(bench.remove(0), OpResult::Done);
        assert_eq!(bench.backend.held(SeqId(0)), None);
        assert_eq!(bench.copy(there, 0, 119), OpResult::Done);
        assert_eq!(bench.remove(there), OpResult::Done);
        assert_eq!(bench.prefill(1, 0, &prompt, 119), expected);
    }
}

#[test]
#[ignore = "needs LLAMA_BATCH_TEST_MODEL"]
fn a_trimmed_sequence_goes_on_as_if_it_had_never_been_longer() {
    let model = model();
    let mut bench = Bench::new(Arc::clone(&model), &options());
    let prompt = tokens(&model, "The days of the week are Monday, Tuesday,");
    bench.open(1, &prompt);
    let first = bench.prefill(1, 0, &prompt, 0);
    let text = bench.generate(1, 0, first, prompt.len(), 8);
    assert_eq!(bench.trim(0, prompt.len() as u32 - 1), OpResult::Done);
    let again = bench.prefill(1, 0, &prompt, prompt.len() - 1);
    assert_eq!(bench.generate(1, 0, again, prompt.len(), 8), text);
    assert_eq!(bench.trim(0, 10_000), OpResult::Done);
    assert_eq!(bench.trim(0, 0), OpResult::Done);
    assert_eq!(bench.backend.held(SeqId(0)), None);
}

#[test]
#[ignore = "needs LLAMA_BATCH_TEST_MODEL"]
fn copies_that_make_no_sense_are_refused_and_change_nothing() {
    let model = model();
    let mut bench = Bench::new(Arc::clone(&model), &options());
    let prompt = long(&model, 20);
    bench.open(1, &prompt);
    bench.prefill(1, 0, &prompt, 0);
    bench.prefill(1, 1, &prompt, 0);
    for (from, to, len) in [(0, 1, 20), (0, 2, 21), (0, 0, 5), (0, 256, 5), (256, 2, 5), (3, 2, 1), (0, 2, 0)] {
        assert!(refused(&bench.copy(from, to, len)), "{from} to {to}, {len}");
        assert_eq!(bench.backend.held(SeqId(2)), None);
    }
    assert!(refused(&bench.remove(256)));
    assert_eq!(bench.remove(5), OpResult::Done);
}

#[test]
#[ignore = "needs LLAMA_BATCH_TEST_MODEL"]
fn a_copy_between_streams_of_their_own_is_whole_at_once() {
    let model = model();
    let split = StartOptions { kv_unified: Some(false), ..options() };
    let mut bench = Bench::new(Arc::clone(&model), &split);
    let prompt = long(&model, 30);
    bench.open(1, &prompt);
    let expected = bench.prefill(1, 0, &prompt, 0);
    assert_eq!(bench.copy(0, 1, 29), OpResult::Done);
    assert_eq!(bench.backend.held(SeqId(1)), Some((0, 28)));
    // What becomes of the donor does not matter any more, nor what comes into the copy's stream once that is gone.
    assert_eq!(bench.remove(0), OpResult::Done);
    assert_eq!(bench.prefill(1, 1, &prompt, 29), expected);
    assert_eq!(bench.copy(1, 2, 30), OpResult::Done);
    assert_eq!(bench.remove(2), OpResult::Done);
    bench.open(2, &prompt);
    assert_eq!(bench.prefill(2, 2, &prompt, 0), expected);
    bench.open(3, &prompt);
    assert_eq!(bench.prefill(3, 3, &prompt, 0), expected);
}

#[test]
#[ignore = "needs LLAMA_BATCH_TEST_MODEL"]
fn a_sliding_window_is_copied_while_it_is_there_and_its_drift_is_told() {
    let Some(path) = named("LLAMA_BATCH_TEST_SLIDING") else { return };
    let model = load(&StartOptions::default(), &path, &|_| true).unwrap();
    let opts = StartOptions { n_ctx: 4096, n_parallel: 2, n_cache_seqs: Some(1), n_ubatch: 128, ..options() };
    let mut bench = Bench::new(Arc::clone(&model), &opts);
    let MemoryKind::SlidingWindow(window) = bench.backend.limits().memory else { panic!("no sliding window") };
    assert_eq!(bench.backend.limits().n_seq_ids, 3);
    // More than the window's cells: llama.cpp gives each sequence a window of them, and a ubatch to all.
    let prompt = long(&model, 3 * window as usize + 400);
    let n = prompt.len() as u32;
    bench.open(1, &prompt);
    let expected = bench.prefill(1, 0, &prompt, 0);
    let outcome = bench.backend.decode(&rows(1, 0, &[expected], n));
    let told = outcome.positions.iter().find(|p| p.seq == SeqId(0)).unwrap().held.unwrap();
    assert_eq!(told.1, n);
    assert!(told.0 > 0 && told.0 <= n - window + 1, "{told:?}");
    // Its window is there: trimmed by one, copied, and continued from both.
    assert_eq!(bench.trim(0, n - 1), OpResult::Done);
    assert_eq!(bench.copy(0, 1, n - 1), OpResult::Done);
    assert_eq!(bench.prefill(1, 0, &prompt, n as usize - 1), expected);
    bench.open(2, &prompt);
    assert_eq!(bench.prefill(2, 1, &prompt, n as usize - 1), expected);
    // What is out of the window is gone.
    assert!(refused(&bench.trim(0, 10)));
    assert!(refused(&bench.copy(0, 2, 10)));
    assert_eq!(bench.backend.held(SeqId(0)).unwrap().1, n - 1);
    assert!(bench.backend.held(SeqId(2)).is_none());
}

#[test]
#[ignore = "needs LLAMA_BATCH_TEST_MODEL"]
fn forks_of_a_sliding_window_all_go_on() {
    let Some(path) = named("LLAMA_BATCH_TEST_SLIDING") else { return };
    let model = load(&StartOptions::default(), &path, &|_| true).unwrap();
    let opts = StartOptions { n_ctx: 8192, n_parallel: 4, n_cache_seqs: Some(0), ..options() };
    let mut bench = Bench::new(Arc::clone(&model), &opts);
    let prompt = long(&model, 700);
    bench.open(1, &prompt);
    bench.prefill(1, 0, &prompt, 0);
    for seq in 1..4 {
        assert_eq!(bench.copy(0, seq, 700), OpResult::Done);
    }
    let more = long(&model, 400);
    for seq in 0..4 {
        let pass = rows(1, seq, &more, 700);
        assert_eq!(bench.backend.decode(&pass).status, PassStatus::Done, "sequence {seq}");
    }
}

#[test]
#[ignore = "needs LLAMA_BATCH_TEST_MODEL"]
fn a_recurrent_state_is_copied_whole_or_not_at_all() {
    let Some(path) = named("LLAMA_BATCH_TEST_RECURRENT") else { return };
    let model = load(&StartOptions::default(), &path, &|_| true).unwrap();
    if let Err(error) = model.tokenize("text", true, true) {
        assert!(matches!(error, Error::Prompt(_)), "a model without a vocabulary says so: {error}");
        assert!(model.piece(5, true).is_empty());
    }
    let mut bench = Bench::new(Arc::clone(&model), &options());
    let limits = bench.backend.limits();
    assert_eq!((limits.memory, limits.n_seq_max, limits.n_seq_ids), (MemoryKind::Recurrent, 6, 6));
    assert!(bench.backend.abort_flag().is_none());
    let prompt: Vec<i32> = (0..40).map(|i| i * 37 % 256).collect();
    bench.open(1, &prompt);
    bench.prefill(1, 0, &prompt[..39], 0);
    assert!(refused(&bench.copy(0, 4, 38)));
    assert!(refused(&bench.trim(0, 38)));
    assert_eq!(bench.copy(0, 4, 39), OpResult::Done);
    let expected = bench.prefill(1, 0, &prompt, 39);
    // The checkpoint goes on where it was made, whatever became of the donor.
    assert_eq!(bench.remove(0), OpResult::Done);
    assert_eq!(bench.copy(4, 1, 39), OpResult::Done);
    assert_eq!(bench.prefill(1, 1, &prompt, 39), expected);
    assert_eq!(bench.backend.held(SeqId(4)), Some((0, 38)));
    let pass = [rows(1, 0, &[1, 2, 3], 0), rows(1, 1, &[7], 40), rows(1, 2, &[1], 0)].concat();
    assert_eq!(bench.backend.decode(&pass).status, PassStatus::Done);
}

#[test]
#[ignore = "needs LLAMA_BATCH_TEST_MODEL"]
fn blocks_come_back_from_ram_where_they_were_and_behind_a_shared_beginning() {
    let model = model();
    let mut bench = Bench::new(Arc::clone(&model), &options());
    let limits = bench.backend.limits();
    assert_eq!(limits.block, 64);
    let prompt = long(&model, 200);
    bench.open(1, &prompt);
    // In the passes that what comes back goes on with: other shapes alone may tip a close choice.
    bench.prefill(1, 0, &prompt[..192], 0);
    let first = bench.prefill(1, 0, &prompt, 192);
    let text = bench.generate(1, 0, first, 200, 8);
    let save = |seq, at: u64| Op::Save { seq: SeqId(seq), from: at as u32 * 64, len: 64, blob: BlobId(at) };
    let saved = bench.backend.prepare(&[save(0, 0), save(0, 1), save(0, 2)]);
    for result in saved {
        assert!(
            matches!(result, OpResult::Saved { n_bytes } if n_bytes > 0 && n_bytes <= limits.state.bytes(limits.memory, 64)),
            "{result:?}"
        );
    }
    assert!(refused(&bench.backend.prepare(&[Op::Save { seq: SeqId(0), from: 192, len: 64, blob: BlobId(9) }])[0]));
    assert_eq!(bench.backend.used_cells(SeqId(0)), Some(207), "a save takes no cells");
    assert_eq!(bench.copy(0, 100, 70), OpResult::Done);
    bench.remove(0);

    let restore = |seq, from, blobs: &[u64]| Op::Restore {
        seq: SeqId(seq),
        from,
        blobs: blobs.iter().map(|id| BlobId(*id)).collect(),
    };
    let whole = OpResult::Restored { n_blobs: 3, n_tokens: 192, lost: false };
    assert_eq!(bench.backend.prepare(&[restore(1, 0, &[0, 1, 2])]), [whole]);
    assert_eq!((bench.backend.held(SeqId(1)), bench.backend.used_cells(SeqId(0))), (Some((0, 191)), Some(70 + 192)));
    let again = bench.prefill(1, 1, &prompt, 192);
    assert_eq!(bench.generate(1, 1, again, 200, 8), text);
    bench.remove(1);

    assert_eq!(bench.copy(100, 2, 64), OpResult::Done);
    let rest = OpResult::Restored { n_blobs: 2, n_tokens: 128, lost: false };
    assert_eq!(bench.backend.prepare(&[restore(2, 64, &[1, 2])]), [rest]);
    assert_eq!(bench.backend.used_cells(SeqId(0)), Some(70 + 128), "the beginning is shared");
    let again = bench.prefill(1, 2, &prompt, 192);
    assert_eq!(bench.generate(1, 2, again, 200, 8), text);

    let nothing = |lost| OpResult::Restored { n_blobs: 0, n_tokens: 0, lost };
    assert_eq!(bench.backend.prepare(&[restore(3, 64, &[1])]), [nothing(false)], "a hole is not filled");
    assert_eq!(bench.backend.prepare(&[restore(3, 0, &[1])]), [nothing(true)], "a block has its place");
    assert_eq!(bench.backend.prepare(&[Op::Forget(BlobId(0)), restore(3, 0, &[0])]), [OpResult::Done, nothing(true)]);
    assert_eq!(bench.backend.held(SeqId(3)), None);
}

#[test]
#[ignore = "needs LLAMA_BATCH_TEST_MODEL"]
fn cells_move_down_into_holes_and_the_text_stays_the_same() {
    let model = model();
    let mut bench = Bench::new(Arc::clone(&model), &StartOptions { n_ctx: 4096, ..options() });
    let cost = bench.backend.limits().cell_cost;
    assert!(cost.moved_ns > 0 && cost.idle_ns < 1_000_000, "{cost:?}");
    let (below, prompt) = (long(&model, 300), long(&model, 260));
    bench.open(1, &below);
    bench.prefill(1, 0, &below, 0);
    bench.open(2, &prompt);
    let first = bench.prefill(2, 1, &prompt, 0);
    assert_eq!(bench.copy(1, 100, 200), OpResult::Done);
    let text = bench.generate(2, 1, first, 260, 8);
    bench.remove(0);
    let compact = Op::Compact { n_cells: 64 };
    let mut n_ops = 0;
    while bench.backend.prepare(std::slice::from_ref(&compact)) == [OpResult::Done] {
        n_ops += 1;
        assert_eq!(bench.backend.used_cells(SeqId(0)), Some(267), "nothing is lost, nothing is there twice");
        assert!(n_ops < 20);
    }
    assert!(n_ops >= 4, "{n_ops}");
    assert_eq!((bench.backend.held(SeqId(1)), bench.backend.held(SeqId(100))), (Some((0, 266)), Some((0, 199))));
    let outcome = bench.backend.decode(&rows(2, 1, &[text[7]], 267));
    assert!(outcome.span <= 300, "{} cells", outcome.span);
    // Both that hold the cells go on as before.
    bench.trim(1, 259);
    let again = bench.prefill(2, 1, &prompt, 259);
    assert_eq!(bench.generate(2, 1, again, 260, 8), text);
    assert_eq!(bench.copy(100, 2, 200), OpResult::Done);
    let again = bench.prefill(2, 2, &prompt, 200);
    assert_eq!(bench.generate(2, 2, again, 260, 8), text);
    assert!(refused(&bench.backend.prepare(&[compact])[0]), "there are no holes");
}

#[test]
#[ignore = "needs LLAMA_BATCH_TEST_MODEL"]
fn a_state_that_somebody_forged_is_refused_or_of_no_harm() {
    let model = model();
    let mut bench = Bench::new(Arc::clone(&model), &options());
    let prompt = long(&model, 100);
    bench.open(1, &prompt);
    let expected = bench.prefill(1, 0, &prompt, 0);
    bench.backend.prepare(&[Op::Save { seq: SeqId(0), from: 0, len: 64, blob: BlobId(0) }]);
    let export = Op::Export { transfer: TransferId(0), tokens: [].into(), blobs: vec![BlobId(0), BlobId(77)] };
    let OpResult::Exported(states) = bench.backend.prepare(&[export]).remove(0) else { panic!("no state") };
    assert!(states[1].is_none());
    let state = states[0].clone().unwrap().into_vec();
    let restore = Op::Restore { seq: SeqId(1), from: 0, blobs: vec![BlobId(9)] };
    let whole = OpResult::Restored { n_blobs: 1, n_tokens: 64, lost: false };
    let mut n_refused = 0;
    // Heads of all kinds lie at the beginning, and others between the layers; values do not matter.
    let places = (0..1200).chain((1200..state.len()).step_by(9973));
    let forged = places.map(|at| (at, state[at] ^ 0x81)).map(|(at, byte)| {
        let mut forged = state.clone();
        forged[at] = byte;
        forged
    });
    let cut = [0, 1, 7, 100, state.len() / 2, state.len() - 1].map(|len| state[..len].to_vec());
    for state in forged.chain(cut) {
        let import = Op::Import { blob: BlobId(9), from: 0, len: 64, state };
        let result = bench.backend.prepare(&[import, restore.clone()]).remove(1);
        n_refused += u32::from(result != whole);
        assert_eq!(bench.backend.held(SeqId(1)).is_some(), result == whole, "{result:?}");
        bench.backend.prepare(&[Op::Remove(SeqId(1)), Op::Forget(BlobId(9))]);
        assert_eq!(bench.backend.used_cells(SeqId(0)), Some(100), "nothing is left behind");
    }
    assert!(n_refused > 20, "{n_refused}");
    bench.trim(0, 99);
    assert_eq!(bench.prefill(1, 0, &prompt, 99), expected);
}

/// What this process holds of the machine's memory. Unit: bytes.
#[cfg(target_os = "linux")]
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
#[cfg(target_os = "linux")]
#[ignore = "needs LLAMA_BATCH_TEST_MODEL"]
fn the_memory_of_dropped_blocks_goes_back_to_the_system() {
    let model = model();
    let mut bench = Bench::new(Arc::clone(&model), &options());
    let prompt = long(&model, 64);
    bench.open(1, &prompt);
    bench.prefill(1, 0, &prompt, 0);
    let ids = || (0..600).map(BlobId);
    // Blocks of several sizes, as the ends of conversations have.
    let save = |blob: BlobId| Op::Save { seq: SeqId(0), from: 0, len: 64 - (blob.0 % 7) as u32 * 8, blob };
    let saved = bench.backend.prepare(&ids().map(save).collect::<Vec<_>>());
    let n_bytes: u64 = saved.iter().map(|r| if let OpResult::Saved { n_bytes } = r { *n_bytes } else { 0 }).sum();
    let full = resident();
    // Every other one first: what is left must not hold the rest.
    for rest in [0, 1] {
        bench.backend.prepare(&ids().filter(|id| id.0 % 2 == rest).map(Op::Forget).collect::<Vec<_>>());
    }
    let left = resident();
    assert!(n_bytes > 300 << 20);
    assert!(left + n_bytes / 4 * 3 < full, "{n_bytes} bytes of blocks; {full} before, {left} after");
}
