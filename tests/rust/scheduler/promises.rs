//! Who gets what, in which order, with which prefix and for how long.

use super::*;
use llama_batch::core::PrefixSource;
use llama_batch::error::TimeoutKind;
use llama_batch::options::Key;
use std::time::Duration;

#[test]
fn many_requests_share_passes_and_each_gets_the_text_that_it_gets_alone() {
    let mut sim = Simulation::new(config(4, 8192), options(4));
    let requests: Vec<Request> = (1..=12).map(|id| request(id, prompt(id as u32 * 7), 20)).collect();
    for r in &requests {
        sim.submit(r.clone()).expect("there is room");
    }
    let seen = run_all(&mut sim);
    for r in &requests {
        assert_eq!(seen.end(r.id.0), &Ok(FinishReason::MaxTokens));
        assert_eq!(seen.text[&r.id.0], alone(r));
    }
    let most = seen
        .events
        .iter()
        .filter_map(|e| if let Event::Tick { decode_tokens, .. } = e { Some(*decode_tokens) } else { None });
    assert_eq!(most.max(), Some(4), "four requests decode in one pass");
}

#[test]
fn a_prompt_is_read_in_chunks_beside_running_decodes() {
    let mut sim =
        Simulation::new(config(2, 8192), SchedulerOptions { chunk_size: 100, max_itl: Duration::ZERO, ..options(2) });
    sim.submit(request(1, prompt(5), 50)).expect("room");
    for _ in 0..5 {
        sim.step();
    }
    sim.submit(Request { cache_prompt: false, ..request(2, prompt(350), 5) }).expect("room");
    let seen = run_all(&mut sim);
    let mixed: Vec<(u32, u32)> = seen
        .events
        .iter()
        .filter_map(|e| {
            if let Event::Tick { decode_tokens, prefill_tokens, .. } = e {
                Some((*decode_tokens, *prefill_tokens))
            } else {
                None
            }
        })
        .filter(|(_, prefill)| *prefill > 1)
        .collect();
    assert_eq!(mixed, [(0, 5), (1, 100), (1, 100), (1, 100), (1, 50)]);
}

#[test]
fn a_finished_prefix_is_forked_by_the_next_turn_and_the_text_is_the_same() {
    let mut sim = Simulation::new(config(2, 8192), options(2));
    let first = request(1, prompt(100), 10);
    sim.submit(first).expect("room");
    run_all(&mut sim);
    let mut longer = prompt(100);
    longer.extend(prompt(30));
    let second = request(2, longer, 10);
    sim.submit(second.clone()).expect("room");
    let seen = run_all(&mut sim);
    assert_eq!(seen.ends[&2].usage.prefix_cache_tokens, 100);
    assert_eq!(seen.ends[&2].prefix_source, PrefixSource::Donor);
    assert_eq!(seen.text[&2], alone(&second));
}

#[test]
fn the_last_token_of_a_prompt_is_always_computed() {
    let mut sim = Simulation::new(config(2, 8192), options(2));
    for id in 1..=2 {
        sim.submit(request(id, prompt(100), 4)).expect("room");
        let seen = run_all(&mut sim);
        assert_eq!(seen.ends[&id].usage.prefix_cache_tokens, if id == 1 { 0 } else { 99 });
    }
}

#[test]
fn another_scope_never_sees_the_prefix_and_the_same_scope_does() {
    let mut sim = Simulation::new(config(2, 8192), options(2));
    let scoped =
        |id: u64, scope: Option<&str>| Request { scope: scope.map(|s| Key(s.into())), ..request(id, prompt(80), 3) };
    let mut cached = Vec::new();
    for (id, scope) in [(1, Some("a")), (2, Some("b")), (3, None), (4, Some("a")), (5, None)] {
        sim.submit(scoped(id, scope)).expect("room");
        cached.push(run_all(&mut sim).ends[&id].usage.prefix_cache_tokens);
    }
    assert_eq!(cached, [0, 0, 0, 79, 79]);
}

#[test]
fn opting_out_neither_reuses_nor_keeps() {
    let mut sim = Simulation::new(config(2, 8192), options(2));
    sim.submit(Request { cache_prompt: false, ..request(1, prompt(80), 3) }).expect("room");
    run_all(&mut sim);
    assert_eq!((sim.stats().cached_sequences, sim.stats().kv_cells_used), (0, 0));
    sim.submit(request(2, prompt(80), 3)).expect("room");
    run_all(&mut sim);
    sim.submit(Request { cache_prompt: false, ..request(3, prompt(80), 3) }).expect("room");
    assert_eq!(run_all(&mut sim).ends[&3].usage.prefix_cache_tokens, 0);
}

#[test]
fn the_queue_has_a_bound_and_queued_work_completes() {
    let mut sim = Simulation::new(config(1, 512), SchedulerOptions { max_queue: 1, ..options(1) });
    sim.submit(request(1, prompt(5), 3)).expect("the slot");
    sim.submit(request(2, prompt(5), 3)).expect("the queue");
    assert_eq!(sim.submit(request(3, prompt(5), 3)), Err(queue_full(1)));
    assert_eq!(run_all(&mut sim).ends.len(), 2);
}

#[test]
fn no_tokens_asked_for_reads_the_prompt_and_ends() {
    let mut sim = Simulation::new(config(1, 512), options(1));
    sim.submit(request(1, prompt(50), 0)).expect("room");
    let seen = run_all(&mut sim);
    assert_eq!(seen.end(1), &Ok(FinishReason::MaxTokens));
    assert_eq!(seen.ends[&1].usage.generated_tokens, 0);
    sim.submit(request(2, prompt(50), 2)).expect("room");
    assert_eq!(run_all(&mut sim).ends[&2].usage.prefix_cache_tokens, 49, "it warmed the cache");
}

#[test]
fn time_outs_end_requests_in_the_queue_and_in_slots_with_the_option_that_set_them() {
    let mut sim = Simulation::new(config(1, 512), options(1));
    sim.submit(Request { timeout: Some(Duration::from_millis(100)), ..request(1, prompt(5), 400) }).expect("room");
    sim.submit(Request { queue_timeout: Some(Duration::from_millis(50)), ..request(2, prompt(5), 4) }).expect("room");
    sim.submit(request(3, prompt(5), 4)).expect("room");
    let seen = run_all(&mut sim);
    let kind = |id: u64| if let Err(Error::RequestTimeout { kind, .. }) = seen.end(id) { Some(*kind) } else { None };
    assert_eq!((kind(1), kind(2), kind(3)), (Some(TimeoutKind::Total), Some(TimeoutKind::Queue), None));
    assert!(seen.ends[&1].usage.generated_tokens > 0, "what was generated is kept");
}

#[test]
fn a_prompt_that_waits_for_its_turn_behind_long_ones_does_not_stall() {
    let mut sim = Simulation::new(config(4, 8192), SchedulerOptions { n_batch: 64, chunk_size: 64, ..options(4) });
    for id in 1..=4 {
        let own = (0..1500).map(|i| ((id * 31 + i) % 250) as Token).collect();
        // A pass takes some 140 ms, a whole prompt over 3 s.
        sim.submit(Request { stall_timeout: Some(Duration::from_secs(1)), ..request(id, own, 2) }).expect("room");
    }
    let seen = run_all(&mut sim);
    assert!((1..=4).all(|id| seen.end(id) == &Ok(FinishReason::MaxTokens)));
}

#[test]
fn a_request_stalls_only_while_it_holds_a_slot_and_makes_no_progress() {
    let mut sim = Simulation::new(config(1, 512), options(1));
    sim.submit(Request { stall_timeout: Some(Duration::from_millis(100)), ..request(1, prompt(5), 40) }).expect("room");
    sim.advance(Duration::from_secs(10));
    sim.step();
    sim.step();
    assert!(sim.begin());
    sim.advance(Duration::from_secs(10));
    let seen = run_all(&mut sim);
    assert!(matches!(seen.end(1), Err(Error::RequestTimeout { kind: TimeoutKind::Stall, .. })));
}

#[test]
fn a_cancelled_request_ends_wherever_it_is() {
    let mut sim = Simulation::new(config(1, 512), options(1));
    for id in 1..=3 {
        sim.submit(request(id, prompt(5), 40)).expect("room");
    }
    sim.cancel(RequestId(2));
    for _ in 0..6 {
        sim.step();
    }
    assert!(sim.begin());
    sim.cancel(RequestId(1));
    sim.cancel(RequestId(1));
    sim.cancel(RequestId(99));
    let seen = run_all(&mut sim);
    assert_eq!(seen.end(1), &Ok(FinishReason::Cancelled));
    assert_eq!(seen.end(2), &Ok(FinishReason::Cancelled));
    assert_eq!(seen.ends[&2].seq, None, "it never had a sequence");
    assert_eq!(seen.end(3), &Ok(FinishReason::MaxTokens));
}

#[test]
fn rewritten_turns_of_a_session_are_told_and_a_shared_system_prompt_is_not() {
    let mut sim = Simulation::new(config(2, 8192), options(2));
    let in_session = |id: u64, session: &str, tokens: Vec<Token>| Request {
        session: Some(Key(session.into())),
        ..request(id, tokens, 3)
    };
    let with_tail = |byte: Token| [prompt(30), vec![byte; 70]].concat();
    sim.submit(in_session(1, "a", with_tail(40))).expect("room");
    sim.submit(in_session(2, "b", with_tail(41))).expect("room");
    let seen = run_all(&mut sim);
    assert!(!seen.events.iter().any(|e| matches!(e, Event::PrefixInstability { .. })));
    sim.submit(in_session(3, "a", with_tail(42))).expect("room");
    let seen = run_all(&mut sim);
    assert!(seen.events.iter().any(|e| matches!(e, Event::PrefixInstability { matched_tokens: 30, .. })));
}
