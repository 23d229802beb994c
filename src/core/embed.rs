//! Requests for embeddings, in passes of their own between those that generate.
//!
//! They hold no slot and no KV cells of those that generate. Where both have something to compute, a pass of the one kind
//! follows a pass of the other; while anybody decodes, a pass over texts is short. Who is next is `embed_line.rs`.

use super::embed_line::Begun;
use super::event::{Event, FinishReason, Finished, PrefixReason, PrefixSource, Timings, Usage};
use super::ids::RequestId;
use super::running::End;
use super::scheduler::Scheduler;
use super::time::Time;
use super::vectors::{Embed, EmbedOutcome, EmbedPart, EmbedStatus, Embedded, normalize};
use super::work::Work;
use crate::error::Error;
use crate::options::Pooling;
use std::collections::BTreeSet;
use std::time::Duration;

/// Rows of a pass over texts while somebody decodes: few enough that a stream hardly feels it, and enough that computing
/// them together is worth it.
const BESIDE_STREAMS: u32 = 64;

/// Failed passes in a row after which a request that was in them fails.
const MAX_FAILURES: u32 = 2;

impl Scheduler {
    /// What is asked for with its pooling settled, if it can be had.
    pub(super) fn embeddable(&self, embed: &Embed) -> Result<Embed, Error> {
        let unsupported = |what: &str| Err(Error::Unsupported(what.into()));
        let Some(limits) = &self.limits.embed else { return unsupported("this model computes no embeddings") };
        if embed.texts.is_empty() || embed.texts.iter().any(|text| text.is_empty()) {
            return Err(Error::EmptyPrompt);
        }
        for (index, text) in (0..).zip(embed.texts.iter()) {
            self.known_tokens(text)?;
            let n_tokens = text.len() as u32;
            if n_tokens > limits.n_text {
                return Err(Error::TextTooLong { index, n_tokens, n_max: limits.n_text, bound: limits.bound });
            }
        }
        let pooling = if embed.pooling == Pooling::Auto { limits.pooling } else { embed.pooling };
        if pooling == Pooling::Auto {
            return unsupported("this model ranks texts and has no embedding of its own: pooling must name one");
        }
        Ok(Embed { pooling, ..embed.clone() })
    }

    /// A pass over texts, if any wait.
    pub(super) fn plan_embed(&mut self, now: Time) -> Option<Work> {
        let limits = self.limits.embed.filter(|_| !self.embeds.is_empty())?;
        if self.man_fully() {
            return None;
        }
        let beside_streams = self.running_ids().any(|id| self.live[&id].is_decoding());
        let most = if beside_streams { BESIDE_STREAMS.min(self.options.chunk_size) } else { u32::MAX };
        let parts = self.embeds.gather(now, &limits, limits.n_batch.min(most));
        for part in &parts {
            self.tell_first_text(now, part.request);
        }
        (!parts.is_empty()).then_some(Work::Embed(parts))
    }

    fn tell_first_text(&mut self, now: Time, id: RequestId) {
        let Some(job) = self.embeds.jobs.get_mut(&id).filter(|job| job.started_at.is_none()) else { return };
        job.started_at = Some(now);
        self.events.push_back(Event::Started {
            request: id,
            seq: None,
            prompt_tokens: job.request.n_prompt(),
            prefix_cache_tokens: 0,
            prefix_source: PrefixSource::None,
            prefix_reason: PrefixReason::Off,
            queue: now - job.submitted_at,
            mode: job.request.mode,
            session: None,
        });
    }

    pub(super) fn apply_embed(&mut self, now: Time, parts: &[EmbedPart], outcome: EmbedOutcome) {
        let requests: BTreeSet<RequestId> = parts.iter().map(|part| part.request).collect();
        for id in &requests {
            if let Some(job) = self.embeds.jobs.get_mut(id) {
                job.n_in_pass = 0;
            }
        }
        match outcome.status {
            EmbedStatus::Done(vectors) => self.texts_done(now, parts, vectors, outcome.eval),
            EmbedStatus::Failed { code, reason } => self.texts_failed(now, parts, &requests, code, &reason),
            EmbedStatus::Refused(error) => {
                self.embeds.give_back(now, parts);
                for id in &requests {
                    self.end_embed(now, *id, Err(error.clone()));
                }
            }
        }
        for id in requests {
            if let Some(end) = self.embeds.jobs.get_mut(&id).and_then(|job| job.doomed.take()) {
                self.end_embed(now, id, end);
            }
        }
    }

    fn texts_done(&mut self, now: Time, parts: &[EmbedPart], vectors: Vec<Vec<f32>>, eval: Duration) {
        let n_ended = parts.iter().filter(|part| part.is_last()).count();
        assert_eq!(vectors.len(), n_ended, "a vector for each text that ends");
        let n_rows = parts.iter().map(|part| part.tokens.len() as u32).sum();
        self.totals.n_embedded_tokens += u64::from(n_rows);
        self.totals.n_ticks += 1;
        self.saved_ahead = false;
        self.disk.pass_done();
        self.events.push_back(Event::Tick {
            batch_size: n_rows,
            decode_tokens: 0,
            draft_tokens: 0,
            prefill_tokens: n_rows,
            active_slots: self.running_ids().count() as u32,
            queue_depth: self.queue_depth(),
            eval,
            sample: Duration::ZERO,
            forecast: None,
        });
        let mut vectors = vectors.into_iter();
        self.embeds.is_wary = false;
        self.embeds.begun = None;
        for part in parts {
            let vector = if part.is_last() { vectors.next() } else { None };
            let Some(job) = self.embeds.jobs.get_mut(&part.request) else { continue };
            job.n_failures = 0;
            job.n_computed += part.tokens.len() as u32;
            match vector {
                Some(vector) => self.text_done(now, part, vector),
                None => {
                    self.embeds.begun = Some(Begun { request: part.request, index: part.index, n_done: part.end() });
                }
            }
        }
    }

    fn text_done(&mut self, now: Time, part: &EmbedPart, mut vector: Vec<f32>) {
        let n_embd = self.limits.embed.map_or(0, |limits| limits.n_embd);
        let n_vectors = if part.pooling == Pooling::None { part.n_text } else { 1 };
        assert_eq!(vector.len(), n_vectors as usize * n_embd as usize, "a vector has the model's width");
        let Some(job) = self.embeds.jobs.get_mut(&part.request) else { return };
        if vector.iter().any(|value| !value.is_finite()) {
            // A text that was done is in no place any more.
            job.n_done += 1;
            let reason = format!("the model gave no numbers for text {} of the input", part.index);
            return self.end_embed(now, part.request, Err(Error::Inference(reason)));
        }
        normalize(&mut vector, n_embd, job.embed.normalize);
        job.vectors[part.index as usize] = vector;
        job.n_done += 1;
        self.totals.n_embedded_texts += 1;
        if job.n_done == job.embed.texts.len() {
            self.end_embed(now, part.request, Ok(FinishReason::Embedded));
        }
    }

    fn texts_failed(
        &mut self,
        now: Time,
        parts: &[EmbedPart],
        requests: &BTreeSet<RequestId>,
        code: i32,
        reason: &str,
    ) {
        const ABORTED: i32 = 2;
        self.embeds.give_back(now, parts);
        if code == ABORTED {
            return;
        }
        self.embeds.is_wary = true;
        for id in requests {
            let Some(job) = self.embeds.jobs.get_mut(id) else { continue };
            job.n_failures += 1;
            if job.n_failures >= MAX_FAILURES {
                let error = Error::Inference(format!("{reason} (llama_decode returned {code})"));
                self.end_embed(now, *id, Err(error));
            }
        }
    }

    /// End a request for embeddings now, or as soon as its pass is back.
    pub(super) fn end_embed(&mut self, now: Time, id: RequestId, end: End) {
        if let Some(job) = self.embeds.jobs.get_mut(&id).filter(|job| job.n_in_pass > 0) {
            job.doomed.get_or_insert(end);
            return;
        }
        let Some(job) = self.embeds.remove(id) else { return };
        self.forget_deadlines(&job.request, job.submitted_at);
        self.count_end(&end);
        let total = now - job.submitted_at;
        let started = job.started_at.unwrap_or(now);
        let prompt_tokens = job.request.n_prompt();
        if end == Ok(FinishReason::Embedded) {
            let n_tokens = job.embed.texts.iter().map(|text| text.len() as u32).collect();
            let embedded = Embedded { vectors: job.vectors, n_tokens, pooling: job.embed.pooling };
            self.events.push_back(Event::Embedded { request: id, embedded });
        }
        self.events.push_back(Event::Finished(Box::new(Finished {
            request: id,
            end,
            stopped_by: None,
            usage: Usage { prompt_tokens, ..Usage::default() },
            timings: Timings {
                queue: started - job.submitted_at,
                ttft: total,
                total,
                prefill: now - started,
                decode: Duration::ZERO,
            },
            seq: None,
            mode: job.request.mode,
            session: None,
            prefix_source: PrefixSource::None,
            prefix_reason: PrefixReason::Off,
            n_prefilled: job.n_computed,
            prompt_told: Vec::new(),
        })));
    }
}
