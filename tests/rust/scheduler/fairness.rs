//! Who waits for how long: between flows by what they were served, and nobody for ever.

use super::embed::embedding;
use super::*;
use llama_batch::options::Key;
use proptest::prelude::*;
use std::time::Duration;

fn of(flow: &str, r: Request) -> Request {
    Request { flow: Some(Key(flow.into())), cache_prompt: false, ..r }
}

/// Unique tokens, in a flow.
fn own(flow: &str, id: u64, n_prompt: u32, max_tokens: u32) -> Request {
    of(flow, request(id, tokens(id, n_prompt), max_tokens))
}

fn unbounded(n_parallel: u32) -> SchedulerOptions {
    SchedulerOptions { max_queue: 0, ..options(n_parallel) }
}

/// Requests come in at these times, in ms, and all are served.
fn drive(sim: &mut Simulation, arrivals: Vec<(u64, Request)>) -> Seen {
    let mut seen = Seen::default();
    let mut arrivals = arrivals.into_iter().peekable();
    loop {
        let now_ms = sim.now().0 / 1_000_000;
        while let Some((_, r)) = arrivals.next_if(|(at_ms, _)| *at_ms <= now_ms) {
            sim.submit(r).expect("there is room");
        }
        let worked = sim.step();
        seen.take(sim);
        match arrivals.peek() {
            None if !worked => return seen,
            Some((at_ms, _)) if !worked => sim.advance(Duration::from_millis(at_ms - now_ms)),
            None | Some(_) => {}
        }
    }
}

fn started(seen: &Seen) -> Vec<u64> {
    let start = |e: &Event| if let Event::Started { request, .. } = e { Some(request.0) } else { None };
    seen.events.iter().filter_map(start).collect()
}

fn parked(seen: &Seen) -> Vec<u64> {
    let park = |e: &Event| if let Event::Parked { request, .. } = e { Some(request.0) } else { None };
    seen.events.iter().filter_map(park).collect()
}

/// The time to the first token that 95 of 100 of these requests have at most.
fn p95_ttft(seen: &Seen, ids: impl Fn(u64) -> bool) -> Duration {
    let mut ttfts: Vec<Duration> =
        seen.ends.iter().filter(|(id, _)| ids(**id)).map(|(_, end)| end.timings.ttft).collect();
    ttfts.sort_unstable();
    ttfts[(ttfts.len() * 95).div_ceil(100) - 1]
}

#[test]
fn one_who_sends_twenty_times_the_others_does_not_slow_them() {
    let run = |n_flood: u64, flood: &str| {
        let mut sim = Simulation::new(config(8, 8192), unbounded(8));
        let mut arrivals = Vec::new();
        for i in 0..40 {
            let at_ms = i * 500;
            let of_flood = |j: u64| (at_ms + 20 * j, own(flood, 100 * i + j, 10 + j as u32, 5 + (i * j % 31) as u32));
            arrivals.extend((1..=n_flood).map(of_flood));
            arrivals.push((at_ms + 470, own("light", 100 * i + 99, 20, 20)));
        }
        p95_ttft(&drive(&mut sim, arrivals), |id| id % 100 == 99)
    };
    let (alone, beside, as_one) = (run(0, "flood"), run(20, "flood"), run(20, "light"));
    assert!(beside < 8 * alone, "{beside:?} beside the flood, {alone:?} alone");
    assert!(as_one > 100 * alone, "the flood was one: {as_one:?} in one line with it");
}

#[test]
fn flows_take_turns_by_tokens_and_not_by_requests() {
    let mut sim = Simulation::new(config(1, 512), unbounded(1));
    for id in 1..=4 {
        sim.submit(own("long", id, 40, 30)).expect("room");
    }
    for id in 5..=24 {
        sim.submit(own("short", id, 10, 5)).expect("room");
    }
    let seen = run_all(&mut sim);
    // A long one costs 100, a short one 20; of equal flows the one goes first whose request came first.
    let order = started(&seen);
    assert_eq!(order[..7], [1, 5, 6, 7, 8, 9, 2], "{order:?}");
}

#[test]
fn what_is_found_in_a_cache_is_free() {
    let mut sim = Simulation::new(config(1, 2048), unbounded(1));
    let alike = |id, tail: i32| Request {
        cache_prompt: true,
        ..of("cached", request(id, [prompt(100), vec![tail]].concat(), 1))
    };
    sim.submit(alike(1, 1)).expect("room");
    run_all(&mut sim);
    for id in 2..=9 {
        sim.submit(alike(id, id as i32)).expect("room");
    }
    for id in 10..=12 {
        sim.submit(own("computed", id, 20, 1)).expect("room");
    }
    // The one is ahead by its first prompt; then seven of its requests, of 3 tokens each, cost what one of the other's does.
    let order = started(&run_all(&mut sim));
    assert!(order[..3].contains(&10) && order[3..9].iter().filter(|id| **id < 10).count() >= 5, "{order:?}");
}

#[test]
fn who_was_away_has_saved_up_nothing() {
    let mut sim = Simulation::new(config(1, 512), unbounded(1));
    let busy = (1..=60).map(|id| (0, own("busy", id, 20, 5)));
    let late = (101..=120).map(|id| (2000, own("late", id, 20, 5)));
    let order = started(&drive(&mut sim, busy.chain(late).collect()));
    let first = order.iter().position(|id| *id > 100).expect("it was served");
    assert!((10..30).contains(&first), "it came in the middle: {order:?}");
    let n_late = order[first..first + 20].iter().filter(|id| **id > 100).count();
    assert!((9..=11).contains(&n_late), "they take turns: {order:?}");
}

#[test]
fn who_leaves_and_comes_back_is_not_new() {
    let mut sim = Simulation::new(config(1, 512), unbounded(1));
    for id in 1..=200 {
        sim.submit(own("steady", id, 5, 5)).expect("room");
    }
    let (mut seen, mut next) = (Seen::default(), 1000);
    let mut served = BTreeMap::from([("steady", 0u64), ("hopper", 0)]);
    sim.submit(own("hopper", next, 60, 60)).expect("room");
    while served["steady"] < 1500 {
        assert!(sim.step());
        seen.take(&mut sim);
        for (id, end) in std::mem::take(&mut seen.ends) {
            let flow = if id >= 1000 { "hopper" } else { "steady" };
            *served.get_mut(flow).unwrap() +=
                u64::from(end.usage.prompt_tokens) + 2 * u64::from(end.usage.generated_tokens);
            if id >= 1000 {
                next += 1;
                sim.submit(own("hopper", next, 60, 60)).expect("room");
            }
        }
    }
    assert!(served["hopper"].abs_diff(1500) <= 360, "its share is a half: {served:?}");
}

#[test]
fn a_large_request_is_not_overtaken_by_small_ones_of_another_flow_for_ever() {
    let mut sim = Simulation::new(config(4, 200), unbounded(4));
    let small = (2..=80).map(|id| (0, own("small", id, 20, 10)));
    let arrivals = small.chain([(300, own("large", 100, 190, 5))]).collect();
    let order = started(&drive(&mut sim, arrivals));
    let at = order.iter().position(|id| *id == 100).expect("it was served");
    assert!(at < 20, "the large one came after {at} others");
}

fn with_a_low_one(aging: Duration, flow: &str) -> Duration {
    let mut sim = Simulation::new(config(1, 512), SchedulerOptions { priority_aging: aging, ..unbounded(1) });
    // More than can be served for 20 s.
    let mut arrivals: Vec<_> = (1..=200).map(|i| (i * 100, own("many", 2 * i, 20, 10))).collect();
    arrivals.insert(2, (250, Request { priority: 1, ..own(flow, 5, 20, 1) }));
    drive(&mut sim, arrivals).ends[&5].timings.queue
}

#[test]
fn the_least_urgent_waits_for_its_priority_to_rise_and_not_for_ever() {
    let second = Duration::from_secs(1);
    for flow in ["many", "other"] {
        let waited = with_a_low_one(2 * second, flow);
        assert!(waited > second && waited < 6 * second, "{waited:?} in {flow}");
        let waited = with_a_low_one(Duration::ZERO, flow);
        assert!(waited > 20 * second, "{waited:?} in {flow} where priorities do not age");
    }
}

#[test]
fn a_flood_that_has_waited_long_goes_before_nobody_as_urgent() {
    let aging = Duration::from_secs(1);
    let mut sim = Simulation::new(config(1, 512), SchedulerOptions { priority_aging: aging, ..unbounded(1) });
    let mut arrivals: Vec<_> = (1..=300).map(|id| (0, own("flood", id, 20, 5))).collect();
    arrivals.push((10_000, own("light", 500, 20, 5)));
    let seen = drive(&mut sim, arrivals);
    assert!(seen.ends[&500].timings.queue < Duration::from_millis(300), "{:?}", seen.ends[&500].timings);
}

#[test]
fn priority_comes_before_fairness() {
    let mut sim = Simulation::new(config(1, 512), unbounded(1));
    for id in 1..=4 {
        sim.submit(own("calm", id, 20, 5)).expect("room");
    }
    for id in 5..=8 {
        sim.submit(Request { priority: -1, ..own("urgent", id, 100, 50) }).expect("room");
    }
    assert_eq!(started(&run_all(&mut sim)), [5, 6, 7, 8, 1, 2, 3, 4]);
}

#[test]
fn who_has_one_request_is_not_parked_for_who_has_many() {
    let mut sim = Simulation::new(config(4, 260), unbounded(4));
    for id in 1..=3 {
        sim.submit(own("many", id, 30, 120)).expect("room");
    }
    sim.submit(own("one", 4, 30, 120)).expect("room");
    let seen = run_all(&mut sim);
    assert_eq!(parked(&seen)[..2], [3, 2], "{:?}", parked(&seen));
    assert!(!parked(&seen).contains(&1), "the oldest always advances");
}

#[test]
fn a_scope_has_a_bound_of_its_own_and_the_others_have_room() {
    let bounds = SchedulerOptions { max_queue_per_scope: 2, max_queue: 3, ..options(1) };
    let mut sim = Simulation::new(SimConfig { n_embd: 8, ..config(1, 512) }, bounds);
    for id in 1..=3 {
        sim.submit(own("a", id, 5, 3)).expect("the slot, and two that wait");
    }
    let full = Err(Error::QueueFull { bound: QueueBound::Scope, limit: 2 });
    assert_eq!(sim.submit(own("a", 4, 5, 3)), full);
    assert_eq!(sim.submit(of("a", embedding(5, vec![tokens(5, 3)]))), full, "texts count too");
    sim.submit(request(6, prompt(5), 3)).expect("no scope is another one");
    assert_eq!(sim.submit(own("b", 7, 5, 3)), Err(queue_full(3)), "the bound of all");
    sim.cancel(RequestId(2));
    sim.submit(own("a", 8, 5, 3)).expect("there is room again");
    assert_eq!(run_all(&mut sim).ends.len(), 5);
}

#[test]
fn one_with_many_texts_in_many_requests_keeps_nobody_waiting() {
    let mut sim = Simulation::new(SimConfig { n_embd: 8, n_batch: 64, ..config(1, 512) }, unbounded(1));
    let texts = |id: u64| (0..10).map(|i| tokens(id * 10 + i, 30)).collect();
    for id in 1..=10 {
        sim.submit(of("many", embedding(id, texts(id)))).expect("room");
    }
    sim.submit(of("one", embedding(11, texts(11)))).expect("room");
    let mut seen = Seen::default();
    while !seen.ends.contains_key(&11) {
        assert!(sim.step());
        seen.take(&mut sim);
    }
    assert!(sim.stats().n_embedded_texts < 30, "{} texts were done by then", sim.stats().n_embedded_texts);
    run_on(&mut sim, &mut seen);
    assert_eq!(seen.ends.len(), 11);
}

#[test]
fn one_with_many_texts_does_not_hold_up_who_comes_much_later() {
    let mut sim = Simulation::new(SimConfig { n_embd: 8, n_batch: 64, ..config(1, 512) }, unbounded(1));
    let texts = |id: u64, n: u64| (0..n).map(|i| tokens(id * 100 + i, 30)).collect();
    sim.submit(embedding(1, texts(1, 100))).expect("room");
    assert!(sim.step());
    sim.advance(Duration::from_secs(30));
    sim.submit(embedding(2, texts(2, 1))).expect("room");
    let mut seen = Seen::default();
    while !seen.ends.contains_key(&2) {
        assert!(sim.step());
        seen.take(&mut sim);
    }
    assert!(sim.stats().n_embedded_texts < 10, "{} texts were done by then", sim.stats().n_embedded_texts);
}

/// Requests of each flow: tokens of the prompt, and to generate.
type Backlogs = Vec<Vec<(u32, u32)>>;

/// What each flow was served, and how many of it wait.
fn told(seen: &mut Seen, flow_of: &BTreeMap<u64, usize>, served: &mut [u64], waiting: &mut [usize]) {
    for event in seen.events.drain(..) {
        match event {
            Event::Started { request, prompt_tokens, prefix_cache_tokens, .. } => {
                served[flow_of[&request.0]] += u64::from(prompt_tokens - prefix_cache_tokens);
                waiting[flow_of[&request.0]] -= 1;
            }
            Event::Token { request, .. } => served[flow_of[&request.0]] += 2,
            _ => {}
        }
    }
}

fn backlogs() -> impl Strategy<Value = Backlogs> {
    let flow = (1u32..60, 1u32..40)
        .prop_flat_map(|(most_prompt, most_tokens)| prop::collection::vec((1..=most_prompt, 1..=most_tokens), 1..40));
    prop::collection::vec(flow, 2..5)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn the_service_of_two_flows_that_wait_differs_by_no_more_than_the_bound(
        backlogs in backlogs(), n_parallel in 1u32..6, n_ctx in 100u32..1000, chunk_size in 1u32..64,
    ) {
        let mut sim = Simulation::new(config(n_parallel, n_ctx), SchedulerOptions { chunk_size, ..unbounded(n_parallel) });
        let mut flow_of = BTreeMap::new();
        for (flow, requests) in backlogs.iter().enumerate() {
            for (n_prompt, n_tokens) in requests {
                let id = flow_of.len() as u64 + 1;
                flow_of.insert(id, flow);
                sim.submit(own(&flow.to_string(), id, *n_prompt, *n_tokens)).expect("room");
            }
        }
        let all = || backlogs.iter().flatten();
        let (longest, most) = (all().map(|r| r.0).max().unwrap(), all().map(|r| r.1).max().unwrap());
        // All begin with nothing, hence half of what holds over any time.
        let bound = u64::from(longest + 2 * n_parallel * most);
        let mut waiting: Vec<usize> = backlogs.iter().map(Vec::len).collect();
        let (mut served, mut seen) = (vec![0; backlogs.len()], Seen::default());
        while sim.step() {
            sim.check();
            seen.take(&mut sim);
            told(&mut seen, &flow_of, &mut served, &mut waiting);
            let backlogged = (0..backlogs.len()).filter(|flow| waiting[*flow] > 0).map(|flow| served[flow]);
            let (least, greatest) = backlogged.fold((u64::MAX, 0), |(a, b), n| (a.min(n), b.max(n)));
            prop_assert!(greatest <= least.saturating_add(bound), "{served:?} differ by more than {bound}");
        }
        prop_assert_eq!(seen.ends.len(), flow_of.len());
    }
}
