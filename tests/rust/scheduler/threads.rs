//! Threads that yield: as many compute as the machine has cores for, in virtual time.

use super::{config, options, prompt, request};
use llama_batch::backend::sim::{Cores, Latency, SimConfig};
use llama_batch::core::Event;
use llama_batch::sim::Simulation;
use proptest::prelude::*;
use std::time::Duration;

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn machine(n_cores: u32, n_busy: u32) -> SimConfig {
    let latency = Latency { fixed: ms(20), per_row: ms(4), noise: 30, ..Latency::default() };
    SimConfig { cores: Some(Cores { n: n_cores, n_busy }), latency, ..config(4, 100_000) }
}

fn with_streams(config: SimConfig) -> Simulation {
    let mut sim = Simulation::new(config, options(4));
    for id in 1..=4 {
        sim.submit(request(id, prompt(8 + id as u32), 20_000)).expect("room");
    }
    sim
}

/// Let it go on for a time; the tokens of that time.
fn go_on(sim: &mut Simulation, time: Duration) -> u32 {
    let end = sim.now() + time;
    let mut n_tokens = 0;
    while sim.now() < end && sim.step() {
        n_tokens += sim.events().iter().filter(|event| matches!(event, Event::Token { .. })).count() as u32;
    }
    n_tokens
}

fn counts(sim: &Simulation) -> (u32, u32) {
    let stats = sim.stats();
    (stats.n_threads, stats.n_threads_batch)
}

/// What a count that stays as it is gives at best.
fn best_fixed(n_cores: u32, n_busy: u32, time: Duration) -> u32 {
    let of = |n_threads: u32| Cores { n: n_cores, n_busy }.slow_down(4, n_threads);
    let least = (1..=n_cores).map(of).fold(f64::INFINITY, f64::min);
    (4.0 * time.as_secs_f64() / (0.036 * least)) as u32
}

#[test]
fn alone_all_cores_compute() {
    let mut sim = with_streams(machine(2, 0));
    go_on(&mut sim, ms(60_000));
    assert_eq!(counts(&sim), (2, 2));
}

#[test]
fn a_busy_neighbour_gets_its_core_within_a_second_and_gives_it_back() {
    for (n_cores, n_busy, left) in [(2, 1, 1), (2, 2, 1), (8, 1, 7), (8, 4, 4)] {
        let mut sim = with_streams(machine(n_cores, 0));
        go_on(&mut sim, ms(5000));
        assert_eq!(counts(&sim).0, n_cores);
        sim.set_busy(n_busy);
        go_on(&mut sim, ms(2000));
        let (n_threads, _) = counts(&sim);
        assert!(n_threads <= left && 2 * n_threads >= left, "{n_threads} of {n_cores} beside {n_busy}");
        sim.set_busy(0);
        go_on(&mut sim, ms(3000));
        assert_eq!(counts(&sim).0, n_cores, "beside {n_busy} before");
    }
}

#[test]
fn what_is_given_is_near_the_best_fixed_count() {
    for (n_cores, n_busy) in [(2, 0), (2, 1), (2, 2), (4, 0), (4, 1), (8, 0), (8, 2)] {
        let mut sim = with_streams(machine(n_cores, n_busy));
        go_on(&mut sim, ms(10_000));
        let n_tokens = go_on(&mut sim, ms(60_000));
        let best = best_fixed(n_cores, n_busy, ms(60_000));
        assert!(f64::from(n_tokens) >= 0.95 * f64::from(best), "{n_tokens} of {best}: {n_cores}, {n_busy} busy");
    }
}

#[test]
fn prompts_keep_their_threads_where_they_gain_by_them() {
    let mut sim = with_streams(machine(2, 0));
    go_on(&mut sim, ms(3000));
    sim.set_busy(1);
    for id in 10..30 {
        let mut long = request(id, prompt(400 + id as u32), 1);
        long.cache_prompt = false;
        sim.submit(long).expect("room");
    }
    go_on(&mut sim, ms(120_000));
    assert_eq!(counts(&sim), (1, 2));
}

#[test]
fn where_the_count_is_given_nothing_is_tried() {
    let mut sim = with_streams(SimConfig { cores: None, ..machine(2, 0) });
    go_on(&mut sim, ms(20_000));
    assert_eq!(counts(&sim), (0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    /// However the neighbours come and go: the count is one that can be, and they are given way to in the end.
    #[test]
    fn neighbours_come_and_go(n_cores in 1u32..9, phases in prop::collection::vec((0u32..10, 50u64..4000), 1..20)) {
        let mut sim = with_streams(machine(n_cores, 0));
        for (n_busy, length) in phases {
            sim.set_busy(n_busy);
            go_on(&mut sim, ms(length));
            let (small, large) = counts(&sim);
            prop_assert!((1..=n_cores).contains(&small) && (1..=n_cores).contains(&large));
        }
        sim.set_busy(0);
        go_on(&mut sim, ms(40_000));
        prop_assert_eq!(counts(&sim).0, n_cores);
    }
}
