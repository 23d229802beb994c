//! The line against a plain one that looks at everybody for each decision.

use super::*;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    /// Who comes: flow and priority.
    Come(u8, i32),
    /// Who is next gets a turn, at this cost.
    Serve(u64),
    /// Whoever has had a turn goes on waiting.
    Park(usize),
    /// Whoever waits leaves.
    Leave(usize),
    /// Whoever has a turn is served, or gets something back.
    Charge(usize, u64),
    Refund(usize, u64),
    /// Whoever has a turn is done.
    Done(usize),
    /// Time goes by, in ms.
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u8..5, -2i32..3).prop_map(|(flow, priority)| Step::Come(flow, priority)),
        4 => (0u64..50).prop_map(Step::Serve),
        1 => any::<usize>().prop_map(Step::Park),
        1 => any::<usize>().prop_map(Step::Leave),
        2 => (any::<usize>(), 0u64..50).prop_map(|(who, cost)| Step::Charge(who, cost)),
        1 => (any::<usize>(), 0u64..50).prop_map(|(who, cost)| Step::Refund(who, cost)),
        2 => any::<usize>().prop_map(Step::Done),
        2 => (0u64..400).prop_map(Step::Pass),
    ]
}

/// The same, in lists.
#[derive(Default)]
struct Plain {
    waiting: Vec<Turn>,
    parked: Vec<Turn>,
    running: Vec<Turn>,
    served: BTreeMap<FlowId, u64>,
    last_served: u64,
}

impl Plain {
    fn all(&self) -> impl Iterator<Item = &Turn> {
        self.waiting.iter().chain(&self.parked)
    }

    fn first_of(&self, flow: FlowId) -> Option<Turn> {
        self.waiting.iter().filter(|turn| turn.flow == flow).min().copied()
    }

    /// First of the flows of which somebody waits at this level or before.
    fn least_served(&self, level: i64) -> Option<Turn> {
        let firsts = self.served.keys().filter_map(|flow| self.first_of(*flow));
        firsts.filter(|turn| turn.level <= level).min_by_key(|turn| (self.served[&turn.flow], *turn))
    }

    fn come(&mut self, turn: Turn) {
        if self.first_of(turn.flow).is_none_or(|first| turn < first) {
            let mut others = Self { served: self.served.clone(), ..Self::default() };
            others.waiting = self.waiting.iter().filter(|other| other.flow != turn.flow).copied().collect();
            let first = others.waiting.iter().map(|turn| turn.level).min().unwrap_or_default();
            let least = others.least_served(turn.level.max(first));
            let least = least.map_or(self.last_served, |turn| self.served[&turn.flow]);
            let served = self.served.entry(turn.flow).or_default();
            *served = least.max(*served);
        }
        self.waiting.push(turn);
    }

    fn next(&self, line: &Line, now: Time) -> Option<Turn> {
        let most_urgent = self.all().map(|turn| turn.priority).min()?;
        let top = line.level(most_urgent, now);
        let parked = self.parked.iter().min().filter(|turn| turn.level <= top);
        parked.copied().or_else(|| self.least_served(top))
    }

    /// A flow that has no requests and is not ahead is as good as new.
    fn forget(&mut self, flow: FlowId) {
        let is_there = self.all().chain(&self.running).any(|turn| turn.flow == flow);
        if !is_there && self.served.get(&flow).is_some_and(|served| *served <= self.last_served) {
            self.served.remove(&flow);
        }
    }
}

fn compare(aging_ms: u64, steps: &[Step]) {
    let mut line = Line::new(Duration::from_millis(aging_ms));
    let (mut plain, mut now, mut next_id) = (Plain::default(), Time(0), 0);
    for step in steps {
        let (n_running, n_waiting) = (plain.running.len().max(1), plain.waiting.len().max(1));
        match step {
            Step::Come(flow, priority) => {
                next_id += 1;
                let flow = line.join(Some(&Key(flow.to_string())));
                plain.served.entry(flow).or_default();
                let turn = line.turn(flow, RequestId(next_id), *priority, now);
                line.wait(turn);
                plain.come(turn);
            }
            Step::Serve(cost) => {
                let Some(turn) = line.next(now) else { continue };
                line.remove(turn);
                let was_parked = plain.parked.contains(&turn);
                plain.parked.retain(|other| *other != turn);
                plain.waiting.retain(|other| *other != turn);
                plain.running.push(turn);
                if !was_parked {
                    line.serve(turn.flow, *cost);
                    plain.last_served = plain.served[&turn.flow];
                    *plain.served.entry(turn.flow).or_default() += cost;
                    for flow in plain.served.keys().copied().collect::<Vec<_>>() {
                        plain.forget(flow);
                    }
                }
            }
            Step::Park(who) if !plain.running.is_empty() => {
                let turn = plain.running.swap_remove(who % n_running);
                line.park(turn);
                plain.parked.push(turn);
            }
            Step::Leave(who) if !plain.waiting.is_empty() => {
                let turn = plain.waiting.swap_remove(who % n_waiting);
                line.remove(turn);
                line.leave(turn.flow);
                plain.forget(turn.flow);
            }
            Step::Charge(who, cost) if !plain.running.is_empty() => {
                let turn = plain.running[who % n_running];
                line.charge(turn.flow, *cost);
                *plain.served.entry(turn.flow).or_default() += cost;
            }
            Step::Refund(who, cost) if !plain.running.is_empty() => {
                let turn = plain.running[who % n_running];
                line.refund(turn.flow, *cost);
                let served = plain.served.entry(turn.flow).or_default();
                *served = served.saturating_sub(*cost);
            }
            Step::Done(who) if !plain.running.is_empty() => {
                let turn = plain.running.swap_remove(who % n_running);
                line.remove(turn);
                line.leave(turn.flow);
                plain.forget(turn.flow);
            }
            Step::Pass(ms) => now = now + Duration::from_millis(*ms),
            Step::Park(_) | Step::Leave(_) | Step::Charge(..) | Step::Refund(..) | Step::Done(_) => {}
        }
        line.check(plain.all().count() + plain.running.len());
        assert_eq!(line.next(now), plain.next(&line, now), "after {step:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn whose_turn_it_is_agrees_with_a_look_at_everybody(
        aging_ms in prop::sample::select(vec![0u64, 1, 100, 1000]),
        steps in prop::collection::vec(step(), 1..150),
    ) {
        compare(aging_ms, &steps);
    }
}

#[test]
fn flows_that_are_gone_take_a_bounded_amount_of_memory() {
    let mut line = Line::new(Duration::ZERO);
    for id in 0..5000u64 {
        let flow = line.join(Some(&Key(id.to_string())));
        let turn = line.turn(flow, RequestId(id), 0, Time(0));
        line.wait(turn);
        line.remove(turn);
        line.serve(flow, 10);
        line.leave(flow);
    }
    line.check(0);
    assert!(line.flows.len() <= MAX_AWAY + 1, "{} flows are remembered", line.flows.len());
}

#[test]
fn times_and_priorities_at_their_ends_are_levels_too() {
    for aging in [Duration::ZERO, Duration::from_nanos(1), Duration::from_secs(60), Duration::MAX] {
        let mut line = Line::new(aging);
        for (id, (priority, at)) in (1..).zip([(i32::MAX, Time::NEVER), (i32::MIN, Time(0)), (0, Time(1))]) {
            let flow = line.join(None);
            line.wait(line.turn(flow, RequestId(id), priority, at));
        }
        line.check(3);
        assert_eq!(line.next(Time::NEVER).map(|turn| turn.id), Some(RequestId(2)), "{aging:?}");
    }
}
