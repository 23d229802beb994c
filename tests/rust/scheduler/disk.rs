//! The disk tier: what lost its place in RAM, or was left by an engine before, is not computed again.

use super::*;
use llama_batch::backend::sim::{Fault, FaultRates};
use llama_batch::core::{MemoryKind, PrefixReason, PrefixSource, Tier, TierOp};
use llama_batch::options::Key;

const ALL_MEMORIES: [(MemoryKind, bool); 5] = [
    (MemoryKind::Full, true),
    (MemoryKind::Full, false),
    (MemoryKind::SlidingWindow(32), true),
    (MemoryKind::Recurrent, true),
    (MemoryKind::Hybrid, true),
];

fn with_disk(disk_bytes: u64) -> SchedulerOptions {
    SchedulerOptions { disk_bytes, ..options(2) }
}

/// 300 cells and four blocks in RAM.
fn small(disk_bytes: u64) -> Simulation {
    Simulation::new(SimConfig { ram_bytes: 4 << 10, ..config(2, 300) }, with_disk(disk_bytes))
}

fn run_one(sim: &mut Simulation, r: &Request) -> (Finished, Seen) {
    let expected = alone(r);
    sim.submit(r.clone()).expect("room");
    let mut seen = run_all(sim);
    assert_eq!(seen.text.get(&r.id.0).cloned().unwrap_or_default(), expected);
    (seen.ends.remove(&r.id.0).expect("it ended"), seen)
}

/// Request 2, which caches nothing, and the first steps of it.
fn begin_stream(sim: &mut Simulation, max_tokens: u32, n_steps: u32) {
    sim.submit(Request { cache_prompt: false, ..request(2, tokens(2, 20), max_tokens) }).expect("room");
    for _ in 0..n_steps {
        sim.step();
    }
}

fn on_disk(seen: &Seen, wanted: TierOp) -> (u32, Option<String>) {
    let told = seen.events.iter().filter_map(|e| match e {
        Event::TierChanged { tier: Tier::Disk, op, n_tokens, reason, .. } if *op == wanted => {
            Some((*n_tokens, reason.clone()))
        }
        _ => None,
    });
    told.fold((0, None), |(sum, last), (n, reason)| (sum + n, reason.or(last)))
}

#[test]
fn what_left_ram_comes_back_from_disk() {
    let mut sim = small(1 << 20);
    run_one(&mut sim, &request(1, tokens(1, 200), 5));
    for id in 2..5 {
        run_one(&mut sim, &request(id, tokens(id, 290), 5));
    }
    let (back, seen) = run_one(&mut sim, &request(9, [tokens(1, 200), tokens(9, 20)].concat(), 5));
    assert_eq!(back.usage.prefix_cache_tokens, 200);
    assert_eq!((back.prefix_source, back.prefix_reason), (PrefixSource::Disk, PrefixReason::Saved));
    assert_eq!(on_disk(&seen, TierOp::Restore).0, 204, "three blocks and a short one");
    let mut without = small(0);
    run_one(&mut without, &request(1, tokens(1, 200), 5));
    for id in 2..5 {
        run_one(&mut without, &request(id, tokens(id, 290), 5));
    }
    let (back, _) = run_one(&mut without, &request(9, [tokens(1, 200), tokens(9, 20)].concat(), 5));
    assert_eq!(back.usage.prefix_cache_tokens, 0);
}

#[test]
fn the_next_engine_goes_on_where_the_last_one_ended_whatever_the_memory() {
    for (memory, kv_unified) in ALL_MEMORIES {
        let cfg = SimConfig { memory, kv_unified, ..config(2, 2048) };
        let mut sim = Simulation::new(cfg, with_disk(1 << 20));
        run_one(&mut sim, &request(1, tokens(1, 200), 5));
        assert!(sim.stats().disk_cache_bytes > 0, "{memory:?}");
        let n_entries = sim.stats().disk_cache_entries;
        sim = sim.restarted(with_disk(1 << 20));
        assert_eq!(sim.stats().disk_cache_entries, n_entries);
        let next = request(2, [tokens(1, 200), tokens(9, 20)].concat(), 5);
        let (back, seen) = run_one(&mut sim, &next);
        assert!(back.usage.prefix_cache_tokens >= 199, "{memory:?}: {:?}", back.usage);
        assert_eq!(back.prefix_source, PrefixSource::Disk, "{memory:?}");
        if (memory, kv_unified) == (MemoryKind::Full, true) {
            assert_eq!(on_disk(&seen, TierOp::Save).0, 32, "what is there is not written again");
        }
        // An identical prompt computes its last token, from disk too.
        sim = sim.restarted(with_disk(1 << 20));
        let (again, _) = run_one(&mut sim, &Request { id: RequestId(3), ..next });
        assert_eq!(again.usage.prefix_cache_tokens, 219, "{memory:?}");
    }
}

#[test]
fn what_one_scope_left_on_disk_is_nobody_elses() {
    for (memory, kv_unified) in ALL_MEMORIES {
        let cfg = SimConfig { memory, kv_unified, ..config(2, 2048) };
        let mut sim = Simulation::new(cfg, with_disk(1 << 20));
        let of = |id, scope: Option<&str>| Request {
            scope: scope.map(|scope| Key(scope.into())),
            ..request(id, tokens(1, 200), 5)
        };
        run_one(&mut sim, &of(1, Some("a")));
        sim = sim.restarted(with_disk(1 << 20));
        for (id, scope, n_least) in [(2, None, 0), (3, Some("b"), 0), (4, Some("a"), 192)] {
            let (end, _) = run_one(&mut sim, &of(id, scope));
            let n_reused = end.usage.prefix_cache_tokens;
            assert!((n_least..=n_least + 7).contains(&n_reused), "{memory:?}, {scope:?}: {n_reused}");
            assert!(n_least > 0 || n_reused == 0, "{memory:?}, {scope:?}: {n_reused}");
        }
    }
}

#[test]
fn a_session_that_only_the_disk_has_is_saved_whole() {
    let mut sim = small(1 << 20);
    let session = Key("tale".into());
    run_one(&mut sim, &Request { session: Some(session.clone()), ..request(1, tokens(1, 200), 5) });
    for id in 2..5 {
        run_one(&mut sim, &request(id, tokens(id, 290), 5));
    }
    sim.save_session(1, None, &session).expect("it left something");
    let seen = run_all(&mut sim);
    let saved =
        seen.events.iter().find_map(|e| if let Event::SessionSaved { state, .. } = e { Some(state) } else { None });
    assert_eq!(saved.map(|state| (state.tokens.len(), state.n_restorable())), Some((204, 204)));
}

#[test]
fn a_full_folder_gives_up_what_was_used_longest_ago() {
    // Five blocks and their headers.
    let mut sim = small(9 << 10);
    for id in 1..4 {
        run_one(&mut sim, &request(id, tokens(id, 150), 2));
    }
    assert!(sim.stats().disk_cache_bytes <= 9 << 10);
    for (id, like, n_least) in [(11, 3, 128), (12, 1, 0)] {
        let mut next = sim.restarted(with_disk(9 << 10));
        let (back, _) = run_one(&mut next, &request(id, [tokens(like, 150), tokens(9, 9)].concat(), 2));
        assert!((n_least..=n_least + 24).contains(&back.usage.prefix_cache_tokens), "{like}: {:?}", back.usage);
        sim = next;
    }
}

#[test]
fn a_beginning_that_is_reused_stays_on_disk() {
    let mut sim = small(9 << 10);
    let system = tokens(1, 128);
    for id in 1..12 {
        // Each turn of the system prompt comes from RAM or disk, beside what fills both.
        run_one(&mut sim, &request(2 * id, [system.clone(), tokens(50 + id, 9)].concat(), 2));
        run_one(&mut sim, &request(2 * id + 1, tokens(100 + id, 280), 2));
    }
    let mut next = sim.restarted(with_disk(9 << 10));
    let (back, _) = run_one(&mut next, &request(90, [system, tokens(9, 9)].concat(), 2));
    assert_eq!(back.usage.prefix_cache_tokens, 128);
}

#[test]
fn what_cannot_be_stored_or_is_damaged_costs_a_computation_and_is_told() {
    for (memory, kv_unified) in ALL_MEMORIES {
        let cfg = SimConfig { memory, kv_unified, ..config(2, 2048) };
        let mut sim = Simulation::new(cfg.clone(), with_disk(1 << 20));
        sim.inject(Fault::RefuseStore);
        let (_, seen) = run_one(&mut sim, &request(1, tokens(1, 200), 5));
        assert_eq!(on_disk(&seen, TierOp::Fail).1.as_deref(), Some("injected: store refused"));
        let mut sim = Simulation::new(cfg, with_disk(1 << 20));
        run_one(&mut sim, &request(1, tokens(1, 200), 5));
        sim = sim.restarted(with_disk(1 << 20));
        let n_before = sim.stats().disk_cache_entries;
        sim.inject(Fault::RefuseLoad);
        let (end, seen) = run_one(&mut sim, &request(2, [tokens(1, 200), tokens(9, 20)].concat(), 5));
        assert_eq!(on_disk(&seen, TierOp::Fail).1.as_deref(), Some("injected: load refused"));
        assert!(end.usage.prefix_cache_tokens < 200, "{memory:?}");
        assert!(n_before > 0 && end.end.is_ok());
        // What was computed instead is stored again.
        sim = sim.restarted(with_disk(1 << 20));
        let (end, _) = run_one(&mut sim, &request(3, [tokens(1, 200), tokens(9, 20)].concat(), 5));
        assert!(end.usage.prefix_cache_tokens >= 199, "{memory:?}: {:?}", end.usage);
    }
}

#[test]
fn beside_a_stream_loads_come_in_slices() {
    const MIB: u64 = 1 << 20;
    let cfg = SimConfig { block_bytes: 3 * MIB, ram_bytes: 1 << 30, ..config(2, 4096) };
    let mut sim = Simulation::new(cfg, with_disk(1 << 30));
    run_one(&mut sim, &request(1, tokens(1, 1024), 2));
    sim = sim.restarted(with_disk(1 << 30));
    begin_stream(&mut sim, 60, 6);
    sim.submit(request(3, [tokens(1, 1024), tokens(9, 20)].concat(), 2)).expect("room");
    let seen = run_all(&mut sim);
    let mut since_pass = 0;
    for event in &seen.events {
        match event {
            Event::Tick { .. } => since_pass = 0,
            Event::TierChanged { tier: Tier::Disk, op: TierOp::Restore, n_bytes, .. } => {
                since_pass += n_bytes;
                assert!(since_pass <= 9 * MIB, "{since_pass} bytes were read before one pass");
            }
            _ => {}
        }
    }
    assert_eq!(on_disk(&seen, TierOp::Restore).0, 1024);
    assert_eq!(seen.ends[&3].usage.prefix_cache_tokens, 1024);
    assert_eq!(seen.ends[&3].prefix_source, PrefixSource::Disk);
}

#[test]
fn a_load_for_which_ram_has_no_room_is_given_up() {
    // RAM holds two blocks of the five.
    let cfg = SimConfig { ram_bytes: 2 << 10, ..config(2, 600) };
    let mut sim = Simulation::new(SimConfig { ram_bytes: 1 << 20, ..cfg }, with_disk(1 << 20));
    run_one(&mut sim, &request(1, tokens(1, 320), 2));
    let mut sim = sim.restarted(SchedulerOptions { ram_bytes: Some(2 << 10), ..with_disk(1 << 20) });
    let (back, _) = run_one(&mut sim, &request(2, [tokens(1, 320), tokens(9, 20)].concat(), 5));
    assert_eq!(back.usage.prefix_cache_tokens, 128);
}

#[test]
fn what_is_laid_out_otherwise_is_discarded() {
    let mut sim = Simulation::new(config(2, 2048), with_disk(1 << 20));
    run_one(&mut sim, &request(1, tokens(1, 200), 5));
    assert!(sim.stats().disk_cache_entries > 1);
    // A smaller budget, none, and then none that would be there.
    let mut sim = sim.restarted(with_disk(2500));
    run_all(&mut sim);
    assert_eq!(sim.stats().disk_cache_entries, 2);
    let mut sim = sim.restarted(with_disk(0));
    run_all(&mut sim);
    assert_eq!(sim.stats().disk_cache_entries, 0);
    let (end, _) = run_one(&mut sim, &request(2, tokens(1, 200), 5));
    assert_eq!(end.usage.prefix_cache_tokens, 0);
}

#[test]
fn an_idle_engine_gives_up_on_what_cannot_be_stored() {
    const MIB: u64 = 1 << 20;
    let fault_rates = FaultRates { refuse_store: 1000, ..FaultRates::default() };
    let cfg = SimConfig { block_bytes: 3 * MIB, ram_bytes: 1 << 30, fault_rates, ..config(2, 4096) };
    let mut sim = Simulation::new(cfg, with_disk(1 << 30));
    sim.submit(request(1, tokens(1, 1024), 2)).expect("room");
    assert!(sim.run(1000), "it has nothing left to do");
}

/// What moved between RAM and disk before one pass at most: stored, and loaded. Unit: bytes.
fn most_before_a_pass(seen: &Seen) -> (u64, u64) {
    let (mut stored, mut loaded, mut most) = (0, 0, (0, 0));
    for event in &seen.events {
        match event {
            Event::Tick { .. } => {
                most = (most.0.max(stored), most.1.max(loaded));
                (stored, loaded) = (0, 0);
            }
            Event::TierChanged { tier: Tier::Disk, op: TierOp::Save, n_bytes, .. } => stored += n_bytes,
            Event::TierChanged { tier: Tier::Disk, op: TierOp::Restore, n_bytes, .. } => loaded += n_bytes,
            _ => {}
        }
    }
    most
}

#[test]
fn whole_sequences_that_are_large_do_not_move_beside_a_stream() {
    const MIB: u64 = 1 << 20;
    for (memory, kv_unified) in ALL_MEMORIES.into_iter().skip(1) {
        let cfg = SimConfig { memory, kv_unified, block_bytes: 900 * MIB, ram_bytes: 4 << 30, ..config(2, 4096) };
        let mut sim = Simulation::new(cfg, with_disk(100 << 30));
        run_one(&mut sim, &request(1, tokens(1, 1024), 2));
        sim = sim.restarted(with_disk(100 << 30));
        begin_stream(&mut sim, 200, 6);
        sim.submit(request(3, [tokens(1, 1024), tokens(9, 20)].concat(), 2)).expect("room");
        let mut seen = Seen::default();
        while !seen.ends.contains_key(&2) {
            assert!(sim.step());
            sim.check();
            seen.take(&mut sim);
        }
        assert_eq!(most_before_a_pass(&seen), (0, 0), "{memory:?}");
        assert!(seen.ends[&3].end.is_ok(), "it was computed instead");
    }
}

#[test]
fn beside_a_prompt_that_is_read_loads_come_in_larger_slices() {
    const MIB: u64 = 1 << 20;
    let cfg = SimConfig { block_bytes: 50 * MIB, ram_bytes: 16 << 30, n_batch: 64, ..config(2, 8192) };
    let mut sim = Simulation::new(cfg, with_disk(16 << 30));
    run_one(&mut sim, &request(1, tokens(1, 3200), 2));
    sim = sim.restarted(with_disk(16 << 30));
    sim.submit(Request { cache_prompt: false, ..request(2, tokens(2, 4000), 1) }).expect("room");
    sim.step();
    sim.submit(request(3, [tokens(1, 3200), tokens(9, 20)].concat(), 2)).expect("room");
    let seen = run_all(&mut sim);
    assert!(most_before_a_pass(&seen).1 <= 300 * MIB, "{:?}", most_before_a_pass(&seen));
    assert_eq!(seen.ends[&3].usage.prefix_cache_tokens, 3200);
}

#[test]
fn a_folder_outlives_an_engine_that_has_no_ram_for_it() {
    let mut sim = Simulation::new(config(2, 2048), with_disk(1 << 20));
    run_one(&mut sim, &request(1, tokens(1, 200), 5));
    let mut sim = sim.restarted(SchedulerOptions { ram_bytes: Some(0), ..with_disk(1 << 20) });
    run_one(&mut sim, &request(2, tokens(1, 200), 5));
    let mut sim = sim.restarted(with_disk(1 << 20));
    assert_eq!(run_one(&mut sim, &request(3, tokens(1, 200), 5)).0.usage.prefix_cache_tokens, 192);
}

#[test]
fn what_is_loaded_is_used() {
    let mut sim = Simulation::new(config(2, 2048), with_disk(1 << 20));
    run_one(&mut sim, &request(1, tokens(1, 170), 1));
    sim = sim.restarted(with_disk(1 << 20));
    run_one(&mut sim, &request(2, [tokens(1, 128), tokens(7, 20)].concat(), 2));
    let (end, seen) = run_one(&mut sim, &request(3, [tokens(1, 170), tokens(9, 10)].concat(), 2));
    assert_eq!((end.prefix_source, on_disk(&seen, TierOp::Restore).0), (PrefixSource::Donor, 0));
}

#[test]
fn who_leaves_stores_what_had_no_place_in_ram_too() {
    // RAM has four blocks; what a stream keeps from being idle is in the cells only.
    let mut sim = Simulation::new(SimConfig { ram_bytes: 4 << 10, ..config(2, 2048) }, with_disk(1 << 20));
    run_one(&mut sim, &request(1, tokens(1, 250), 2));
    sim = sim.restarted(with_disk(1 << 20));
    begin_stream(&mut sim, 400, 4);
    sim.submit(request(3, tokens(3, 250), 2)).expect("room");
    for _ in 0..50 {
        sim.step();
    }
    sim.submit(request(4, [tokens(1, 250), tokens(8, 9)].concat(), 2)).expect("room");
    run_all(&mut sim);
    sim.leave();
    run_all(&mut sim);
    let mut sim = sim.restarted(with_disk(1 << 20));
    let (back, _) = run_one(&mut sim, &request(9, [tokens(3, 250), tokens(9, 9)].concat(), 2));
    assert_eq!(back.usage.prefix_cache_tokens, 250);
}

#[test]
fn beside_a_stream_that_never_ends_what_others_left_is_stored_all_the_same() {
    let mut sim = Simulation::new(config(4, 4096), SchedulerOptions { n_parallel: 4, ..with_disk(1 << 20) });
    sim.submit(Request { cache_prompt: false, ..request(1, tokens(9, 20), 2000) }).expect("room");
    sim.submit(request(2, tokens(2, 600), 3)).expect("room");
    let mut seen = Seen::default();
    while sim.stats().disk_cache_entries < 10 {
        assert!(sim.step());
        sim.check();
        seen.take(&mut sim);
        assert!(!seen.ends.contains_key(&1), "it was stored in time");
    }
}
