//! The rows of a pass, laid out as llama.cpp reads them. Reused from pass to pass.

use crate::core::{Row, Token};
use llama_cpp_sys_2 as sys;

/// Buffers for `n_max` rows of one sequence each.
#[derive(Debug)]
pub(super) struct Batch {
    tokens: Vec<Token>,
    positions: Vec<i32>,
    n_seqs: Vec<i32>,
    seqs: Vec<i32>,
    seq_pointers: Vec<*mut i32>,
    outputs: Vec<i8>,
}

impl Batch {
    /// Room for so many rows.
    pub(super) fn new(n_max: usize) -> Self {
        Self {
            tokens: Vec::with_capacity(n_max),
            positions: Vec::with_capacity(n_max),
            n_seqs: vec![1; n_max],
            seqs: Vec::with_capacity(n_max),
            seq_pointers: Vec::with_capacity(n_max),
            outputs: Vec::with_capacity(n_max),
        }
    }

    /// Lay out rows, no more than there is room for. The result points into this batch.
    pub(super) fn fill(&mut self, rows: &[Row]) -> sys::llama_batch {
        assert!(rows.len() <= self.n_seqs.len(), "a pass of {} rows in a batch of {}", rows.len(), self.n_seqs.len());
        self.tokens.clear();
        self.positions.clear();
        self.seqs.clear();
        self.outputs.clear();
        for row in rows {
            self.tokens.push(row.token);
            self.positions.push(row.pos as i32);
            self.seqs.push(row.seq.0 as i32);
            self.outputs.push(i8::from(row.is_looked_at()));
        }
        self.seq_pointers.clear();
        self.seq_pointers.extend(self.seqs.iter_mut().map(std::ptr::from_mut));
        sys::llama_batch {
            n_tokens: rows.len() as i32,
            token: self.tokens.as_mut_ptr(),
            embd: std::ptr::null_mut(),
            pos: self.positions.as_mut_ptr(),
            n_seq_id: self.n_seqs.as_mut_ptr(),
            seq_id: self.seq_pointers.as_mut_ptr(),
            logits: self.outputs.as_mut_ptr(),
        }
    }
}

/// What llama.cpp would abort on, or take for something else: the reason why these rows are no pass.
pub(super) fn flaw(rows: &[Row], bounds: &Bounds) -> Option<String> {
    if rows.is_empty() {
        return Some("a pass has no rows".into());
    }
    if rows.len() > bounds.n_batch as usize {
        return Some(format!("a pass has {} rows; {} fit", rows.len(), bounds.n_batch));
    }
    let n_outputs = rows.iter().filter(|row| row.is_looked_at()).count();
    if n_outputs > bounds.n_outputs as usize {
        return Some(format!("{n_outputs} rows have their logits looked at; {} may", bounds.n_outputs));
    }
    rows.iter().find_map(|row| {
        if row.seq.0 >= bounds.n_seq_max {
            Some(format!("sequence {} cannot be computed; 0 to {} can", row.seq, bounds.n_seq_max - 1))
        } else if !u32::try_from(row.token).is_ok_and(|token| token < bounds.n_vocab) {
            Some(format!("{} is not a token: there are {}", row.token, bounds.n_vocab))
        } else if row.pos >= bounds.n_positions {
            Some(format!("position {} is beyond the {} that the model has", row.pos, bounds.n_positions))
        } else {
            None
        }
    })
}

/// What a pass must keep to.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_field_names, reason = "counts are named n_*")]
pub(super) struct Bounds {
    pub(super) n_batch: u32,
    pub(super) n_outputs: u32,
    pub(super) n_seq_max: u32,
    pub(super) n_vocab: u32,
    pub(super) n_positions: u32,
}

#[cfg(test)]
mod tests {
    use super::{Batch, Bounds, flaw};
    use crate::core::{RequestId, Row, SeqId};

    const BOUNDS: Bounds = Bounds { n_batch: 2, n_outputs: 1, n_seq_max: 3, n_vocab: 10, n_positions: 8 };

    fn row(seq: u32, pos: u32, token: i32, draws: bool) -> Row {
        Row { request: RequestId(1), seq: SeqId(seq), pos, token, draws, scores: false }
    }

    #[test]
    fn rows_that_llama_cpp_would_abort_on_are_refused() {
        assert_eq!(flaw(&[row(2, 7, 9, true), row(2, 7, 0, false)], &BOUNDS), None);
        for rows in [
            vec![],
            vec![row(0, 0, 0, false); 3],
            vec![row(0, 0, 0, true); 2],
            vec![row(3, 0, 0, false)],
            vec![row(0, 0, 10, false)],
            vec![row(0, 0, -1, false)],
            vec![row(0, 8, 0, false)],
        ] {
            assert!(flaw(&rows, &BOUNDS).is_some(), "{rows:?}");
        }
    }

    #[test]
    fn a_batch_is_reused_without_moving() {
        let mut batch = Batch::new(4);
        let first = batch.fill(&[row(1, 5, 7, false), row(2, 6, 8, true)]);
        let second = batch.fill(&[row(2, 0, 3, true)]);
        assert_eq!((first.token, first.seq_id), (second.token, second.seq_id));
        assert_eq!(second.n_tokens, 1);
    }
}
