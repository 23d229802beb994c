//! The RAM tier: what lost its cells is not computed again.

use super::*;
use llama_batch::backend::sim::Fault;
use llama_batch::core::{PrefixSource, Tier, TierOp};
use llama_batch::options::Key;

/// 300 cells: two prompts of 200 tokens do not fit beside each other.
fn small(ram_bytes: u64) -> Simulation {
    Simulation::new(SimConfig { ram_bytes, ..config(2, 300) }, options(2))
}

fn run_one(sim: &mut Simulation, r: Request) -> Finished {
    let id = r.id.0;
    let expected = alone(&r);
    sim.submit(r).expect("room");
    let mut seen = run_all(sim);
    assert_eq!(seen.text.get(&id).cloned().unwrap_or_default(), expected);
    seen.ends.remove(&id).expect("it ended")
}

fn ram_events(seen: &Seen) -> Vec<(TierOp, u32)> {
    let tokens = |e: &Event| {
        if let Event::TierChanged { tier: Tier::Ram, op, n_tokens, .. } = e { Some((*op, *n_tokens)) } else { None }
    };
    seen.events.iter().filter_map(tokens).collect()
}

#[test]
fn an_evicted_prefix_comes_back_block_by_block_and_the_copy_stays() {
    let mut sim = small(1 << 20);
    run_one(&mut sim, request(1, tokens(1, 200), 5));
    for (round, id) in [(0, 2), (1, 4)] {
        let other = run_one(&mut sim, request(id, tokens(2 + round, 250), 5));
        assert_eq!(other.prefix_source, PrefixSource::None);
        let again = request(id + 1, [tokens(1, 200), tokens(9, 20)].concat(), 5);
        let back = run_one(&mut sim, again);
        assert_eq!(
            (back.usage.prefix_cache_tokens, back.prefix_source),
            ([200, 219][round as usize], PrefixSource::Ram)
        );
    }
}

#[test]
fn what_is_saved_restored_and_dropped_is_told() {
    let mut sim = small(4 << 10);
    sim.submit(request(1, tokens(1, 200), 5)).expect("room");
    assert!(ram_events(&run_all(&mut sim)).contains(&(TierOp::Save, 204)));
    sim.submit(request(2, tokens(2, 250), 5)).expect("room");
    run_all(&mut sim);
    assert_eq!((sim.stats().ram_cache_entries, sim.stats().ram_cache_bytes), (4, 4 << 10), "all that fits");
    sim.submit(request(3, tokens(1, 200), 5)).expect("room");
    assert!(ram_events(&run_all(&mut sim)).contains(&(TierOp::Restore, 192)));
    for id in 4..=5 {
        sim.submit(request(id, tokens(id, 290), 5)).expect("room");
    }
    let told = ram_events(&run_all(&mut sim));
    let evicted = told.iter().find(|(op, _)| *op == TierOp::Evict);
    assert!(evicted.is_some_and(|(_, n_tokens)| *n_tokens >= 64), "four blocks are all that fit: {told:?}");
    assert_eq!(sim.stats().ram_cache_bytes, 4 << 10);
}

#[test]
fn what_two_conversations_have_in_common_is_kept_once() {
    let mut sim = small(1 << 20);
    for id in 1..=2 {
        run_one(&mut sim, request(id, [tokens(1, 128), tokens(4 + id, 100)].concat(), 2));
    }
    run_one(&mut sim, Request { cache_prompt: false, ..request(3, tokens(9, 290), 2) });
    assert_eq!(sim.stats().ram_cache_entries, 2 + 2 + 2, "two common blocks, and one and a short one of each");
}

#[test]
fn a_block_is_for_its_scope_alone() {
    let scoped = |id: u64, scope: &str| Request { scope: Some(Key(scope.into())), ..request(id, tokens(1, 200), 2) };
    let mut sim = small(1 << 20);
    run_one(&mut sim, scoped(1, "a"));
    run_one(&mut sim, request(2, tokens(2, 290), 2));
    assert_eq!(run_one(&mut sim, scoped(3, "b")).usage.prefix_cache_tokens, 0);
    run_one(&mut sim, request(4, tokens(3, 290), 2));
    assert_eq!(run_one(&mut sim, request(5, tokens(1, 200), 2)).usage.prefix_cache_tokens, 0);
    run_one(&mut sim, request(6, tokens(4, 290), 2));
    assert_eq!(run_one(&mut sim, scoped(7, "a")).usage.prefix_cache_tokens, 192);
}

#[test]
fn a_parked_request_goes_on_from_ram() {
    let computed = |ram_bytes| {
        let mut sim = Simulation::new(SimConfig { ram_bytes, ..config(4, 400) }, options(4));
        let requests: Vec<Request> = (1..=4).map(|id| request(id, tokens(id, 80), 120)).collect();
        for r in &requests {
            sim.submit(r.clone()).expect("room");
        }
        let seen = run_all(&mut sim);
        assert!(sim.stats().n_parked > 0);
        for r in &requests {
            assert_eq!(seen.text[&r.id.0], alone(r));
        }
        sim.stats().n_prefill_tokens
    };
    let (with, without) = (computed(1 << 20), computed(0));
    assert!(with + 128 <= without, "{with} tokens computed with RAM, {without} without");
}

#[test]
fn without_a_budget_there_is_no_tier() {
    for ram_bytes in [0, 1000] {
        let mut sim = small(ram_bytes);
        run_one(&mut sim, request(1, tokens(1, 200), 5));
        run_one(&mut sim, request(2, tokens(2, 290), 2));
        assert_eq!(sim.stats().ram_cache_entries, 0);
        assert_eq!(run_one(&mut sim, request(3, tokens(1, 200), 2)).usage.prefix_cache_tokens, 0);
    }
}

#[test]
fn blocks_that_cannot_be_saved_or_are_of_no_use_cost_a_computation_and_nothing_else() {
    for fault in [Fault::RefuseSave, Fault::RefuseRestore] {
        let mut sim = small(1 << 20);
        run_one(&mut sim, request(1, tokens(1, 200), 5));
        sim.inject(fault);
        run_one(&mut sim, request(2, tokens(2, 290), 2));
        let n_back = run_one(&mut sim, request(3, tokens(1, 200), 2)).usage.prefix_cache_tokens;
        // A refused save is tried again before the cells go.
        assert_eq!(n_back, if fault == Fault::RefuseSave { 192 } else { 0 });
        run_one(&mut sim, request(4, tokens(3, 290), 2));
        assert_eq!(run_one(&mut sim, request(5, tokens(1, 200), 2)).usage.prefix_cache_tokens, 192, "{fault:?}");
    }
}

#[test]
fn while_nobody_is_there_what_may_be_evicted_is_saved() {
    let mut sim = small(1 << 20);
    run_one(&mut sim, request(1, tokens(1, 250), 5));
    assert_eq!(sim.stats().ram_cache_entries, 4, "254 tokens have three blocks and a short one");
    let mut roomy = Simulation::new(config(2, 8192), options(2));
    run_one(&mut roomy, request(1, tokens(1, 250), 5));
    assert_eq!(roomy.stats().ram_cache_entries, 0, "nothing will be evicted soon");
}

#[test]
fn an_eviction_beside_a_stream_is_short() {
    let mut sim = Simulation::new(SimConfig { block: 4, ..config(2, 600) }, options(2));
    sim.submit(request(1, tokens(1, 250), 2)).expect("room");
    run_all(&mut sim);
    sim.submit(Request { cache_prompt: false, ..request(2, tokens(2, 20), 40) }).expect("room");
    for _ in 0..6 {
        sim.step();
    }
    sim.submit(Request { cache_prompt: false, ..request(3, tokens(3, 400), 2) }).expect("room");
    let told = ram_events(&run_all(&mut sim));
    assert!(told.iter().all(|(_, n_tokens)| *n_tokens <= 4 * 33), "{told:?}");
}

#[test]
fn a_block_that_matches_in_part_is_of_use_and_a_longer_one_takes_the_place_of_a_shorter() {
    let mut sim = small(1 << 20);
    run_one(&mut sim, request(1, tokens(1, 100), 5));
    run_one(&mut sim, Request { cache_prompt: false, ..request(2, tokens(9, 290), 2) });
    assert_eq!(sim.stats().ram_cache_entries, 2, "a block, and 40 tokens behind it");
    let parts = [tokens(1, 90), tokens(3, 80)].concat();
    assert_eq!(run_one(&mut sim, request(3, parts, 5)).usage.prefix_cache_tokens, 90);
    run_one(&mut sim, Request { cache_prompt: false, ..request(4, tokens(9, 290), 2) });
    let longer = [tokens(1, 100), tokens(4, 5)].concat();
    assert_eq!(run_one(&mut sim, request(5, longer.clone(), 5)).usage.prefix_cache_tokens, 100);
    run_one(&mut sim, Request { cache_prompt: false, ..request(6, tokens(9, 290), 2) });
    assert_eq!(run_one(&mut sim, request(7, longer, 5)).usage.prefix_cache_tokens, 104);
    // Fewer tokens than that are computed again.
    let short = [tokens(1, 70), tokens(5, 80)].concat();
    run_one(&mut sim, Request { cache_prompt: false, ..request(8, tokens(9, 290), 2) });
    assert_eq!(run_one(&mut sim, request(9, short, 5)).usage.prefix_cache_tokens, 64);
}

#[test]
fn restores_beside_each_other_evict_no_more_than_they_need() {
    let cfg = SimConfig { ram_bytes: 1 << 30, ..config(4, 1536) };
    let mut sim = Simulation::new(cfg, options(4));
    // A and B go to RAM.
    for id in 1..=8u64 {
        sim.submit(request(id, tokens(id, 257), 0)).expect("it may");
        run_all(&mut sim);
    }
    let before = sim.stats();
    let evicted = before.n_evicted;
    for id in 1..=3u64 {
        sim.submit(request(10 + id, [tokens(id, 256), tokens(20 + id, 1)].concat(), 1)).expect("it may");
    }
    run_all(&mut sim);
    let after = sim.stats();
    assert!(after.n_evicted - evicted <= 3);
}
