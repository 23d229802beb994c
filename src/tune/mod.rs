//! Which settings of a context compute fastest on this machine: what was measured, and what follows from it.
//!
//! Pure: whoever measures (`backend/llama/calibrate.rs`) hands [`Sample`]s over, [`choose`] decides, and [`note`] keeps the
//! decision for the next load. Why it is measured and not known: flash attention halves the speed of a small model's
//! decode on one machine and doubles it on another, and streams of their own beat a buffer in common only where contexts
//! are long.

pub mod note;

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Another setting has to be so much faster than the one that stands first: below it is noise.
const MARGIN: f64 = 1.03;
/// So much faster have streams of their own to be: a buffer in common forks prefixes for nothing and keeps cached
/// sequences beside the running ones.
const SPLIT_MARGIN: f64 = 1.10;
/// Prompt tokens that are computed for each token that is generated. Chats and agents send more, and reuse most of it.
const PROMPT_SHARE: f64 = 1.0;

/// The load that settings are chosen for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Requests that decode at once.
    pub n_rows: u32,
    /// Tokens that each of them attends to.
    pub n_context: u32,
}

/// What a context is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// Whether flash attention is on.
    pub flash_attn: bool,
    /// One KV buffer for all sequences, or a stream for each.
    pub kv_unified: bool,
}

/// What one setting took.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// With which setting.
    pub setting: Setting,
    /// On so many threads.
    pub n_threads: u32,
    /// A pass that decodes all of the shape's rows.
    pub decode: Duration,
    /// A row of a prompt, at the end of such a context and beside the others; zero where time did not suffice.
    pub prefill_row: Duration,
}

impl Sample {
    /// Seconds for a generated token, with its share of a prompt.
    fn cost(&self, shape: Shape) -> f64 {
        self.decode.as_secs_f64() / f64::from(shape.n_rows) + self.prefill_row.as_secs_f64() * PROMPT_SHARE
    }

    /// Tokens per second that are decoded.
    pub fn decode_rate(&self, shape: Shape) -> f64 {
        f64::from(shape.n_rows) / self.decode.as_secs_f64().max(1e-9)
    }
}

/// What was measured, and what was chosen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// For which load.
    pub shape: Shape,
    /// In the order of measuring; the first is what llama.cpp would take.
    pub samples: Vec<Sample>,
    /// Which of them was chosen.
    pub chosen: usize,
    /// Why, in words.
    pub reason: String,
    /// What it all took.
    pub took: Duration,
    /// Whether it was read from a note of an earlier load.
    pub is_noted: bool,
}

impl Report {
    /// Decide.
    ///
    /// # Panics
    /// Where there is no sample.
    pub fn new(shape: Shape, samples: Vec<Sample>, took: Duration) -> Self {
        let chosen = choose(shape, &samples).expect("something was measured");
        let reason = reason(shape, &samples, chosen);
        Self { shape, samples, chosen, reason, took, is_noted: false }
    }

    /// The chosen one.
    pub fn choice(&self) -> &Sample {
        &self.samples[self.chosen]
    }

    /// Whether what a note says can be meant: a note is a file, and anybody may have written it.
    fn is_sound(&self) -> bool {
        let sound = |s: &Sample| s.n_threads > 0 && s.n_threads <= 512 && !s.decode.is_zero();
        self.chosen < self.samples.len() && self.shape.n_rows > 0 && self.samples.iter().all(sound)
    }
}

/// Which sample to go by: the first one, unless another is faster by more than noise. None where nothing was measured.
pub fn choose(shape: Shape, samples: &[Sample]) -> Option<usize> {
    let first = samples.first()?;
    // Samples without a prompt's row are compared by decoding alone.
    let has_prefill = samples.iter().all(|s| !s.prefill_row.is_zero());
    let cost = |s: &Sample| if has_prefill { s.cost(shape) } else { s.decode.as_secs_f64() };
    let handicap = |s: &Sample| {
        let layout = if s.setting.kv_unified || !first.setting.kv_unified { 1.0 } else { SPLIT_MARGIN };
        if s == first { 1.0 } else { layout.max(MARGIN) }
    };
    let weighed = |s: &Sample| cost(s) * handicap(s);
    (0..samples.len()).min_by(|a, b| weighed(&samples[*a]).total_cmp(&weighed(&samples[*b])))
}

fn reason(shape: Shape, samples: &[Sample], chosen: usize) -> String {
    let (first, best) = (&samples[0], &samples[chosen]);
    if chosen == 0 {
        return "nothing was faster by more than noise than what llama.cpp takes by itself".into();
    }
    let ratio = best.decode_rate(shape) / first.decode_rate(shape);
    format!("it decodes {ratio:.2} times as fast as what llama.cpp takes by itself")
}

#[cfg(test)]
mod tests {
    use super::{Report, Sample, Setting, Shape, choose};
    use std::time::Duration;

    const SHAPE: Shape = Shape { n_rows: 4, n_context: 1024 };

    fn sample(flash_attn: bool, kv_unified: bool, decode_ms: u64, prefill_us: u64) -> Sample {
        Sample {
            setting: Setting { flash_attn, kv_unified },
            n_threads: 2,
            decode: Duration::from_millis(decode_ms),
            prefill_row: Duration::from_micros(prefill_us),
        }
    }

    #[test]
    fn the_fastest_is_chosen_and_noise_is_not() {
        let samples = [sample(true, true, 40, 4000), sample(false, true, 20, 4000)];
        assert_eq!(choose(SHAPE, &samples), Some(1));
        let samples = [sample(true, true, 40, 4000), sample(false, true, 39, 4000)];
        assert_eq!(choose(SHAPE, &samples), Some(0));
        assert_eq!(choose(SHAPE, &[]), None);
    }

    #[test]
    fn prompts_count_too() {
        // Decoding twice as fast does not pay for prompts that take three times as long.
        let samples = [sample(true, true, 40, 4000), sample(false, true, 20, 12_000)];
        assert_eq!(choose(SHAPE, &samples), Some(0));
    }

    #[test]
    fn streams_of_their_own_have_to_be_worth_what_they_cost() {
        let samples = [sample(true, true, 40, 4000), sample(true, false, 37, 3700)];
        assert_eq!(choose(SHAPE, &samples), Some(0));
        let samples = [sample(true, true, 40, 4000), sample(true, false, 20, 3700)];
        assert_eq!(choose(SHAPE, &samples), Some(1));
    }

    #[test]
    fn where_time_did_not_suffice_for_prompts_decoding_decides() {
        let samples = [sample(true, true, 40, 4000), sample(false, true, 20, 0)];
        assert_eq!(choose(SHAPE, &samples), Some(1));
    }

    #[test]
    fn a_report_says_why() {
        let report = Report::new(SHAPE, vec![sample(true, true, 40, 0), sample(false, true, 20, 0)], Duration::ZERO);
        assert_eq!(report.choice().setting, Setting { flash_attn: false, kv_unified: true });
        assert!(report.reason.contains("2.00 times"), "{}", report.reason);
    }
}
