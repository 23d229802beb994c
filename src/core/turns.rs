//! How prompts share the rows that a pass has for them.
//!
//! Half of the rows go round: to those that were left out longest, so many of them that everybody's turn comes within nine
//! passes. The other half goes to the most urgent, and of those to whoever has least left: a short prompt is through in a
//! few passes behind a long one, which loses little by it (shortest remaining processing time; Schrage & Miller, 1966).

use super::work::{Grant, StrategyRow, StrategyView};
use std::cmp::Reverse;

/// Passes that a prompt may be left out of, while there are rows enough.
pub(super) const MOST_LEFT_OUT: u32 = 8;

/// Whether a prompt has to get a row.
fn is_due(row: &StrategyRow) -> bool {
    !row.decoding && row.n_left_out >= MOST_LEFT_OUT
}

/// Prompts that have to get a row each.
pub(super) fn n_due(view: &StrategyView) -> u32 {
    view.requests.iter().filter(|row| is_due(row)).count() as u32
}

/// Share out so many rows. Grants are in order of arrival.
pub(super) fn share(view: &StrategyView, n_rows: u32) -> Vec<Grant> {
    let mut line: Vec<(usize, &StrategyRow)> = view.requests.iter().filter(|row| !row.decoding).enumerate().collect();
    let mut granted = vec![0; line.len()];
    let mut left = n_rows;
    let mut give = |at: usize, row: &StrategyRow, most: u32| {
        let n = row.n_remaining.min(view.chunk_size).saturating_sub(granted[at]).min(most);
        granted[at] += n;
        n
    };
    // One alone, or all out of rows: the two orders below would change nothing.
    if line.len() > 1 {
        let n_due = n_due(view);
        let n_turns = n_due.max((line.len() as u32).div_ceil(MOST_LEFT_OUT + 1));
        let mut by_turns = left.div_ceil(2).max(n_due.min(left));
        line.sort_by_key(|(at, row)| (!is_due(row), row.priority, Reverse(row.n_left_out), *at));
        for ((at, row), n_others) in line.iter().zip((1..=n_turns).rev()) {
            let n = give(*at, row, by_turns.div_ceil(n_others));
            by_turns -= n;
            left -= n;
        }
        line.sort_by_key(|(at, row)| (row.priority, row.n_remaining, *at));
    }
    for (at, row) in line {
        left -= give(at, row, left);
    }
    let prompts = view.requests.iter().filter(|row| !row.decoding).zip(granted);
    prompts.filter(|(_, n)| *n > 0).map(|(row, n_rows)| Grant { request: row.request, n_rows }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{RequestId, SeqId};
    use proptest::prelude::*;

    fn prompt(id: u64, n_remaining: u32, priority: i32, n_left_out: u32) -> StrategyRow {
        let (request, seq) = (RequestId(id), SeqId(id as u32));
        StrategyRow { request, seq, decoding: false, n_remaining, n_computed: 0, priority, n_left_out }
    }

    fn view(requests: Vec<StrategyRow>) -> StrategyView {
        StrategyView { requests, budget: 512, chunk_size: 64, queue_depth: 0 }
    }

    fn shared(requests: Vec<StrategyRow>, n_rows: u32) -> Vec<(u64, u32)> {
        share(&view(requests), n_rows).into_iter().map(|grant| (grant.request.0, grant.n_rows)).collect()
    }

    #[test]
    fn a_short_prompt_gets_half_of_the_rows_behind_a_long_one() {
        assert_eq!(shared(vec![prompt(1, 4000, 0, 0), prompt(2, 30, 0, 0)], 40), [(1, 20), (2, 20)]);
        assert_eq!(shared(vec![prompt(1, 4000, 0, 0), prompt(2, 10, 0, 0)], 40), [(1, 30), (2, 10)]);
    }

    #[test]
    fn one_alone_gets_all_that_a_chunk_holds() {
        assert_eq!(shared(vec![prompt(1, 4000, 0, 0)], 40), [(1, 40)]);
        assert_eq!(shared(vec![prompt(1, 4000, 0, 0)], 400), [(1, 64)]);
        assert_eq!(shared(vec![prompt(1, 4000, 0, 0)], 0), []);
    }

    #[test]
    fn the_more_urgent_go_first_and_the_others_get_what_is_left() {
        let requests = || vec![prompt(1, 30, 5, 2), prompt(2, 50, 0, 0), prompt(3, 40, 0, 0)];
        assert_eq!(shared(requests(), 60), [(2, 30), (3, 30)]);
        assert_eq!(shared(requests(), 100), [(1, 10), (2, 50), (3, 40)]);
    }

    #[test]
    fn who_is_due_gets_rows_whatever_its_priority() {
        let requests = vec![prompt(1, 300, 0, 0), prompt(2, 300, 9, 8), prompt(3, 300, 9, 9)];
        assert_eq!(shared(requests, 3), [(1, 1), (2, 1), (3, 1)]);
    }

    proptest! {
        #[test]
        fn rows_are_used_up_and_nobody_is_left_out_for_long(
            prompts in prop::collection::vec((1u32..3000, -2i32..3), 1..40),
            n_rows in 40u32..200,
        ) {
            let rows = prompts.iter().zip(1..);
            let mut rows: Vec<_> = rows.map(|((n, priority), id)| prompt(id, *n, *priority, 0)).collect();
            while !rows.is_empty() {
                let grants = share(&view(rows.clone()), n_rows);
                let wanted: u32 = rows.iter().map(|row| row.n_remaining.min(64)).sum();
                prop_assert_eq!(grants.iter().map(|grant| grant.n_rows).sum::<u32>(), wanted.min(n_rows));
                for row in &mut rows {
                    let n = grants.iter().find(|grant| grant.request == row.request).map_or(0, |grant| grant.n_rows);
                    prop_assert!(n <= row.n_remaining.min(64));
                    row.n_remaining -= n;
                    row.n_left_out = if n > 0 { 0 } else { row.n_left_out + 1 };
                    prop_assert!(row.n_left_out <= MOST_LEFT_OUT);
                }
                rows.retain(|row| row.n_remaining > 0);
            }
        }
    }
}
