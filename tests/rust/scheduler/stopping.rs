//! What ends a request beside the model and its limits: stop strings, stop tokens, and when they may.

use super::*;
use llama_batch::core::StopCause;

fn eager() -> Simulation {
    Simulation::new(SimConfig { eog_every: 6, ..config(2, 2048) }, options(2))
}

fn run_one(sim: &mut Simulation, r: Request) -> (Finished, String, Vec<Token>) {
    let id = r.id.0;
    sim.submit(r).expect("room");
    let mut seen = run_all(sim);
    let tokens =
        seen.events.iter().filter_map(|e| if let Event::Chunk { tokens, .. } = e { Some(tokens) } else { None });
    let tokens = tokens.flatten().copied().collect();
    (seen.ends.remove(&id).expect("it ended"), seen.text.remove(&id).unwrap_or_default(), tokens)
}

fn stopping(r: Request, strings: &[&str], tokens: &[Token], include: bool) -> Request {
    let strings = strings.iter().map(ToString::to_string).collect();
    Request { stop: StopRules { strings, include, tokens: tokens.into() }, ..r }
}

fn with_min(r: Request, min_tokens: u32) -> Request {
    let sampling = SamplingParams { min_tokens, ..r.sampling.clone() };
    Request { sampling, ..r }
}

#[test]
fn a_stop_string_ends_the_answer_where_it_begins_and_its_tokens_count() {
    let mut sim = Simulation::new(config(2, 2048), options(2));
    let plain = request(1, tokens(1, 20), 60);
    let (_, full, _) = run_one(&mut sim, plain.clone());
    // Words are written " w123": the end of one, and the beginning of the next.
    let nth = full.match_indices(" w").nth(8).expect("ten words").0;
    let stop = &full[nth - 1..nth + 3];
    let at = full.find(stop).expect("it is there");
    for include in [false, true] {
        let stops = ["never said", stop];
        let asked = stopping(Request { id: RequestId(2 + u64::from(include)), ..plain.clone() }, &stops, &[], include);
        let (end, text, told) = run_one(&mut sim, asked);
        assert_eq!(end.end, Ok(FinishReason::Stop));
        assert_eq!(end.stopped_by, Some(StopCause::Text(stop.into())));
        assert_eq!(text, full[..at + if include { stop.len() } else { 0 }]);
        assert_eq!(told.len(), end.usage.generated_tokens as usize);
        assert!(told.len() < 60);
    }
}

#[test]
fn what_was_held_back_comes_when_the_answer_ends_otherwise() {
    let mut sim = Simulation::new(config(2, 2048), options(2));
    let plain = request(1, tokens(1, 20), 12);
    let (_, full, all) = run_one(&mut sim, plain.clone());
    let stop = format!("{}!", &full[full.len() - 6..]);
    let asked = stopping(Request { id: RequestId(2), ..plain }, &[&stop], &[], false);
    let (end, text, told) = run_one(&mut sim, asked);
    assert_eq!((end.end, end.stopped_by, text, told), (Ok(FinishReason::MaxTokens), None, full, all));
}

#[test]
fn a_stop_token_ends_the_answer_and_is_kept_only_if_asked_for() {
    let mut sim = Simulation::new(config(2, 2048), options(2));
    let plain = request(1, tokens(1, 20), 40);
    let (_, _, all) = run_one(&mut sim, plain.clone());
    let stop = all[9];
    let first = all.iter().position(|token| *token == stop).expect("it is there");
    for (id, include) in [(2, false), (3, true)] {
        let (end, _, told) =
            run_one(&mut sim, stopping(Request { id: RequestId(id), ..plain.clone() }, &[], &[499, stop], include));
        assert_eq!((end.end, end.stopped_by), (Ok(FinishReason::Stop), Some(StopCause::Token(stop))));
        assert_eq!(told, all[..first + usize::from(include)]);
        assert_eq!(end.usage.generated_tokens as usize, told.len());
    }
}

#[test]
fn before_min_tokens_nothing_but_limits_ends_the_answer() {
    let ends = |min_tokens| {
        let mut sim = eager();
        let asked =
            (1..=40).map(|id| with_min(stopping(request(id, tokens(id, 9), 60), &[" w"], &[310], false), min_tokens));
        asked.map(|r| run_one(&mut sim, r).0).collect::<Vec<_>>()
    };
    assert!(ends(0).iter().any(|end| end.usage.generated_tokens < 20), "the test tests nothing");
    for end in ends(20) {
        assert!(end.usage.generated_tokens >= 20, "{end:?}");
    }
}

#[test]
fn who_ignores_the_end_goes_on_to_the_limit() {
    let mut sim = eager();
    for id in 1..=20 {
        let r = request(id, tokens(id, 9), 60);
        let sampling = SamplingParams { ignore_eos: true, ..r.sampling.clone() };
        let (end, ..) = run_one(&mut sim, Request { sampling, ..r });
        assert_eq!((end.end, end.usage.generated_tokens), (Ok(FinishReason::MaxTokens), 60));
    }
}

#[test]
fn who_is_stopped_leaves_a_prefix_like_any_other() {
    let mut sim = Simulation::new(config(2, 2048), options(2));
    let asked = stopping(request(1, tokens(1, 200), 60), &[" w"], &[], false);
    assert_eq!(run_one(&mut sim, asked).0.end, Ok(FinishReason::Stop));
    let (next, ..) = run_one(&mut sim, request(2, [tokens(1, 200), tokens(2, 9)].concat(), 2));
    assert_eq!(next.usage.prefix_cache_tokens, 200);
}
