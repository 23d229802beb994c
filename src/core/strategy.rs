//! How a forward pass is shared out: how many rows each running request gets.
//!
//! Decode-maximal batching follows Sarathi-Serve (Agrawal et al., 2024): decode rows first, then chunks of prompts in
//! what is left of the token budget. How prompts share theirs is in `turns.rs`.

use super::ids::RequestId;
use super::turns;
use super::work::{Grant, StrategyRow, StrategyView};
use crate::options::BatchStrategy;

/// Share out the budget by a built-in strategy, with so many rows of prompts at most. `after` is the request whose decode
/// row came last the time before.
pub(super) fn share(
    strategy: BatchStrategy,
    view: &StrategyView,
    after: Option<RequestId>,
    n_prompt_rows: u32,
) -> Vec<Grant> {
    let mut sharing = Sharing { view, after, grants: Vec::new(), left: view.budget };
    match strategy {
        BatchStrategy::DecodeMaximal => {
            sharing.decode(view.budget);
            sharing.prefill(n_prompt_rows);
        }
        BatchStrategy::PrefillPriority => {
            sharing.prefill(n_prompt_rows);
            sharing.decode(view.budget);
        }
        BatchStrategy::Balanced => {
            let both = view.requests.iter().any(|r| r.decoding) && view.requests.iter().any(|r| !r.decoding);
            let half = if both { view.budget.div_ceil(2) } else { view.budget };
            sharing.decode(half);
            sharing.prefill(half.min(n_prompt_rows));
        }
    }
    sharing.grants
}

/// What a custom strategy may answer.
///
/// # Errors
/// The text says which rule the answer breaks.
pub(super) fn validate(view: &StrategyView, grants: &[Grant]) -> Result<(), String> {
    let mut total = 0u64;
    for (at, grant) in grants.iter().enumerate() {
        let Some(row) = view.requests.iter().find(|row| row.request == grant.request) else {
            return Err(format!("request {} is not running", grant.request));
        };
        if grants[..at].iter().any(|other| other.request == grant.request) {
            return Err(format!("request {} is named twice", grant.request));
        }
        let most = most_rows(view, row);
        if grant.n_rows > most {
            return Err(format!("request {} gets {} rows; it has use for {most}", grant.request, grant.n_rows));
        }
        total += u64::from(grant.n_rows);
    }
    if total > u64::from(view.budget) {
        return Err(format!("{total} rows are shared out; the budget is {}", view.budget));
    }
    if total == 0 && view.budget > 0 && !view.requests.is_empty() {
        return Err("no request gets a row".into());
    }
    Ok(())
}

fn most_rows(view: &StrategyView, row: &StrategyRow) -> u32 {
    if row.decoding { 1 } else { row.n_remaining.min(view.chunk_size) }
}

struct Sharing<'a> {
    view: &'a StrategyView,
    after: Option<RequestId>,
    grants: Vec<Grant>,
    left: u32,
}

impl Sharing<'_> {
    /// One row for each request that generates. Where the budget is short, those after the last one served come first,
    /// so that everybody's turn comes.
    fn decode(&mut self, most: u32) {
        let mut most = most.min(self.left);
        let mut decoding: Vec<RequestId> =
            self.view.requests.iter().filter(|r| r.decoding).map(|r| r.request).collect();
        if decoding.len() > most as usize {
            decoding.sort_unstable();
            let first = decoding.partition_point(|id| self.after.is_some_and(|after| *id <= after));
            let n = decoding.len();
            decoding.rotate_left(first % n);
        }
        for request in decoding {
            if most == 0 {
                return;
            }
            self.grants.push(Grant { request, n_rows: 1 });
            self.left -= 1;
            most -= 1;
        }
    }

    /// Chunks of prompts, by turns.
    fn prefill(&mut self, most: u32) {
        let grants = turns::share(self.view, most.min(self.left));
        self.left -= grants.iter().map(|grant| grant.n_rows).sum::<u32>();
        self.grants.extend(grants);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::SeqId;

    fn view(budget: u32, chunk_size: u32, rows: &[(u64, u32)]) -> StrategyView {
        let row = |(at, &(id, n_remaining)): (usize, &(u64, u32))| StrategyRow {
            request: RequestId(id),
            seq: SeqId(at as u32),
            decoding: n_remaining == 1,
            n_remaining,
            n_computed: 0,
            priority: 0,
            n_left_out: 0,
        };
        let requests = rows.iter().enumerate().map(row).collect();
        StrategyView { requests, budget, chunk_size, queue_depth: 0 }
    }

    fn shared(strategy: BatchStrategy, view: &StrategyView, after: Option<u64>) -> Vec<(u64, u32)> {
        let grants = share(strategy, view, after.map(RequestId), view.budget);
        validate(view, &grants).expect("a built-in strategy keeps the rules");
        grants.into_iter().map(|grant| (grant.request.0, grant.n_rows)).collect()
    }

    #[test]
    fn decode_maximal_serves_decode_rows_first_and_prompts_with_the_rest() {
        let view = view(8, 5, &[(1, 20), (2, 1), (3, 1), (4, 20)]);
        assert_eq!(shared(BatchStrategy::DecodeMaximal, &view, None), [(2, 1), (3, 1), (1, 5), (4, 1)]);
    }

    #[test]
    fn prefill_priority_serves_prompts_first() {
        let view = view(8, 5, &[(1, 20), (2, 1), (3, 1), (4, 2)]);
        assert_eq!(shared(BatchStrategy::PrefillPriority, &view, None), [(1, 5), (4, 2), (2, 1)]);
    }

    #[test]
    fn balanced_halves_the_budget_and_gives_it_whole_to_a_side_that_is_alone() {
        let both = view(8, 64, &[(1, 20), (2, 1)]);
        assert_eq!(shared(BatchStrategy::Balanced, &both, None), [(2, 1), (1, 4)]);
        let alone = view(8, 64, &[(1, 20)]);
        assert_eq!(shared(BatchStrategy::Balanced, &alone, None), [(1, 8)]);
    }

    #[test]
    fn a_short_budget_goes_round() {
        let view = view(2, 64, &[(1, 1), (2, 1), (3, 1)]);
        assert_eq!(shared(BatchStrategy::DecodeMaximal, &view, None), [(1, 1), (2, 1)]);
        assert_eq!(shared(BatchStrategy::DecodeMaximal, &view, Some(2)), [(3, 1), (1, 1)]);
        assert_eq!(shared(BatchStrategy::DecodeMaximal, &view, Some(1)), [(2, 1), (3, 1)]);
    }

    #[test]
    fn an_answer_that_cannot_be_is_refused() {
        let view = view(8, 5, &[(1, 20), (2, 1)]);
        let refused = |grants: &[(u64, u32)]| {
            let grants: Vec<_> = grants.iter().map(|g| Grant { request: RequestId(g.0), n_rows: g.1 }).collect();
            validate(&view, &grants).expect_err("this breaks a rule")
        };
        assert!(refused(&[(9, 1)]).contains("not running"));
        assert!(refused(&[(2, 1), (2, 1)]).contains("twice"));
        assert!(refused(&[(1, 6)]).contains("use for 5"));
        assert!(refused(&[(2, 2)]).contains("use for 1"));
        assert!(refused(&[]).contains("no request"));
    }
}
