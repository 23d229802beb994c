//! The line of those who want embeddings: as for slots, and those of one flow take turns text by text, so that who has
//! thousands of texts keeps nobody waiting who has one.

use super::ids::RequestId;
use super::line::{Line, Turn};
use super::request::Request;
use super::running::End;
use super::time::Time;
use super::vectors::{Embed, EmbedLimits, EmbedPart};
use crate::options::Key;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// One request for embeddings.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) request: Request,
    pub(super) embed: Embed,
    pub(super) submitted_at: Time,
    pub(super) started_at: Option<Time>,
    /// Its place in the line.
    turn: Turn,
    /// Texts that are not in a pass, nor begun, nor done.
    pending: VecDeque<u32>,
    /// What there is; empty for those that are not done.
    pub(super) vectors: Vec<Vec<f32>>,
    pub(super) n_done: usize,
    /// Its texts in the pass under way.
    pub(super) n_in_pass: u32,
    pub(super) n_failures: u32,
    /// Rows computed for it.
    pub(super) n_computed: u32,
    /// Set when it has to end but is part of the work under way.
    pub(super) doomed: Option<End>,
}

/// A text that takes more passes than one, and how far it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begun {
    pub(super) request: RequestId,
    pub(super) index: u32,
    pub(super) n_done: u32,
}

/// All requests for embeddings.
#[derive(Debug)]
pub(super) struct Embeds {
    pub(super) jobs: BTreeMap<RequestId, Job>,
    /// Those that have pending texts.
    line: Line,
    n_turns: u64,
    pub(super) begun: Option<Begun>,
    /// Whether a pass has one text: one failed, and nobody knows by whose fault.
    pub(super) is_wary: bool,
    /// Whether the last pass was one that generates.
    pub(super) is_next: bool,
}

impl Embeds {
    /// None yet; they gain a level of priority in so much time.
    pub(super) fn new(aging: Duration) -> Self {
        let line = Line::new(aging);
        Self { jobs: BTreeMap::new(), line, n_turns: 0, begun: None, is_wary: false, is_next: false }
    }

    /// Requests of a flow.
    pub(super) fn n_requests(&self, flow: Option<&Key>) -> u32 {
        self.line.n_requests(flow)
    }

    pub(super) fn len(&self) -> usize {
        self.jobs.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    pub(super) fn has(&self, id: RequestId) -> bool {
        self.jobs.contains_key(&id)
    }

    /// A request, and whether nothing of it was computed yet.
    pub(super) fn find(&self, id: RequestId) -> Option<(&Request, bool)> {
        self.jobs.get(&id).map(|job| (&job.request, job.started_at.is_none()))
    }

    pub(super) fn take_in(&mut self, now: Time, request: Request, embed: Embed) {
        let (id, n_texts) = (request.id, embed.texts.len());
        let flow = self.line.join(request.flow.as_ref());
        let turn = self.line.turn(flow, id, request.priority, now);
        let job = Job {
            request,
            embed,
            submitted_at: now,
            started_at: None,
            turn,
            pending: (0..n_texts as u32).collect(),
            vectors: vec![Vec::new(); n_texts],
            n_done: 0,
            n_in_pass: 0,
            n_failures: 0,
            n_computed: 0,
            doomed: None,
        };
        self.jobs.insert(id, job);
        self.line_up(now, id);
    }

    /// Put a request at the end of its line, if it has texts for another turn; else out of it.
    fn line_up(&mut self, now: Time, id: RequestId) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if job.pending.is_empty() {
            return self.line.remove(job.turn);
        }
        self.n_turns += 1;
        job.turn = self.line.again(now, job.turn, self.n_turns);
    }

    pub(super) fn remove(&mut self, id: RequestId) -> Option<Job> {
        let job = self.jobs.remove(&id)?;
        self.line.remove(job.turn);
        self.line.leave(job.turn.flow);
        self.begun = self.begun.filter(|begun| begun.request != id);
        Some(job)
    }

    /// The parts of the next pass, of at most so many rows; more only where one text must be read whole.
    pub(super) fn gather(&mut self, now: Time, limits: &EmbedLimits, n_rows: u32) -> Vec<EmbedPart> {
        if let Some(begun) = self.begun {
            return self.part(begun.request, begun.index, begun.n_done, n_rows).into_iter().collect();
        }
        let most = if self.is_wary { 1 } else { limits.n_texts as usize };
        let (mut parts, mut n_left) = (Vec::new(), n_rows);
        while parts.len() < most
            && n_left > 0
            && let Some(turn) = self.line.next(now)
        {
            let id = turn.id;
            let job = self.jobs.get_mut(&id).expect("who is in line is alive");
            let index = *job.pending.front().expect("who is in line has a text");
            let n_text = job.embed.texts[index as usize].len() as u32;
            if n_text > n_left && !parts.is_empty() {
                break;
            }
            job.pending.pop_front();
            if n_text > n_left && limits.in_parts {
                self.begun = Some(Begun { request: id, index, n_done: 0 });
            }
            parts.extend(self.part(id, index, 0, if limits.in_parts { n_left } else { n_text }));
            self.line.serve(turn.flow, n_text.into());
            self.line_up(now, id);
            n_left = n_left.saturating_sub(n_text);
        }
        parts
    }

    fn part(&mut self, id: RequestId, index: u32, from: u32, n_most: u32) -> Option<EmbedPart> {
        let job = self.jobs.get_mut(&id)?;
        job.n_in_pass += 1;
        let text = &job.embed.texts[index as usize];
        let n_text = text.len() as u32;
        let end = n_text.min(from + n_most);
        let is_whole = from == 0 && end == n_text;
        let tokens = if is_whole { Arc::clone(text) } else { text[from as usize..end as usize].into() };
        Some(EmbedPart { request: id, index, from, tokens, n_text, pooling: job.embed.pooling })
    }

    /// A pass failed: its texts are computed again, from their beginnings.
    pub(super) fn give_back(&mut self, now: Time, parts: &[EmbedPart]) {
        self.begun = None;
        for part in parts.iter().rev() {
            if let Some(job) = self.jobs.get_mut(&part.request) {
                job.pending.push_front(part.index);
            }
            self.line_up(now, part.request);
        }
    }

    /// What was read of a text is lost: it is read again, from its beginning.
    pub(super) fn rewind(&mut self, now: Time) {
        let Some(begun) = self.begun.take() else { return };
        if let Some(job) = self.jobs.get_mut(&begun.request) {
            job.pending.push_front(begun.index);
            self.line_up(now, begun.request);
        }
    }

    /// All that holds between two works.
    ///
    /// # Panics
    /// When something does not.
    pub(super) fn check(&self) {
        for (id, job) in &self.jobs {
            let is_begun = self.begun.is_some_and(|begun| begun.request == *id);
            let n_open = job.pending.len() + usize::from(is_begun);
            assert_eq!(job.n_done + n_open, job.embed.texts.len(), "every text of request {id} is in one place");
            assert_eq!(job.vectors.iter().filter(|vector| !vector.is_empty()).count(), job.n_done);
            assert!(n_open > 0, "request {id} has ended");
            assert!(job.n_in_pass == 0 && job.doomed.is_none(), "request {id} is in no pass");
            let (is_in_line, _) = self.line.holds(&job.turn);
            assert_eq!(is_in_line, !job.pending.is_empty(), "who has pending texts is in line");
        }
        self.line.check(self.jobs.len());
        let n_pending = self.jobs.values().filter(|job| !job.pending.is_empty()).count();
        assert_eq!(self.line.n_waiting(), n_pending, "who is in line is alive");
        assert!(self.begun.is_none_or(|begun| self.has(begun.request)), "whose text is begun is alive");
    }
}
