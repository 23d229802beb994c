//! Every kind of memory: what was computed is found again, where a sequence can be cut and where it cannot.

use super::*;
use llama_batch::backend::sim::Fault;
use llama_batch::core::{MemoryKind, PrefixSource};
use llama_batch::options::Key;

/// All that a model's memory can be, with and without a buffer for each sequence.
const KINDS: [(MemoryKind, bool); 7] = [
    (MemoryKind::Full, true),
    (MemoryKind::Full, false),
    (MemoryKind::SlidingWindow(16), true),
    (MemoryKind::SlidingWindow(16), false),
    (MemoryKind::Recurrent, true),
    (MemoryKind::Hybrid, true),
    (MemoryKind::Hybrid, false),
];

fn each(n_parallel: u32, test: impl Fn(Simulation, &str)) {
    for (memory, kv_unified) in KINDS {
        let n_ctx = 1024 * if kv_unified { 1 } else { n_parallel };
        let sim = SimConfig { memory, kv_unified, block: 1, ram_bytes: 1 << 30, ..config(n_parallel, n_ctx) };
        test(Simulation::new(sim, options(n_parallel)), &format!("{memory:?}, unified {kv_unified}"));
    }
}

fn run_one(sim: &mut Simulation, r: &Request) -> Finished {
    let expected = alone(r);
    sim.submit(r.clone()).expect("room");
    let mut seen = run_all(sim);
    assert_eq!(seen.text.get(&r.id.0).cloned().unwrap_or_default(), expected);
    seen.ends.remove(&r.id.0).expect("it ended")
}

fn n_reused(sim: &mut Simulation, r: &Request) -> u32 {
    run_one(sim, r).usage.prefix_cache_tokens
}

/// What the request's answer added to its prompt.
fn with_answer(r: &Request) -> Vec<Token> {
    let mut sim = Simulation::new(config(1, 8192), options(1));
    sim.submit(r.clone()).expect("room");
    let seen = run_all(&mut sim);
    let answer =
        seen.events.iter().filter_map(|e| if let Event::Chunk { tokens, .. } = e { Some(tokens) } else { None });
    r.prompt.iter().chain(answer.flatten()).copied().collect()
}

/// Enough to push everything out of the KV cache.
fn crowd(sim: &mut Simulation, first_id: u64) {
    for id in first_id..first_id + 6 {
        run_one(sim, &request(id, tokens(id, 300), 30));
    }
}

#[test]
fn an_identical_prompt_computes_its_last_token_only() {
    each(2, |mut sim, kind| {
        run_one(&mut sim, &request(1, tokens(1, 200), 40));
        assert_eq!(n_reused(&mut sim, &request(2, tokens(1, 200), 40)), 199, "{kind}");
        crowd(&mut sim, 10);
        assert_eq!(n_reused(&mut sim, &request(30, tokens(1, 200), 40)), 199, "{kind}, from RAM");
    });
}

#[test]
fn the_next_turn_of_a_chat_goes_on_where_the_last_one_ended() {
    each(2, |mut sim, kind| {
        let first = request(1, tokens(1, 200), 40);
        run_one(&mut sim, &first);
        let turn = [with_answer(&first), tokens(3, 20)].concat();
        assert_eq!(n_reused(&mut sim, &request(2, turn.clone(), 1)), 239, "{kind}");
        crowd(&mut sim, 10);
        let again = run_one(&mut sim, &request(30, [turn, tokens(4, 20)].concat(), 5));
        assert!(again.usage.prefix_cache_tokens >= 259, "{kind}: {:?}", again.usage);
        assert_eq!(again.prefix_source, PrefixSource::Ram, "{kind}");
    });
}

#[test]
fn a_turn_whose_last_answer_was_rewritten_goes_on_from_the_prompt() {
    each(2, |mut sim, kind| {
        run_one(&mut sim, &request(1, tokens(1, 200), 40));
        let rewritten = [tokens(1, 200), tokens(2, 50)].concat();
        assert!(n_reused(&mut sim, &request(2, rewritten.clone(), 5)) >= 199, "{kind}");
        crowd(&mut sim, 10);
        let other = [tokens(1, 200), tokens(5, 50)].concat();
        assert!(n_reused(&mut sim, &request(30, other, 5)) >= 199, "{kind}, from RAM");
    });
}

#[test]
fn a_burst_with_a_common_beginning_computes_it_once() {
    each(4, |mut sim, kind| {
        let burst: Vec<Request> = (1..=4).map(|id| request(id, [tokens(9, 100), tokens(id, 5)].concat(), 10)).collect();
        for r in &burst {
            sim.submit(r.clone()).expect("room");
        }
        let seen = run_all(&mut sim);
        for r in &burst {
            assert_eq!(seen.text[&r.id.0], alone(r), "{kind}");
        }
        assert_eq!(sim.stats().n_prefill_tokens, 100 + 4 * 5, "{kind}");
    });
}

#[test]
fn the_third_with_a_beginning_finds_it_where_the_second_parted_from_the_first() {
    each(1, |mut sim, kind| {
        for id in 1..=2 {
            run_one(&mut sim, &request(id, [tokens(9, 150), tokens(id, 60)].concat(), 5));
        }
        let third = n_reused(&mut sim, &request(3, [tokens(9, 150), tokens(3, 60)].concat(), 5));
        assert_eq!(third, 150, "{kind}");
    });
}

#[test]
fn a_state_is_for_its_scope_alone() {
    each(2, |mut sim, kind| {
        let scoped =
            |id: u64, scope: &str| Request { scope: Some(Key(scope.into())), ..request(id, tokens(1, 200), 9) };
        run_one(&mut sim, &scoped(1, "a"));
        assert_eq!(n_reused(&mut sim, &scoped(2, "b")), 0, "{kind}");
        crowd(&mut sim, 10);
        assert_eq!(n_reused(&mut sim, &scoped(31, "c")), 0, "{kind}");
        assert_eq!(n_reused(&mut sim, &request(32, tokens(1, 200), 9)), 0, "{kind}");
        assert_eq!(n_reused(&mut sim, &scoped(33, "a")), 199, "{kind}");
    });
}

#[test]
fn a_state_that_cannot_be_saved_or_is_of_no_use_costs_a_computation_and_nothing_else() {
    for fault in [Fault::RefuseSave, Fault::RefuseRestore, Fault::RefuseTrim, Fault::RefuseCopy] {
        each(2, |mut sim, _| {
            sim.inject(fault);
            run_one(&mut sim, &request(1, tokens(1, 200), 40));
            crowd(&mut sim, 10);
            run_one(&mut sim, &request(30, tokens(1, 200), 40));
            run_one(&mut sim, &request(31, [tokens(1, 200), tokens(3, 9)].concat(), 40));
        });
    }
}

#[test]
fn a_recurrent_memory_counts_sequences_and_never_runs_short_of_tokens() {
    let sim = SimConfig { memory: MemoryKind::Recurrent, ..config(4, 300) };
    let mut sim = Simulation::new(sim, options(4));
    for id in 1..=4 {
        sim.submit(request(id, tokens(id, 250), 40)).expect("room");
    }
    for _ in 0..6 {
        sim.step();
    }
    let stats = sim.stats();
    assert_eq!((stats.active_slots, stats.kv_cells_used, stats.kv_cells_total), (4, 4, 6));
    let seen = run_all(&mut sim);
    assert!((1..=4).all(|id| *seen.end(id) == Ok(FinishReason::MaxTokens)));
    assert_eq!(sim.stats().n_parked, 0);
}

#[test]
fn a_window_that_has_moved_on_does_not_stand_for_a_shorter_sequence() {
    let cfg = SimConfig { memory: MemoryKind::SlidingWindow(16), ram_bytes: 0, ..config(2, 2048) };
    let mut sim = Simulation::new(cfg, options(2));
    sim.submit(request(1, tokens(1, 100), 0)).expect("it may");
    sim.submit(request(2, [tokens(1, 100), tokens(2, 60)].concat(), 0)).expect("it may");
    run_all(&mut sim);
    sim.submit(request(3, [tokens(1, 100), tokens(3, 60)].concat(), 1)).expect("it may");
    let seen = run_all(&mut sim);
    assert!(seen.ends[&3].usage.prefix_cache_tokens >= 99, "{:?}", seen.ends[&3].usage);
}
