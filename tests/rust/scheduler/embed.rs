//! Texts that become vectors, between those that generate and among themselves.

use super::*;
use llama_batch::backend::sim::Fault;
use llama_batch::core::{Embed, Embedded};
use llama_batch::error::{TextBound, TimeoutKind};
use llama_batch::options::{EmbedOptions, Normalize, Pooling};
use std::time::Duration;

/// A request for the vectors of these texts, as the model gives them.
pub(super) fn embedding(id: u64, texts: Vec<Vec<Token>>) -> Request {
    with(id, texts, Pooling::Auto, Normalize::NONE)
}

fn with(id: u64, texts: Vec<Vec<Token>>, pooling: Pooling, normalize: Normalize) -> Request {
    let texts = texts.into_iter().map(Into::into).collect();
    let embed = Some(Embed { texts, pooling, normalize });
    Request { id: RequestId(id), embed, ..Request::embedding(&EmbedOptions::default()) }
}

fn texts(which: u64, lens: &[u32]) -> Vec<Vec<Token>> {
    (0..).zip(lens).map(|(i, len)| tokens(which * 100 + i, *len)).collect()
}

/// What a request got.
pub(super) fn embedded(seen: &Seen, id: u64) -> Option<&Embedded> {
    let mut found = seen.events.iter().filter_map(|event| match event {
        Event::Embedded { request, embedded } if request.0 == id => Some(embedded),
        _ => None,
    });
    let first = found.next();
    assert!(found.next().is_none(), "request {id} gets its vectors once");
    first
}

/// The vectors of a request that is alone, on a backend that reads each text in one pass.
pub(super) fn embedded_alone(request: &Request) -> Embedded {
    let config = SimConfig { n_batch: 8192, ..config(1, 8192) };
    let options = SchedulerOptions { n_batch: 8192, ..options(1) };
    let mut sim = Simulation::new(config, options);
    let request = Request { timeout: None, queue_timeout: None, ..request.clone() };
    let id = request.id.0;
    sim.submit(request).expect("it fits");
    embedded(&run_all(&mut sim), id).expect("it ends").clone()
}

fn order_of_ends(seen: &Seen) -> Vec<u64> {
    let ended = |event: &Event| if let Event::Finished(end) = event { Some(end.request.0) } else { None };
    seen.events.iter().filter_map(ended).collect()
}

#[test]
fn each_text_gets_the_vector_that_it_gets_alone() {
    let mut sim = Simulation::new(config(2, 4096), options(2));
    let requests: Vec<Request> = (1..=6).map(|id| embedding(id, texts(id, &[5, 1, 300, 700, 40]))).collect();
    for r in &requests {
        sim.submit(r.clone()).expect("room");
    }
    sim.submit(request(7, prompt(100), 60)).expect("room");
    let seen = run_all(&mut sim);
    for r in &requests {
        assert_eq!(seen.end(r.id.0), &Ok(FinishReason::Embedded));
        assert_eq!(embedded(&seen, r.id.0), Some(&embedded_alone(r)));
        assert_eq!(seen.ends[&r.id.0].usage.prompt_tokens, 1046);
        assert_eq!(seen.ends[&r.id.0].n_prefilled, 1046);
    }
    assert_eq!(seen.text[&7], alone(&request(7, prompt(100), 60)));
    let stats = sim.stats();
    assert_eq!((stats.n_embedded_texts, stats.n_embedded_tokens, stats.embedding_requests), (30, 6 * 1046, 0));
}

#[test]
fn poolings_and_norms_are_those_that_were_asked_for() {
    let mut sim = Simulation::new(config(1, 4096), options(1));
    let text = texts(1, &[90]);
    let ask = |id, pooling, normalize| with(id, text.clone(), pooling, normalize);
    sim.submit(ask(1, Pooling::None, Normalize::NONE)).expect("room");
    sim.submit(ask(2, Pooling::Cls, Normalize::NONE)).expect("room");
    sim.submit(ask(3, Pooling::Last, Normalize::NONE)).expect("room");
    sim.submit(ask(4, Pooling::Auto, Normalize::NONE)).expect("room");
    sim.submit(ask(5, Pooling::Mean, Normalize::EUCLIDEAN)).expect("room");
    let seen = run_all(&mut sim);
    let vector = |id| &embedded(&seen, id).expect("it ended").vectors[0];
    let all = vector(1);
    assert_eq!(all.len(), 90 * 16);
    assert_eq!(vector(2), &all[..16]);
    assert_eq!(vector(3), &all[89 * 16..]);
    for (i, value) in vector(4).iter().enumerate() {
        let mean = all.iter().skip(i).step_by(16).map(|value| f64::from(*value)).sum::<f64>() / 90.0;
        assert!((f64::from(*value) - mean).abs() < 1e-6);
    }
    assert_eq!(embedded(&seen, 4).expect("it ended").pooling, Pooling::Mean);
    let length = vector(5).iter().map(|value| f64::from(*value).powi(2)).sum::<f64>();
    assert!((length - 1.0).abs() < 1e-6, "{length}");
}

#[test]
fn a_stream_goes_on_beside_texts_with_short_passes_of_theirs() {
    let mut sim = Simulation::new(config(1, 8192), options(1));
    sim.submit(request(1, prompt(5), 20)).expect("room");
    while sim.stats().n_generated_tokens == 0 {
        sim.step();
    }
    sim.submit(embedding(2, texts(2, &[1500, 300, 300]))).expect("room");
    let seen = run_all(&mut sim);
    let passes: Vec<(u32, u32)> = seen
        .events
        .iter()
        .filter_map(|event| match event {
            Event::Tick { decode_tokens, prefill_tokens, .. } => Some((*decode_tokens, *prefill_tokens)),
            _ => None,
        })
        .collect();
    let until = passes.iter().rposition(|(decode, _)| *decode == 1).expect("it generates");
    let beside = &passes[2..until];
    assert!(beside.len() > 30, "the test tests nothing");
    assert!(beside.windows(2).all(|two| two[0].0 + two[1].0 == 1), "one of each kind by turns: {beside:?}");
    assert!(beside.iter().all(|(_, rows)| *rows <= 64), "{beside:?}");
    let after = &passes[until + 1..];
    assert!(after.iter().all(|(decode, rows)| *decode == 0 && *rows <= 512), "{after:?}");
    assert!(after.iter().any(|(_, rows)| *rows > 64), "alone they have longer passes");
    assert_eq!(embedded(&seen, 2), Some(&embedded_alone(&embedding(2, texts(2, &[1500, 300, 300])))));
}

#[test]
fn a_text_that_is_read_whole_is_alone_beside_a_stream() {
    let encoder = SimConfig { is_encoder: true, ..config(1, 8192) };
    let mut sim = Simulation::new(encoder, options(1));
    sim.submit(embedding(1, texts(1, &[500, 12, 500, 500]))).expect("room");
    let seen = run_all(&mut sim);
    let rows: Vec<u32> = seen
        .events
        .iter()
        .filter_map(|event| if let Event::Tick { batch_size, .. } = event { Some(*batch_size) } else { None })
        .collect();
    assert_eq!(rows, [512, 500, 500]);
}

#[test]
fn who_has_many_texts_keeps_nobody_waiting_and_the_urgent_go_first() {
    let mut sim = Simulation::new(config(1, 8192), options(1));
    sim.submit(embedding(1, texts(1, &[200; 60]))).expect("room");
    for id in 2..=4 {
        sim.submit(embedding(id, texts(id, &[200, 200]))).expect("room");
    }
    sim.submit(Request { priority: -1, ..embedding(5, texts(5, &[200; 8])) }).expect("room");
    sim.submit(Request { priority: 1, ..embedding(6, texts(6, &[1])) }).expect("room");
    assert_eq!(order_of_ends(&run_all(&mut sim)), [5, 2, 3, 4, 1, 6]);
}

#[test]
fn neither_kind_starves_the_other() {
    let mut sim = Simulation::new(config(1, 8192), options(1));
    sim.submit(embedding(1, texts(1, &[512; 40]))).expect("room");
    sim.submit(request(2, prompt(2000), 5)).expect("room");
    assert_eq!(order_of_ends(&run_all(&mut sim)), [2, 1]);
    // And the other way round: a long answer does not hold up a text.
    sim.submit(request(3, prompt(100), 2000)).expect("room");
    sim.submit(embedding(4, texts(4, &[512; 4]))).expect("room");
    assert_eq!(order_of_ends(&run_all(&mut sim)), [4, 3]);
}

#[test]
fn what_cannot_be_embedded_is_refused_with_its_reason() {
    let mut sim = Simulation::new(config(1, 1024), options(1));
    assert_eq!(sim.submit(embedding(1, vec![])), Err(Error::EmptyPrompt));
    assert_eq!(sim.submit(embedding(2, vec![vec![1], vec![]])), Err(Error::EmptyPrompt));
    assert!(matches!(sim.submit(embedding(3, vec![vec![512]])), Err(Error::Prompt(_))));
    assert!(matches!(sim.submit(embedding(4, vec![vec![-1]])), Err(Error::Prompt(_))));
    let long = sim.submit(embedding(5, texts(1, &[7, 1025])));
    assert_eq!(long, Err(Error::TextTooLong { index: 1, n_tokens: 1025, n_max: 1024, bound: TextBound::Context }));
    sim.submit(embedding(6, texts(1, &[7, 1024]))).expect("it fits");
    assert_eq!(run_all(&mut sim).end(6), &Ok(FinishReason::Embedded));
    let mut none = Simulation::new(SimConfig { n_embd: 0, ..config(1, 1024) }, options(1));
    assert!(matches!(none.submit(embedding(1, texts(1, &[3]))), Err(Error::Unsupported(_))));
    let mut encoder = Simulation::new(SimConfig { is_encoder: true, ..config(1, 1024) }, options(1));
    assert!(matches!(encoder.submit(request(1, prompt(3), 1)), Err(Error::Unsupported(_))));
    let long = encoder.submit(embedding(2, texts(1, &[513])));
    assert_eq!(long, Err(Error::TextTooLong { index: 0, n_tokens: 513, n_max: 512, bound: TextBound::Pass }));
    encoder.submit(embedding(3, texts(1, &[512, 9]))).expect("it fits");
    assert_eq!(run_all(&mut encoder).end(3), &Ok(FinishReason::Embedded));
}

#[test]
fn they_count_against_the_bound_of_the_queue() {
    let mut sim = Simulation::new(config(1, 1024), SchedulerOptions { max_queue: 2, ..options(1) });
    sim.submit(request(1, prompt(3), 1)).expect("room");
    sim.submit(embedding(2, texts(2, &[3; 50]))).expect("room");
    sim.submit(embedding(3, texts(3, &[3]))).expect("room");
    assert_eq!(sim.submit(embedding(4, texts(4, &[3]))), Err(queue_full(2)));
    assert_eq!(sim.submit(request(5, prompt(3), 1)), Err(queue_full(2)));
    assert_eq!(run_all(&mut sim).ends.len(), 3);
}

#[test]
fn cancelled_while_waiting_or_in_a_pass_it_ends_once_and_the_others_go_on() {
    let mut sim = Simulation::new(config(1, 8192), options(1));
    // A text of several passes, then whole ones.
    sim.submit(embedding(1, texts(1, &[2000, 20]))).expect("room");
    sim.submit(embedding(2, texts(2, &[20]))).expect("room");
    sim.submit(embedding(3, texts(3, &[20]))).expect("room");
    assert!(sim.begin());
    sim.cancel(RequestId(1));
    sim.cancel(RequestId(1));
    sim.cancel(RequestId(2));
    let seen = run_all(&mut sim);
    assert_eq!(order_of_ends(&seen), [2, 1, 3]);
    assert_eq!(seen.end(1), &Ok(FinishReason::Cancelled));
    assert_eq!(seen.end(2), &Ok(FinishReason::Cancelled));
    assert_eq!((embedded(&seen, 1), embedded(&seen, 2)), (None, None));
    assert_eq!(embedded(&seen, 3), Some(&embedded_alone(&embedding(3, texts(3, &[20])))));
    assert_eq!(sim.stats().n_cancelled, 2);
}

#[test]
fn limits_of_time_hold_for_texts_too() {
    let timed = |timeout, queue_timeout, r| Request { timeout, queue_timeout, ..r };
    let ms = |n| Some(Duration::from_millis(n));
    let mut sim = Simulation::new(config(1, 8192), options(1));
    // Passes of 512 rows take a second.
    sim.submit(timed(ms(1500), None, embedding(1, texts(1, &[512; 9])))).expect("room");
    sim.submit(timed(None, ms(100), Request { priority: 1, ..embedding(2, texts(2, &[9])) })).expect("room");
    sim.submit(timed(None, ms(100), Request { priority: -1, ..embedding(3, texts(3, &[512; 3])) })).expect("room");
    let seen = run_all(&mut sim);
    let late = |kind, limit_s| Err(Error::RequestTimeout { kind, limit_s });
    assert_eq!(seen.end(1), &late(TimeoutKind::Total, 1.5));
    assert_eq!(seen.end(2), &late(TimeoutKind::Queue, 0.1));
    assert_eq!(seen.end(3), &Ok(FinishReason::Embedded), "once it began, its time in the queue is over");
    assert_eq!(sim.next_timeout(), None);
}

#[test]
fn a_pass_that_fails_is_done_again_and_who_fails_twice_fails_alone() {
    let two = || [embedding(1, texts(1, &[30, 30])), embedding(2, texts(2, &[2000]))];
    for fault in [Fault::KvFull, Fault::Fail(2), Fault::Fail(-1), Fault::Fail(-3)] {
        let mut sim = Simulation::new(config(1, 8192), options(1));
        for r in two() {
            sim.submit(r).expect("room");
        }
        sim.step();
        sim.inject(fault);
        let seen = run_all(&mut sim);
        for r in two() {
            assert_eq!(embedded(&seen, r.id.0), Some(&embedded_alone(&r)), "{fault:?}");
        }
    }
    let mut sim = Simulation::new(config(1, 8192), options(1));
    sim.submit(embedding(1, texts(1, &[30]))).expect("room");
    sim.submit(embedding(2, texts(2, &[30]))).expect("room");
    // The pass of both, then that of the first alone.
    sim.inject(Fault::Fail(-3));
    sim.inject(Fault::Fail(-3));
    let seen = run_all(&mut sim);
    let failed = seen.ends.values().filter(|end| matches!(end.end, Err(Error::Inference(_)))).count();
    assert_eq!((failed, seen.ends.len()), (1, 2), "{:?}", seen.ends);
}

#[test]
fn its_events_are_those_of_all_requests() {
    let mut sim = Simulation::new(config(1, 8192), options(1));
    sim.submit(embedding(1, texts(1, &[600, 2]))).expect("room");
    let seen = run_all(&mut sim);
    let names: Vec<&str> = seen
        .events
        .iter()
        .map(|event| match event {
            Event::Queued { prompt_tokens: 602, .. } => "queued",
            Event::Started { seq: None, prompt_tokens: 602, .. } => "started",
            Event::Tick { decode_tokens: 0, .. } => "tick",
            Event::Embedded { .. } => "embedded",
            Event::Finished(end) if end.mode == Mode::Embed && end.seq.is_none() => "finished",
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(names, ["queued", "started", "tick", "tick", "tick", "embedded", "finished"]);
}
