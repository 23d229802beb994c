//! Answers, to many threads at once.

use super::*;
use llama_batch::engine::{Interest, Signal, State, Waker};
use std::collections::BTreeSet;

#[test]
fn an_answer_comes_in_chunks_that_make_its_text_and_ends_once() {
    let engine = ready(options(4), None);
    let ticket = submit(&engine, "hello", 20);
    let (text, tokens, finished) = read(ticket.mailbox());
    assert_eq!(finished.end, Ok(FinishReason::MaxTokens));
    assert_eq!((tokens.len(), finished.usage.generated_tokens), (20, 20));
    assert_eq!(finished.usage.prompt_tokens, 5);
    let so_far = &ticket.mailbox().so_far()[0];
    assert_eq!((&so_far.text, &so_far.tokens), (&text, &tokens));
    assert_eq!(ticket.mailbox().take(), None);
}

#[test]
fn chunks_that_nobody_took_run_together() {
    let engine = ready(options(1), None);
    let ticket = submit(&engine, "hello", 20);
    end(&ticket);
    let Some(Item::Chunk(chunk)) = ticket.mailbox().take() else { panic!("no chunk") };
    let so_far = &ticket.mailbox().so_far()[0];
    assert_eq!((&chunk.text, &chunk.tokens), (&so_far.text, &so_far.tokens));
    assert!(matches!(ticket.mailbox().take(), Some(Item::End(_))));
}

#[test]
fn a_pass_that_takes_longer_than_a_limit_ends_nobody_whom_it_brought_forward() {
    let gate = Arc::new(Gate::default());
    let engine = ready(options(1), Some(&gate));
    let stall_timeout = Some(0.5);
    let request = RequestOptions { max_tokens: 3, stall_timeout, ..RequestOptions::default() };
    let ticket = engine.submit(Prompt::Text("prompt".into()), request, Mode::Generate).unwrap();
    gate.wait_for_arrival();
    std::thread::sleep(Duration::from_millis(600));
    gate.open();
    assert_eq!(end(&ticket).end, Ok(FinishReason::MaxTokens));
}

#[test]
fn every_thread_gets_its_own_answers() {
    let engine = ready(StartOptions { max_queue: 0, ..options(4) }, None);
    let alone = |prompt: &str| read(submit(&engine, prompt, 12).mailbox()).0;
    let expected: Vec<String> = (0..8).map(|i| alone(&format!("prompt {i}"))).collect();
    std::thread::scope(|scope| {
        for (i, expected) in expected.iter().enumerate() {
            let engine = engine.clone();
            scope.spawn(move || {
                let tickets: Vec<_> = (0..10).map(|_| submit(&engine, &format!("prompt {i}"), 12)).collect();
                for ticket in &tickets {
                    assert_eq!(&read(ticket.mailbox()).0, expected);
                }
            });
        }
    });
    let stats = engine.stats().unwrap();
    assert_eq!((stats.core.n_submitted, stats.core.n_finished, stats.in_flight), (88, 88, 0));
}

#[test]
fn ids_ascend_in_the_order_of_submission() {
    let engine = ready(StartOptions { max_queue: 1, ..options(1) }, None);
    let ids: Vec<_> = (0..20).map(|_| submit(&engine, "prompt", 1).id()).collect();
    assert!(ids.is_sorted() && ids.iter().collect::<BTreeSet<_>>().len() == 20);
}

#[test]
fn a_request_without_a_seed_draws_one_and_tells_it() {
    let engine = ready(options(1), None);
    let submit = |seed| {
        let options = RequestOptions { max_tokens: 8, seed, ..RequestOptions::default() };
        engine.submit(Prompt::Text("prompt".into()), options, Mode::Generate).unwrap()
    };
    let drawn = submit(None);
    let again = submit(Some(drawn.seed()));
    assert_eq!(read(drawn.mailbox()).0, read(again.mailbox()).0);
    assert_eq!(again.seed(), drawn.seed());
    assert_ne!(submit(None).seed(), submit(None).seed());
}

#[derive(Default)]
struct Counts {
    marked: Vec<u64>,
    n_wakes: u64,
}

#[derive(Default)]
struct CountingWaker(Mutex<Counts>);

impl Waker for CountingWaker {
    fn mark(&self, key: u64) {
        self.0.lock().unwrap().marked.push(key);
    }

    fn wake(&self) {
        self.0.lock().unwrap().n_wakes += 1;
    }
}

/// Four requests that run together to their end, each marked under its number; what the waker saw.
fn watched(interest: Interest) -> (Counts, u64) {
    let (gate, counting) = (Arc::new(Gate::default()), Arc::new(CountingWaker::default()));
    let engine = engine(options(4));
    let waker: Arc<dyn Waker> = Arc::clone(&counting) as _;
    let tickets: Vec<_> = (0..4).map(|_| submit(&engine, "prompt", 10)).collect();
    for (key, ticket) in (0..).zip(&tickets) {
        assert!(!ticket.mailbox().subscribe(interest, Signal::new(Arc::clone(&waker), key)));
        assert!(!ticket.mailbox().subscribe(interest, Signal::new(Arc::clone(&waker), key)), "twice is once");
    }
    engine.load(loader(4, Some(&gate), None));
    gate.open();
    for ticket in &tickets {
        end(ticket);
    }
    assert!(tickets[0].mailbox().subscribe(interest, Signal::new(waker, 0)), "something is there already");
    // The engine's last turn is over once its thread is.
    assert_eq!(engine.close(true, None), Ok(true));
    let counts = std::mem::take(&mut *counting.0.lock().unwrap());
    (counts, engine.stats().unwrap().core.n_ticks)
}

#[test]
fn a_waker_is_woken_once_a_tick_for_all_the_requests_that_it_serves() {
    let (counts, n_ticks) = watched(Interest::Items);
    assert!(counts.n_wakes <= n_ticks, "{} wakes in {n_ticks} ticks", counts.n_wakes);
    assert!(counts.marked.len() as u64 > counts.n_wakes);
    assert_eq!(counts.marked.iter().collect::<BTreeSet<_>>().len(), 4);
}

#[test]
fn who_waits_for_the_end_is_not_woken_for_each_token() {
    let (counts, _) = watched(Interest::End);
    let mut marked = counts.marked;
    marked.sort_unstable();
    assert_eq!(marked, [0, 1, 2, 3]);
}

#[test]
fn who_takes_back_a_signal_is_left_alone() {
    let gate = Arc::new(Gate::default());
    let engine = ready(options(1), Some(&gate));
    let ticket = submit(&engine, "prompt", 5);
    let counting = Arc::new(CountingWaker::default());
    let signal = Signal::new(Arc::clone(&counting) as Arc<dyn Waker>, 1);
    ticket.mailbox().subscribe(Interest::Items, signal.clone());
    ticket.mailbox().unsubscribe(&signal);
    gate.open();
    end(&ticket);
    assert_eq!(engine.close(true, None), Ok(true));
    assert_eq!(counting.0.lock().unwrap().n_wakes, 0);
}

#[test]
fn an_engine_says_when_it_is_ready() {
    let gate = Arc::new(Gate::default());
    let engine = engine(options(3));
    let counting = Arc::new(CountingWaker::default());
    let signal = Signal::new(Arc::clone(&counting) as Arc<dyn Waker>, 9);
    assert!(!engine.on_loaded(signal.clone()));
    assert_eq!((engine.state(), engine.model().err()), (State::Loading, Some(Error::EngineNotReady)));
    assert_eq!(engine.stats().unwrap().core.n_parallel, 3);
    engine.load(loader(3, None, Some(&gate)));
    gate.open();
    assert_eq!(engine.wait_ready(None), Ok(true));
    assert!(engine.on_loaded(signal));
    assert!(engine.model().is_ok() && engine.limits().is_some());
    assert_eq!(engine.close(true, None), Ok(true));
    let counts = counting.0.lock().unwrap();
    assert_eq!((counts.marked.as_slice(), counts.n_wakes), (&[9][..], 1));
}
