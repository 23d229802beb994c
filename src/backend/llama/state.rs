//! The state of a sequence as bytes: what llama.cpp can take out of a memory and put into it again.

use super::context::Context;
use super::ffi::{self, guarded};
use super::ops::Rules;
use crate::core::{MemoryKind, SeqId, StateSize};

/// Which part of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    All,
    /// What stands beside full attention: the window, or the recurrent state.
    Beside,
}

/// The bytes that a sequence's state takes.
pub(super) fn size(context: &mut Context, seq: SeqId, part: Part) -> Result<usize, String> {
    let mut n = 0;
    let (id, in_part, nothing) = (seq.0 as i32, part == Part::Beside, std::ptr::null_mut());
    // SAFETY: the context is alive; without a buffer the size alone is asked.
    guarded(|err, cap| unsafe { ffi::lb_state_get(context.as_ptr(), id, in_part, nothing, 0, &raw mut n, err, cap) })?;
    if n > 0 { Ok(n) } else { Err(format!("the state of sequence {seq} has no size")) }
}

/// A sequence's state, in a buffer that fits it.
pub(super) fn get(context: &mut Context, seq: SeqId) -> Result<Box<[u8]>, String> {
    let mut state = vec![0; size(context, seq, Part::All)?];
    fill(context, seq, &mut state)?;
    Ok(state.into_boxed_slice())
}

fn fill(context: &mut Context, seq: SeqId, state: &mut [u8]) -> Result<(), String> {
    let mut n = 0;
    // SAFETY: the context is alive, and the buffer is as long as it says.
    guarded(|err, cap| unsafe {
        let (buffer, len) = (state.as_mut_ptr(), state.len());
        ffi::lb_state_get(context.as_ptr(), seq.0 as i32, false, buffer, len, &raw mut n, err, cap)
    })?;
    if n == state.len() { Ok(()) } else { Err(format!("the state of sequence {seq} could not be saved")) }
}

/// Replace a sequence by a state.
pub(super) fn set(context: &mut Context, seq: SeqId, state: &[u8]) -> Result<(), String> {
    let mut n = 0;
    // SAFETY: the context is alive, and the buffer is as long as it says.
    guarded(|err, cap| unsafe {
        ffi::lb_state_set(context.as_ptr(), seq.0 as i32, state.as_ptr(), state.len(), &raw mut n, err, cap)
    })?;
    if n == state.len() { Ok(()) } else { Err("a saved state was refused".into()) }
}

/// Give an empty sequence all that another holds, as cells of its own, by way of a buffer that is kept.
pub(super) fn clone_into(context: &mut Context, from: SeqId, to: SeqId, buffer: &mut Vec<u8>) -> Result<(), String> {
    buffer.resize(size(context, from, Part::All)?, 0);
    fill(context, from, buffer)?;
    set(context, to, buffer)
}

/// Whether a state of one stream of full attention holds positions `from..from + len`, each once. llama.cpp takes what is
/// written there: a cell of a negative position could never be removed again.
pub(super) fn holds_each_once(state: &[u8], from: u32, len: u32) -> bool {
    let (words, _) = state.as_chunks::<4>();
    // First a magic number, and the sequence that it was once.
    let mut words = words.iter().map(|word| u32::from_le_bytes(*word)).skip(2);
    let (Some(1), Some(n_cells)) = (words.next(), words.next()) else { return false };
    let mut there = vec![false; len as usize];
    for _ in 0..n_cells.min(len) {
        // A position, how many sequences hold it, and which.
        let (Some(pos), Some(1), Some(_)) = (words.next(), words.next(), words.next()) else { return false };
        let Some(cell) = pos.checked_sub(from).and_then(|at| there.get_mut(at as usize)) else { return false };
        *cell = true;
    }
    n_cells == len && there.iter().all(|there| *there)
}

/// What states take, measured on a sequence of one position, and after another one was added.
pub(super) struct Measured {
    all: [usize; 2],
    beside: [usize; 2],
}

impl Measured {
    /// Measure a sequence of one position; then, once it has two, again.
    pub(super) fn new() -> Self {
        Self { all: [0; 2], beside: [0; 2] }
    }

    pub(super) fn measure(&mut self, context: &mut Context, rules: Rules, seq: SeqId) {
        let Some((_, last)) = rules.held(context, seq) else { return };
        let at = (last as usize).min(1);
        self.all[at] = size(context, seq, Part::All).unwrap_or(0);
        let windowed = matches!(rules.memory, MemoryKind::SlidingWindow(_));
        self.beside[at] = if windowed { size(context, seq, Part::Beside).unwrap_or(0) } else { 0 };
    }

    pub(super) fn state_size(&self) -> StateSize {
        let growth = |sizes: [usize; 2]| sizes[1].saturating_sub(sizes[0]) as u64;
        let (per_token, per_window_token) = (growth(self.all), growth(self.beside));
        StateSize {
            // What is laid out by ranges of cells takes a little more where those are scattered.
            fixed: (self.all[0] as u64).saturating_sub(per_token) + SLACK,
            per_token: per_token.saturating_sub(per_window_token),
            per_window_token,
        }
    }
}

/// Unit: bytes.
const SLACK: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::holds_each_once;

    fn state(positions: &[u32]) -> Vec<u8> {
        let cells = positions.iter().flat_map(|pos| [*pos, 1, 7]);
        [0xffff, 7, 1, positions.len() as u32].into_iter().chain(cells).flat_map(u32::to_le_bytes).collect()
    }

    #[test]
    fn a_state_names_its_positions() {
        assert!(holds_each_once(&state(&[65, 64, 66]), 64, 3));
        for wrong in [&[64, 65][..], &[64, 65, 65], &[63, 64, 65], &[64, 65, 0x8100_0042], &[64, 65, 66, 67], &[]] {
            assert!(!holds_each_once(&state(wrong), 64, 3), "{wrong:?}");
        }
        assert!(!holds_each_once(&state(&[64, 65, 66])[..38], 64, 3));
        assert!(!holds_each_once(&[], 0, 1));
    }
}
