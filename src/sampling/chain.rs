//! The chain: which tokens may be drawn, narrowed link by link, in llama.cpp's order or the caller's.
//!
//! A row begins as it is, with a floor that links raise, and becomes a few candidates at the first link that picks some
//! out. The links that most requests have never look at more than those few.

use super::Scratch;
use super::candidate::{self, Candidate};
use super::dry::Dry;
use super::penalties::Penalties;
use super::row::{Row, weight};
use super::temperature::Temperature;
use super::typical;
use crate::core::{SamplerKind, SamplingParams};

/// Candidates that top-p looks at first where nothing before it narrows them.
const FIRST_LOOK: usize = 256;

/// One link that changes something.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Link {
    Penalties,
    Dry,
    TopNSigma(f32),
    TopK(usize),
    TypicalP(f32),
    TopP(f32),
    MinP(f32),
    Xtc { probability: f32, threshold: f32 },
    Temperature(Temperature),
}

impl Link {
    /// A link as the request has it; none where it would change nothing.
    fn new(kind: SamplerKind, params: &SamplingParams, n_vocab: usize) -> Option<Self> {
        let top_k = params.top_k as usize;
        let (probability, threshold) = (params.xtc_probability, params.xtc_threshold);
        match kind {
            SamplerKind::Penalties => Some(Self::Penalties),
            SamplerKind::Dry => Some(Self::Dry),
            SamplerKind::TopNSigma => (params.top_n_sigma > 0.0).then_some(Self::TopNSigma(params.top_n_sigma)),
            SamplerKind::TopK => (1..n_vocab).contains(&top_k).then_some(Self::TopK(top_k)),
            SamplerKind::TypicalP => (params.typical_p < 1.0).then_some(Self::TypicalP(params.typical_p)),
            SamplerKind::TopP => (params.top_p < 1.0).then_some(Self::TopP(params.top_p)),
            SamplerKind::MinP => (params.min_p > 0.0).then_some(Self::MinP(params.min_p)),
            SamplerKind::Xtc => (probability > 0.0 && threshold <= 0.5).then_some(Self::Xtc { probability, threshold }),
            SamplerKind::Temperature => Some(Self::Temperature(Temperature::new(params))),
        }
    }
}

/// What a chain leaves of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Left {
    /// One token.
    One(usize),
    /// Every token of the row with a logit of at least `floor`.
    Row { floor: f32, temp: f32 },
    /// The candidates, best first.
    Few,
}

/// The links of one request, in order.
#[derive(Clone, Debug)]
pub(super) struct Chain {
    /// Those at the beginning, which edit single logits of the row in place.
    edits: Vec<Link>,
    links: Vec<Link>,
}

/// What links look at beside the row.
pub(super) struct Memory<'a> {
    pub(super) penalties: Option<&'a Penalties>,
    pub(super) dry: Option<&'a Dry>,
    /// XTC's own random number.
    pub(super) chance: f64,
}

impl Chain {
    pub(super) fn new(params: &SamplingParams, n_vocab: usize) -> Self {
        let order = params.samplers.as_deref().unwrap_or(&SamplerKind::ORDER);
        // Mirostat takes the place of all that narrows, as in llama.cpp.
        let is_on = |kind: &&SamplerKind| params.mirostat == 0 || **kind == SamplerKind::Temperature;
        let order = order.iter().filter(is_on);
        let mut edits: Vec<Link> = order.filter_map(|kind| Link::new(*kind, params, n_vocab)).collect();
        if params.mirostat > 0 && edits.is_empty() {
            edits.push(Link::Temperature(Temperature::new(params)));
        }
        let n_edits = edits.iter().take_while(|link| matches!(link, Link::Penalties | Link::Dry)).count();
        let links = edits.split_off(n_edits);
        Self { edits, links }
    }

    /// Whether a number is drawn for XTC.
    pub(super) fn has_xtc(&self) -> bool {
        self.links.iter().any(|link| matches!(link, Link::Xtc { .. }))
    }

    /// The links that begin the chain, where all they do is to edit logits.
    pub(super) fn edit(&self, memory: &Memory<'_>, logits: &mut [f32]) {
        for link in &self.edits {
            match link {
                Link::Penalties => memory.penalties.iter().for_each(|penalties| penalties.apply(logits)),
                Link::Dry => memory.dry.iter().for_each(|dry| dry.apply(logits)),
                Link::TopNSigma(_)
                | Link::TopK(_)
                | Link::TypicalP(_)
                | Link::TopP(_)
                | Link::MinP(_)
                | Link::Xtc { .. }
                | Link::Temperature(_) => {}
            }
        }
    }

    /// Run the other links over a row.
    pub(super) fn narrow(&self, row: &Row<'_>, memory: &Memory<'_>, scratch: &mut Scratch) -> Left {
        let Scratch { selection, candidates, .. } = scratch;
        let (mut floor, mut links) = (f32::NEG_INFINITY, self.links.iter());
        let mut masked = Masked(Some(row.len()));
        // As long as the row need not be picked apart.
        loop {
            let next = links.as_slice();
            match *next {
                [] => return Left::Row { floor, temp: 1.0 },
                [Link::Temperature(temperature)] if temperature.is_greedy() => return Left::One(row.argmax()),
                [Link::Temperature(temperature)] if temperature.is_fixed() => {
                    return Left::Row { floor, temp: temperature.temp };
                }
                [Link::TopNSigma(n), ..] => {
                    masked.0.get_or_insert_with(|| row.count(floor));
                    floor = floor.max(row.max - n * row.deviation(floor));
                }
                [Link::MinP(p), ..] => {
                    floor = floor.max(min_floor(row.max, p));
                    masked = Masked(None);
                }
                [Link::TopK(k), ..] => {
                    row.best(k, floor, selection, candidates);
                    masked.cap(k);
                    links.next();
                    break;
                }
                [Link::TopP(p), ref rest @ ..] => {
                    let ahead = if let [Link::MinP(p), ..] = rest { min_floor(row.max, *p) } else { floor };
                    nucleus(row, p, floor, ahead, selection, candidates);
                    masked = Masked(None);
                    links.next();
                    break;
                }
                [_, ..] => {
                    row.best(row.len(), floor, selection, candidates);
                    break;
                }
            }
            links.next();
        }
        links.for_each(|link| narrow_few(link, memory, candidates, &mut masked));
        candidates.sort_unstable();
        Left::Few
    }
}

/// How many tokens llama.cpp counts, if more than the candidates: those that it masks and keeps. Only the temperature that
/// follows the entropy can tell.
#[derive(Clone, Copy, Debug)]
struct Masked(Option<usize>);

impl Masked {
    fn cap(&mut self, k: usize) {
        self.0 = self.0.map(|n| n.min(k));
    }
}

/// Run one link over candidates.
fn narrow_few(link: &Link, memory: &Memory<'_>, candidates: &mut Vec<Candidate>, masked: &mut Masked) {
    let n_before = candidates.len();
    match link {
        Link::TypicalP(_) | Link::TopP(_) | Link::MinP(_) => masked.0 = None,
        Link::TopK(k) => masked.cap(*k),
        Link::TopNSigma(_) => {
            masked.0.get_or_insert(n_before);
        }
        Link::Penalties | Link::Dry | Link::Xtc { .. } | Link::Temperature(_) => {}
    }
    match *link {
        Link::Penalties => candidate::edit(candidates, |token, logit| match memory.penalties {
            Some(penalties) => penalties.edited(token, logit),
            None => logit,
        }),
        Link::Dry => candidate::edit(candidates, |token, logit| match memory.dry {
            Some(dry) => logit - dry.penalty(token),
            None => logit,
        }),
        Link::TopNSigma(n) => {
            let floor = candidate::best_logit(candidates) - n * candidate::deviation(candidates);
            candidates.retain(|candidate| candidate.logit() >= floor);
        }
        Link::TopK(k) => candidate::keep_best(candidates, k),
        Link::TypicalP(p) => typical::keep_typical(candidates, p),
        Link::TopP(p) => {
            let max = candidate::best_logit(candidates);
            let mass = candidate::mass(candidates, max);
            candidate::keep_mass(candidates, max, f64::from(p) * mass);
        }
        Link::MinP(p) => {
            let floor = min_floor(candidate::best_logit(candidates), p);
            candidates.retain(|candidate| candidate.logit() >= floor);
        }
        Link::Xtc { probability, threshold } => {
            if memory.chance <= f64::from(probability) {
                exclude_top(candidates, threshold);
                masked.0 = masked.0.map(|n| n - (n_before - candidates.len()));
            }
        }
        Link::Temperature(temperature) => {
            temperature.apply(candidates, masked.0.map_or(n_before, |n| n.max(n_before)));
        }
    }
}

/// The lowest logit that is at least `p` times as likely as the likeliest.
fn min_floor(max: f32, p: f32) -> f32 {
    max + p.ln()
}

/// XTC (exclude top choices): all likely candidates but the least likely of them go.
fn exclude_top(candidates: &mut Vec<Candidate>, threshold: f32) {
    if candidates.len() < 2 {
        return;
    }
    candidates.sort_unstable();
    let max = candidate::best_logit(candidates);
    let total = candidate::mass(candidates, max);
    let is_likely = |c: &&Candidate| f64::from(weight(c.logit(), max, 1.0)) / total >= f64::from(threshold);
    let n_likely = candidates.iter().take_while(is_likely).count();
    candidates.drain(..n_likely.saturating_sub(1));
}

/// The candidates that top-p leaves of those with logits of at least `floor`, but for those below `ahead`, which the
/// next link takes away anyway.
///
/// Looks at a few of the best first, and at more only while they weigh too little.
fn nucleus(
    row: &Row<'_>,
    top_p: f32,
    floor: f32,
    ahead: f32,
    selection: &mut Vec<f32>,
    candidates: &mut Vec<Candidate>,
) {
    let target = f64::from(top_p) * row.mass(floor, 1.0);
    let mut look = FIRST_LOOK;
    loop {
        row.best(look, floor.max(ahead), selection, candidates);
        if candidate::mass(candidates, row.max) >= target || candidates.len() < look {
            break;
        }
        look *= 8;
    }
    candidate::keep_mass(candidates, row.max, target);
}
