//! Too few cells, and passes that fail: nobody is lost, nobody's text changes.

use super::*;
use llama_batch::backend::sim::Fault;
use llama_batch::core::MemoryKind;

#[test]
fn twice_as_many_tokens_as_cells_all_complete_with_their_own_text() {
    let mut sim = Simulation::new(config(4, 256), options(4));
    let requests: Vec<Request> = (1..=8).map(|id| request(id, prompt(40 + id as u32), 100)).collect();
    for r in &requests {
        sim.submit(r.clone()).expect("room in the queue");
    }
    let seen = run_all(&mut sim);
    for r in &requests {
        assert_eq!(seen.end(r.id.0), &Ok(FinishReason::MaxTokens));
        assert_eq!(seen.text[&r.id.0], alone(r));
    }
    assert!(seen.events.iter().any(|e| matches!(e, Event::Parked { .. })), "the run was tight enough to park");
    assert!(seen.events.iter().any(|e| matches!(e, Event::Resumed { .. })));
}

#[test]
fn the_oldest_is_never_parked() {
    let mut sim = Simulation::new(config(4, 200), options(4));
    for id in 1..=6 {
        sim.submit(request(id, prompt(30), 120)).expect("room");
    }
    let seen = run_all(&mut sim);
    let parked: Vec<u64> = seen
        .events
        .iter()
        .filter_map(|e| if let Event::Parked { request, .. } = e { Some(request.0) } else { None })
        .collect();
    assert!(!parked.is_empty() && !parked.contains(&1), "{parked:?}");
}

#[test]
fn the_oldest_of_the_most_urgent_is_never_parked_and_the_least_urgent_yields_first() {
    let mut sim = Simulation::new(config(4, 260), options(4));
    for (id, priority) in [(1, 5), (2, 0), (3, 0), (4, 5)] {
        sim.submit(Request { priority, ..request(id, prompt(30), 120) }).expect("room");
    }
    let seen = run_all(&mut sim);
    let parked =
        seen.events.iter().filter_map(|e| if let Event::Parked { request, .. } = e { Some(request.0) } else { None });
    let parked: Vec<u64> = parked.collect();
    assert_eq!(parked[..2], [4, 1], "{parked:?}");
    assert!(!parked.contains(&2), "{parked:?}");
    assert!((1..=4).all(|id| seen.end(id) == &Ok(FinishReason::MaxTokens)));
}

#[test]
fn slots_go_by_priority_and_then_by_arrival() {
    let mut sim = Simulation::new(config(1, 512), options(1));
    for (id, priority) in [(1, 0), (2, 1), (3, -1), (4, 1), (5, -1)] {
        sim.submit(Request { priority, cache_prompt: false, ..request(id, prompt(8), 4) }).expect("room");
    }
    let seen = run_all(&mut sim);
    let started =
        seen.events.iter().filter_map(|e| if let Event::Started { request, .. } = e { Some(request.0) } else { None });
    assert_eq!(started.collect::<Vec<u64>>(), [3, 5, 1, 2, 4]);
}

#[test]
fn a_request_that_fills_its_context_alone_ends_with_all_its_text() {
    let mut sim = Simulation::new(config(2, 64), options(2));
    sim.submit(request(1, prompt(20), 500)).expect("room");
    let seen = run_all(&mut sim);
    assert_eq!(seen.end(1), &Ok(FinishReason::ContextFull));
    assert_eq!(seen.ends[&1].usage.generated_tokens, 64 - 20 + 1, "the last token needs no cell");
}

#[test]
fn a_prompt_that_can_never_fit_is_refused_with_both_numbers() {
    let mut sim = Simulation::new(config(2, 64), options(2));
    let refused = sim.submit(request(1, prompt(64), 5));
    assert_eq!(refused, Err(Error::ContextFull { n_prompt_tokens: 64, n_ctx: 64 }));
    assert_eq!(sim.submit(request(2, vec![], 5)), Err(Error::EmptyPrompt));
    assert!(matches!(sim.submit(request(3, vec![1, 512], 5)), Err(Error::Prompt(_))));
    assert!(matches!(sim.submit(request(4, vec![-1], 5)), Err(Error::Prompt(_))));
    sim.submit(request(5, prompt(63), 5)).expect("one cell is left for the answer");
    assert_eq!(run_all(&mut sim).ends.len(), 1);
}

#[test]
fn every_code_of_a_failed_pass_is_survived_once_and_the_text_is_the_same() {
    for code in [2, -1, -2, -3] {
        for memory in [MemoryKind::Full, MemoryKind::Recurrent, MemoryKind::SlidingWindow(32)] {
            let mut sim = Simulation::new(SimConfig { memory, ..config(2, 512) }, options(2));
            let requests = [request(1, prompt(40), 30), request(2, prompt(9), 30)];
            for r in &requests {
                sim.submit(r.clone()).expect("room");
            }
            let mut seen = Seen::default();
            for _ in 0..10 {
                sim.step();
                seen.take(&mut sim);
            }
            sim.inject(Fault::Fail(code));
            run_on(&mut sim, &mut seen);
            for r in &requests {
                assert_eq!(seen.end(r.id.0), &Ok(FinishReason::MaxTokens), "code {code}, {memory:?}");
                assert_eq!(seen.text[&r.id.0], alone(r), "code {code}, {memory:?}");
            }
        }
    }
}

#[test]
fn two_failures_in_a_row_fail_those_in_the_pass_and_nobody_else() {
    let mut sim = Simulation::new(config(1, 512), options(1));
    sim.submit(request(1, prompt(10), 30)).expect("room");
    sim.submit(request(2, prompt(10), 30)).expect("room");
    sim.inject(Fault::Fail(-3));
    sim.inject(Fault::Fail(-3));
    let seen = run_all(&mut sim);
    assert!(matches!(seen.end(1), Err(Error::Inference(_))));
    assert_eq!(seen.end(2), &Ok(FinishReason::MaxTokens));
}

#[test]
fn refusals_and_failed_samplers_hurt_only_their_own_request() {
    for fault in [Fault::RefuseCopy, Fault::RefuseOpen, Fault::FailDraw, Fault::KvFull] {
        let mut sim = Simulation::new(config(2, 512), options(2));
        sim.submit(request(1, prompt(60), 5)).expect("room");
        run_all(&mut sim);
        sim.inject(fault);
        let second = request(2, prompt(70), 10);
        let third = request(3, prompt(80), 10);
        sim.submit(second.clone()).expect("room");
        sim.submit(third.clone()).expect("room");
        let seen = run_all(&mut sim);
        let n_failed = seen.ends.values().filter(|end| end.end.is_err()).count();
        let hits_one = matches!(fault, Fault::RefuseOpen | Fault::FailDraw);
        assert_eq!(n_failed, usize::from(hits_one), "{fault:?}");
        for r in [second, third] {
            if seen.end(r.id.0).is_ok() {
                assert_eq!(seen.text[&r.id.0], alone(&r));
            }
        }
    }
}
