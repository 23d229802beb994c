//! Idle sequences leave the KV cells once they have cost what bringing them back does, and the holes are filled.

use super::*;
use llama_batch::core::{CellCost, PrefixSource, PressureReason};

/// Five idle conversations of 256 tokens, below a stream that goes on.
fn beside_idle(idle_ns: u32, moved_ns: u32) -> (Simulation, Seen) {
    let cell_cost = CellCost { idle_ns, moved_ns };
    let mut sim = Simulation::new(SimConfig { cell_cost, ram_bytes: 1 << 30, ..config(4, 8192) }, options(4));
    for id in 1..=5 {
        sim.submit(request(id, tokens(id, 256), 2)).expect("room");
    }
    let mut seen = run_all(&mut sim);
    sim.submit(request(9, tokens(9, 100), 400)).expect("room");
    run_on(&mut sim, &mut seen);
    assert_eq!(seen.text[&9], alone(&request(9, tokens(9, 100), 400)));
    (sim, seen)
}

fn moved_out(seen: &Seen) -> Vec<usize> {
    let moved = |event: &Event| match event {
        Event::KvPressure { reason: PressureReason::Residency, purged_seq_ids, .. } => Some(purged_seq_ids.len()),
        _ => None,
    };
    seen.events.iter().filter_map(moved).collect()
}

#[test]
fn idle_sequences_move_to_ram_when_they_have_cost_as_much_and_come_back_from_there() {
    let (mut sim, seen) = beside_idle(10, 200);
    assert_eq!(moved_out(&seen), [1; 5], "one at a time");
    assert_eq!(sim.stats().ram_cache_entries, 5 * 4, "four blocks of each");
    sim.submit(request(10, [tokens(2, 256), tokens(1, 9)].concat(), 3)).expect("room");
    let back = &run_all(&mut sim).ends[&10];
    assert_eq!((back.usage.prefix_cache_tokens, back.prefix_source), (256, PrefixSource::Ram));
}

#[test]
fn the_span_shrinks_to_what_is_in_use() {
    let cell_cost = CellCost { idle_ns: 10, moved_ns: 200 };
    let mut sim = Simulation::new(SimConfig { cell_cost, ram_bytes: 1 << 30, ..config(4, 8192) }, options(4));
    for id in 1..=5 {
        sim.submit(request(id, tokens(id, 256), 2)).expect("room");
    }
    run_all(&mut sim);
    sim.submit(request(9, tokens(9, 100), 400)).expect("room");
    let (mut widest, mut last) = (0, 0);
    while sim.step() {
        sim.check();
        if sim.stats().active_slots == 1 {
            (widest, last) = (widest.max(sim.span()), sim.span());
        }
    }
    assert!(widest > 1280 && last < 600, "{widest} cells at first, {last} in the end");
}

#[test]
fn what_costs_nothing_stays() {
    for (idle_ns, moved_ns) in [(0, 200), (10, 0), (1, 100_000)] {
        let (sim, seen) = beside_idle(idle_ns, moved_ns);
        assert!(moved_out(&seen).is_empty());
        assert_eq!(sim.stats().cached_sequences, 6);
    }
}

#[test]
fn what_finds_no_room_in_ram_stays() {
    let cell_cost = CellCost { idle_ns: 10, moved_ns: 200 };
    let mut sim = Simulation::new(SimConfig { cell_cost, ram_bytes: 0, ..config(4, 8192) }, options(4));
    for id in 1..=3 {
        sim.submit(request(id, tokens(id, 256), 100)).expect("room");
    }
    let seen = run_all(&mut sim);
    assert!(moved_out(&seen).is_empty());
    assert_eq!(sim.stats().cached_sequences, 3);
}

#[test]
fn a_full_ram_tier_gives_up_what_was_used_before() {
    let cell_cost = CellCost { idle_ns: 1000, moved_ns: 10 };
    let mut sim = Simulation::new(SimConfig { cell_cost, ram_bytes: 8 << 10, ..config(4, 8192) }, options(4));
    for id in 1..=5 {
        sim.submit(request(id, tokens(id, 256), 2)).expect("room");
    }
    run_all(&mut sim);
    sim.submit(request(9, tokens(9, 100), 400)).expect("room");
    assert_eq!(moved_out(&run_all(&mut sim)).len(), 5, "two of them fit, the last ones");
    assert_eq!(sim.stats().ram_cache_entries, 8);
    sim.submit(request(10, [tokens(5, 256), tokens(1, 9)].concat(), 3)).expect("room");
    assert_eq!(run_all(&mut sim).ends[&10].usage.prefix_cache_tokens, 256);
}
