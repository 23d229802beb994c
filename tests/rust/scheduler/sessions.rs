//! Sessions on their way to a file and back: what is saved is all that there is, and what is loaded is found.

use super::*;
use llama_batch::core::{MemoryKind, SessionState, StatePart, TransferId};
use llama_batch::options::Key;

fn key(name: &str) -> Key {
    Key(name.into())
}

fn in_session(name: &str, r: Request) -> Request {
    Request { session: Some(key(name)), ..r }
}

fn saved(seen: &Seen, t: u64) -> SessionState {
    let state = |event: &Event| match event {
        Event::SessionSaved { transfer, state } if *transfer == TransferId(t) => Some(state.clone()),
        _ => None,
    };
    seen.events.iter().find_map(state).expect("it is answered")
}

fn loaded(seen: &Seen, t: u64) -> u32 {
    let n_restorable = |event: &Event| match event {
        Event::SessionLoaded { transfer, n_restorable } if *transfer == TransferId(t) => Some(*n_restorable),
        _ => None,
    };
    seen.events.iter().find_map(n_restorable).expect("it is answered")
}

#[test]
fn a_state_is_loaded_beside_a_shorter_one() {
    for (memory, kv_unified) in [
        (MemoryKind::SlidingWindow(16), true),
        (MemoryKind::Full, false),
        (MemoryKind::Recurrent, true),
        (MemoryKind::Hybrid, true),
    ] {
        let cfg = || SimConfig { memory, kv_unified, ram_bytes: 1 << 30, ..config(2, 2048) };
        let mut sim = Simulation::new(cfg(), options(2));
        sim.submit(in_session("s", request(1, tokens(1, 300), 2))).expect("it may");
        run_all(&mut sim);
        sim.save_session(1, None, &key("s")).expect("it may");
        let state = saved(&run_all(&mut sim), 1);
        assert_eq!(state.n_restorable(), 301);
        // Another engine has the beginning of it in RAM, from others.
        let mut sim = Simulation::new(cfg(), options(2));
        sim.submit(in_session("o", request(1, tokens(1, 100), 0))).expect("it may");
        run_all(&mut sim);
        sim.save_session(9, None, &key("o")).expect("it may");
        run_all(&mut sim);
        sim.load_session(2, None, &key("s"), state).expect("it may");
        let n = loaded(&run_all(&mut sim), 2);
        assert_eq!(n, 301, "{memory:?} {kv_unified}");
    }
}

#[test]
fn a_load_is_answered_once_the_backend_has_it() {
    let mut sim = Simulation::new(config(2, 2048), options(2));
    let state =
        SessionState { tokens: tokens(1, 64), parts: vec![StatePart { from: 0, len: 64, state: vec![1, 2, 3] }] };
    sim.submit(request(1, tokens(3, 10), 2)).expect("it may");
    assert!(sim.begin());
    sim.load_session(1, None, &key("s"), state).expect("it may");
    let seen = run_all(&mut sim);
    assert_eq!(loaded(&seen, 1), 0, "the backend refused the state");
}

#[test]
fn a_session_is_saved_that_a_longer_sequence_stands_for() {
    let mut sim = Simulation::new(SimConfig { ram_bytes: 1 << 30, ..config(2, 2048) }, options(2));
    sim.submit(in_session("s", request(1, tokens(1, 300), 0))).expect("it may");
    run_all(&mut sim);
    sim.submit(in_session("o", request(2, [tokens(1, 300), tokens(2, 60)].concat(), 0))).expect("it may");
    run_all(&mut sim);
    sim.save_session(1, None, &key("s")).expect("it may");
    let state = saved(&run_all(&mut sim), 1);
    assert_eq!((state.tokens.len(), state.n_restorable()), (300, 300));
}

#[test]
fn a_cancelled_request_is_not_what_its_session_goes_on_from() {
    let cfg = SimConfig { ram_bytes: 1 << 30, n_batch: 32, ..config(1, 1024) };
    let mut sim =
        Simulation::new(cfg, SchedulerOptions { n_batch: 32, chunk_size: 32, n_cache_seqs: Some(1), ..options(1) });
    sim.submit(in_session("s", request(1, tokens(1, 300), 0))).expect("it may");
    run_all(&mut sim);
    sim.submit(in_session("s", request(2, tokens(2, 300), 5))).expect("it may");
    sim.step();
    sim.step();
    sim.cancel(RequestId(2));
    run_all(&mut sim);
    sim.save_session(1, None, &key("s")).expect("it may");
    let state = saved(&run_all(&mut sim), 1);
    assert_eq!(state.tokens.len(), 300, "its last finished request had 300 tokens");
}

#[test]
fn two_who_save_the_same_both_get_it() {
    let mut sim = Simulation::new(SimConfig { ram_bytes: 4 << 10, ..config(2, 2048) }, options(2));
    sim.submit(in_session("s", request(1, tokens(1, 128), 0))).expect("it may");
    run_all(&mut sim);
    sim.save_session(1, None, &key("s")).expect("it may");
    let state = saved(&run_all(&mut sim), 1);
    assert_eq!(state.n_restorable(), 128);
    let parts = (0..4).map(|at| StatePart { from: at * 64, len: 64, state: state.parts[0].state.clone() }).collect();
    let other = SessionState { tokens: tokens(2, 256), parts };
    sim.save_session(2, None, &key("s")).expect("it may");
    assert!(sim.begin());
    sim.save_session(3, None, &key("s")).expect("it may");
    assert!(sim.complete());
    sim.load_session(4, None, &key("o"), other).expect("it may");
    let seen = run_all(&mut sim);
    assert_eq!((saved(&seen, 2).n_restorable(), saved(&seen, 3).n_restorable()), (128, 128));
}
