//! Drafts: tokens that are likely to come next are computed beside the one that is known, so that a pass can give a request
//! several (speculative decoding; Leviathan et al., 2023). They are looked up in the request's own text (`lookup.rs`).
//!
//! No text changes by it. Every token is drawn by the request's own sampler from the logits behind the tokens before it; a
//! draft only decides whether those logits are there already. Where a draw is not what was drafted, the rows behind it were
//! of no use, and their cells are trimmed before the next pass.
//!
//! Rows are drafted where that raises the tokens per unit of time that streams get by a pass: a token counts as much as it is
//! likely to be drawn with all before it, a row what it is known to cost (`cost.rs`). So drafts end by themselves where a
//! pass is wide or a row dear. They take what is left: no row, cell or logit that somebody else would have had.

use super::cost::Load;
use super::ids::{RequestId, Token};
use super::lookup::{Found, LONGEST, Lookup, SHORTEST};
use super::memory::MemoryKind;
use super::op::Op;
use super::running::Live;
use super::scheduler::Scheduler;
use super::time::Time;
use super::work::{Drawn, Row};
use crate::options::StrategyOption;

/// How likely a drafted token is to be drawn while nothing is known of a text, by how many tokens before it were alike; and
/// how many tokens of the text itself weigh as much.
const PRIOR: [f64; LONGEST + 1 - SHORTEST] = [0.3, 0.5, 0.7];
const PRIOR_WEIGHT: f64 = 2.0;
/// How much more than its price a row has to be worth: of chances that are only guessed, those that look good enough are more
/// often guessed too high than too low.
const MARGIN: f64 = 1.25;
/// Part of what is known of a text that stays with each token of it.
const MEMORY: f64 = 15.0 / 16.0;
/// Tokens without drafts after one of which nothing was drawn, and by what factor they get more each time in a row.
const FIRST_PAUSE: u32 = 2;
const PAUSE_GROWTH: u32 = 4;
const LONGEST_PAUSE: u32 = 512;

/// What is known of the drafts of one request.
#[derive(Debug)]
pub(super) struct Drafting {
    lookup: Lookup,
    /// Drafted tokens that draws have decided on, and those that were drawn. Older ones count less.
    n_tested: f64,
    n_passed: f64,
    /// Tokens that the last pause took; none since something of a draft was drawn. A new text is taken for one that paused.
    pause: u32,
    /// Nothing is drafted before the text has so many tokens.
    resumes_at: usize,
    /// What would have been drafted, where no row was worth it: whether it is drawn says what a draft would have been.
    expected: Option<Token>,
    /// Rows of the pass just done whose tokens were not drawn yet.
    pub(super) n_open: u32,
    pub(super) n_drafted: u32,
    pub(super) n_accepted: u32,
}

/// What may be drafted for a request in a pass.
#[derive(Debug)]
struct Draft {
    request: RequestId,
    found: Found,
    /// How likely each token is to be drawn, and the next one together with all before it.
    chance: f64,
    next: f64,
    /// What a row costs. Unit: ns.
    price: f64,
    n_rows: u32,
    n_most: u32,
}

/// What drafts may take of a pass, and what streams get by it.
#[derive(Debug)]
struct Budget {
    n_rows: u32,
    n_tokens: f64,
    /// How long those take without prompts. Unit: ns.
    took: f64,
    /// By how much the pass may get longer. Unit: ns.
    slack: f64,
}

impl Default for Drafting {
    fn default() -> Self {
        Self {
            lookup: Lookup::default(),
            n_tested: 0.0,
            n_passed: 0.0,
            pause: FIRST_PAUSE,
            resumes_at: 0,
            expected: None,
            n_open: 0,
            n_drafted: 0,
            n_accepted: 0,
        }
    }
}

impl Drafting {
    /// What to draft behind a text that will have `n_most` tokens: where it is from, and how likely it is.
    fn propose(&mut self, tokens: &[Token], n_most: u32) -> Option<(Found, f64)> {
        let n_before = self.lookup.n_taken();
        let found = self.lookup.find(tokens, n_most);
        let kept = MEMORY.powi((self.lookup.n_taken() - n_before) as i32);
        (self.n_tested, self.n_passed) = (self.n_tested * kept, self.n_passed * kept);
        let found = found.filter(|_| tokens.len() >= self.resumes_at)?;
        let prior = PRIOR[found.n_alike as usize - SHORTEST] * PRIOR_WEIGHT;
        Some((found, (self.n_passed + prior) / (self.n_tested + PRIOR_WEIGHT)))
    }

    /// A token was drawn that nothing was drafted for.
    pub(super) fn meet(&mut self, token: Token) {
        if let Some(expected) = self.expected.take() {
            self.n_tested += 1.0;
            self.n_passed += f64::from(expected == token);
        }
    }

    /// Of so many drafted tokens behind a text so many were drawn.
    fn learn(&mut self, n_tokens: usize, n_drafted: u32, n_accepted: u32) {
        self.n_passed += f64::from(n_accepted);
        self.n_tested += f64::from(n_drafted.min(n_accepted + 1));
        self.pause = if n_accepted > 0 { 0 } else { (self.pause * PAUSE_GROWTH).clamp(FIRST_PAUSE, LONGEST_PAUSE) };
        self.resumes_at = n_tokens + self.pause as usize;
        self.n_drafted += n_drafted;
        self.n_accepted += n_accepted;
    }
}

impl Budget {
    /// Whether a row is worth its price, with so much of a chance.
    fn pays(&self, chance: f64, price: f64) -> bool {
        chance * self.took > MARGIN * price * self.n_tokens && price <= self.slack
    }

    /// Take rows as long as one raises the tokens per unit of time, the best first.
    fn choose(&mut self, drafts: &mut [Draft]) {
        while self.n_rows > 0 {
            let open = drafts.iter_mut().filter(|draft| draft.n_rows < draft.n_most);
            let best = open.max_by(|a, b| (a.next * b.price).total_cmp(&(b.next * a.price)));
            let Some(best) = best.filter(|draft| self.pays(draft.next, draft.price)) else { return };
            self.n_rows -= 1;
            self.n_tokens += best.next;
            self.took += best.price;
            self.slack -= best.price;
            best.n_rows += 1;
            best.next *= best.chance;
        }
    }
}

impl Scheduler {
    /// Add the rows of drafts to those of a pass, behind the row of the token that is known.
    pub(super) fn add_drafts(&mut self, now: Time, rows: Vec<Row>) -> Vec<Row> {
        let Some(mut budget) = self.draft_budget(now, &rows) else { return rows };
        let mut drafts: Vec<Draft> = rows.iter().filter_map(|row| self.draft(row, &budget)).collect();
        budget.choose(&mut drafts);
        for draft in &drafts {
            if let Some(live) = self.live.get_mut(&draft.request).filter(|_| draft.n_rows == 0) {
                live.drafting.expected = draft.found.draft(&live.tokens).next();
            }
        }
        let n_rows: u32 = drafts.iter().map(|draft| draft.n_rows).sum();
        if n_rows == 0 {
            return rows;
        }
        let mut with_drafts = Vec::with_capacity(rows.len() + n_rows as usize);
        let mut drafts = drafts.into_iter().peekable();
        for row in rows {
            with_drafts.push(row);
            let Some(draft) = drafts.next_if(|draft| draft.request == row.request) else { continue };
            let tokens = draft.found.draft(&self.live[&row.request].tokens).take(draft.n_rows as usize);
            with_drafts.extend((row.pos + 1..).zip(tokens).map(|(pos, token)| Row { pos, token, ..row }));
        }
        with_drafts
    }

    /// What a pass with these rows has left; nothing where it is not the time for drafts, or nobody generates.
    fn draft_budget(&self, now: Time, rows: &[Row]) -> Option<Budget> {
        let limits = &self.limits;
        // Elsewhere a tail cannot be trimmed at any place, or sequences with more rows than others take passes of their own.
        let is_of_use = limits.memory == MemoryKind::Full && limits.is_pool;
        // What a strategy of the caller's own says is done as it says.
        let is_ours = matches!(self.options.batch_strategy, StrategyOption::Builtin(_));
        if !is_of_use || !is_ours || self.row_cap.is_some() {
            return None;
        }
        let n_outputs = rows.iter().filter(|row| row.is_looked_at()).count() as u32;
        let n_taken = rows.len() as u32;
        let n_free = limits.n_ctx.saturating_sub(self.sequences.cells.n_used());
        let n_rows = self.max_rows().min(n_free).saturating_sub(n_taken);
        let n_rows = n_rows.min(limits.n_outputs.saturating_sub(n_outputs));
        let mut streams = Load::default();
        rows.iter().filter(|row| self.live[&row.request].is_decoding()).for_each(|row| streams.decode(row.pos));
        // A pass is at most twice as wide as one whose length is known: so a row that is dear is found out cheaply.
        let n_rows = n_rows.min((self.costs.most_decode() * 2).saturating_sub(streams.n_decode));
        if n_rows == 0 || streams.n_decode == 0 {
            return None;
        }
        // Who is alone keeps nobody waiting.
        let is_bound = streams.n_decode > 1 && !self.options.max_itl.is_zero();
        let left = self.options.max_itl.saturating_sub(now - self.passed_at);
        let whole = self.cost_of(&self.load_of_rows(rows))?;
        let slack = if is_bound { left.as_nanos() as f64 - whole } else { f64::INFINITY };
        Some(Budget { n_rows, n_tokens: streams.n_decode.into(), took: self.cost_of(&streams)?, slack })
    }

    /// What may be drafted behind a row, if it can pay at all.
    fn draft(&mut self, row: &Row, budget: &Budget) -> Option<Draft> {
        let mut more = Load::default();
        more.decode(row.pos);
        let price = self.cost_of(&more)? - self.cost_of(&Load::default())?;
        let (n_ctx_seq, id) = (self.limits.n_ctx_seq, row.request);
        let live = self.live.get_mut(&id).filter(|live| live.is_decoding())?;
        let n_most = most_rows(live, n_ctx_seq);
        if n_most == 0 || !budget.pays(1.0, price) {
            return None;
        }
        let n_tokens = live.n_prompt().saturating_add(live.request.max_tokens).min(n_ctx_seq);
        let (found, chance) = live.drafting.propose(&live.tokens, n_tokens)?;
        // After a pause one token says whether drafts are of use.
        let n_most = if live.drafting.pause > 0 { 1 } else { n_most };
        Some(Draft { request: id, found, chance, next: chance, price, n_rows: 0, n_most })
    }

    fn cost_of(&self, load: &Load) -> Option<f64> {
        self.costs.forecast(load).map(|took| took.as_nanos() as f64)
    }

    /// Rows of a pass whose tokens were drafted.
    pub(super) fn n_drafted(&self, rows: &[Row]) -> u32 {
        rows.iter().filter(|row| self.live.get(&row.request).is_some_and(|live| row.pos >= live.n_tokens())).count()
            as u32
    }

    /// The rows of a request have drawn so many tokens: all but the last one are as they were drafted.
    pub(super) fn note_drawn(&mut self, id: RequestId, n_drawn: usize) {
        let Some(live) = self.live.get_mut(&id).filter(|live| live.drafting.n_open > 0) else { return };
        let n_drafted = live.drafting.n_open;
        let n_accepted = (n_drawn as u32).saturating_sub(1);
        assert!(n_accepted <= n_drafted, "a row draws one token");
        live.drafting.learn(live.tokens.len() + n_drawn, n_drafted, n_accepted);
        self.totals.n_draft_tokens += u64::from(n_drafted);
        self.totals.n_accepted_tokens += u64::from(n_accepted);
    }

    /// A draft's row is about to give a token: the one that the row computed was drawn.
    pub(super) fn accept_draft(&mut self, id: RequestId) {
        if let Some(live) = self.live.get_mut(&id) {
            live.drafting.n_open -= 1;
            live.n_computed += 1;
        }
    }

    /// Forget what was computed of a draft and not drawn.
    pub(super) fn trim_draft(&mut self, id: RequestId) {
        let Some(live) = self.live.get_mut(&id) else { return };
        if let Some(op) = live.rest_of_draft() {
            live.drafting.n_open = 0;
            self.ops.push(op);
        }
    }
}

impl Live {
    /// What takes the rest of a draft out of its sequence, where there is any.
    pub(super) fn rest_of_draft(&self) -> Option<Op> {
        let seq = self.seq().filter(|_| self.drafting.n_open > 0)?;
        Some(Op::Trim { seq, len: self.n_computed })
    }
}

/// What a backend asks of rows that draw one after the other.
impl Row {
    /// Whether the next row of a pass is drawn from together with this one, or neither is.
    pub fn is_drawn_with(&self, next: &Self) -> bool {
        (self.request, self.draws, self.is_looked_at()) == (next.request, next.draws, next.is_looked_at())
    }
}

impl Drawn {
    /// Whether the next row, a draft, goes on from it.
    pub fn leads_to(&self, next: &Row) -> bool {
        self.token == next.token && !self.is_eog && !self.is_last
    }
}

/// Rows that can be of use behind the token that is known: the last token of an answer needs none.
fn most_rows(live: &Live, n_ctx_seq: u32) -> u32 {
    let Live { request, .. } = live;
    if request.sampling.custom.is_some() || request.sampling.telling.prompt.is_some() {
        return 0;
    }
    let n_left = request.max_tokens.saturating_sub(live.n_generated() + 1);
    request.n_draft.min(n_left).min(n_ctx_seq.saturating_sub(live.n_tokens()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft(chance: f64, price: f64, n_most: u32) -> Draft {
        let found = Found { from: 0, n_alike: 2 };
        Draft { request: RequestId(1), found, chance, next: chance, price, n_rows: 0, n_most }
    }

    fn chosen(n_rows: u32, n_tokens: f64, slack: f64, drafts: &[(f64, f64, u32)]) -> Vec<u32> {
        let mut drafts: Vec<Draft> = drafts.iter().map(|(chance, price, most)| draft(*chance, *price, *most)).collect();
        Budget { n_rows, n_tokens, took: 100.0, slack }.choose(&mut drafts);
        drafts.iter().map(|draft| draft.n_rows).collect()
    }

    #[test]
    fn rows_are_added_as_long_as_one_brings_more_tokens_per_time_than_there_are() {
        assert_eq!(chosen(99, 1.0, f64::INFINITY, &[(0.5, 10.0, 8)]), [2], "the third is likely by an eighth");
        assert_eq!(chosen(99, 1.0, f64::INFINITY, &[(0.9, 10.0, 8)]), [8]);
        assert_eq!(chosen(99, 1.0, f64::INFINITY, &[(0.5, 60.0, 8)]), [0]);
        assert_eq!(chosen(99, 16.0, f64::INFINITY, &[(0.9, 6.0, 8)]), [0], "sixteen tokens cost 100: 6.25 each");
    }

    #[test]
    fn the_likeliest_go_first_and_all_keep_to_what_is_left() {
        assert_eq!(chosen(3, 2.0, f64::INFINITY, &[(0.5, 5.0, 8), (0.9, 5.0, 8)]), [0, 3]);
        assert_eq!(chosen(99, 2.0, 12.0, &[(0.5, 5.0, 8), (0.9, 5.0, 8)]), [0, 2]);
        assert_eq!(chosen(99, 2.0, f64::INFINITY, &[(0.9, 5.0, 2), (0.9, 5.0, 0)]), [2, 0]);
    }

    #[test]
    fn a_text_that_is_never_what_was_drafted_is_asked_ever_less_often() {
        let (mut drafting, mut text, mut n_asked) = (Drafting::default(), vec![1, 2], Vec::new());
        for n in 0..2000 {
            // Each time another token follows upon the same two.
            text.extend([100 + n, 1, 2]);
            if drafting.propose(&text, 10_000).is_some() {
                drafting.learn(text.len() + 1, 1, 0);
                n_asked.push(n);
            }
        }
        assert!(n_asked.len() < 25, "{n_asked:?}");
        assert!(n_asked.windows(2).all(|pair| pair[1] - pair[0] <= LONGEST_PAUSE as i32), "{n_asked:?}");
    }

    #[test]
    fn what_is_only_expected_moves_the_chances_too() {
        let (mut drafting, text) = (Drafting::default(), [1, 2, 3, 1, 2]);
        let chance = |drafting: &mut Drafting| drafting.propose(&text, 1000).map(|(_, chance)| chance);
        let first = chance(&mut drafting);
        for (drawn, is_higher) in [(3, true), (4, false)] {
            drafting = Drafting::default();
            drafting.expected = Some(3);
            drafting.meet(drawn);
            drafting.meet(drawn); // nothing was expected of this one
            let then = chance(&mut drafting);
            assert!(then.is_some() && (then > first) == is_higher, "{first:?} {then:?}");
        }
    }

    #[test]
    fn what_is_known_of_a_text_moves_its_chances_and_is_forgotten() {
        let (mut drafting, mut text) = (Drafting::default(), vec![1, 2, 3, 1, 2]);
        let mut chance = |drafting: &mut Drafting, n: usize| {
            (0..n).for_each(|_| text.extend([3, 1, 2]));
            drafting.propose(&text, 1000).map(|(_, chance)| chance).unwrap_or_default()
        };
        let first = chance(&mut drafting, 1);
        drafting.learn(0, 8, 8);
        let trusted = chance(&mut drafting, 0);
        drafting.learn(0, 8, 1);
        let doubted = chance(&mut drafting, 0);
        let forgotten = chance(&mut drafting, 50);
        assert!(first < trusted && doubted < trusted, "{first} {trusted} {doubted}");
        assert!((forgotten - first).abs() < 0.01, "{first} {forgotten}");
    }
}
