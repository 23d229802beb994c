//! The scheduler: its state, and the calls of its contract. `admit.rs` gives slots, `batch.rs` plans
//! a pass, `apply.rs` takes its outcome, `finish.rs` ends a request.

use super::blocks::Blocks;
use super::cost::{Costs, Load};
use super::deadlines::TimeoutOrder;
use super::disk::Disk;
use super::embed_line::Embeds;
use super::event::{Event, FinishReason, PressureReason};
use super::ids::{BlobId, RequestId, SeqId, SlotId};
use super::line::Line;
use super::op::Op;
use super::request::Request;
use super::residency::Residency;
use super::running::{End, Live, Place};
use super::scheduler_options::SchedulerOptions;
use super::sequences::{Holder, Sequences};
use super::stats::Stats;
use super::threads::Threads;
use super::tiers::Tally;
use super::time::Time;
use super::transfer::{Sessions, TransferId};
use super::work::{Grant, Limits, Outcome, Work};
use crate::error::Error;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// Decides what is computed next. See [`crate::core`] for the contract.
#[derive(Debug)]
pub struct Scheduler {
    pub(super) options: SchedulerOptions,
    pub(super) limits: Limits,
    pub(super) live: BTreeMap<RequestId, Live>,
    /// Requests that wait for a slot.
    pub(super) line: Line,
    pub(super) embeds: Embeds,
    pub(super) slots: Vec<Option<RequestId>>,
    pub(super) sequences: Sequences,
    pub(super) ram: Blocks,
    pub(super) disk: Disk,
    pub(super) tally: Tally,
    /// Cells that the restores of the next `Prepare` take.
    pub(super) reserved: u32,
    /// Whether blocks were saved ahead since the last pass.
    pub(super) saved_ahead: bool,
    pub(super) residency: Residency,
    pub(super) sessions: Sessions,
    /// Sessions whose states the backend is about to take.
    pub(super) loading: Vec<(TransferId, Vec<BlobId>)>,
    /// Those whose states are part of the work under way.
    pub(super) importing: Vec<(TransferId, Vec<BlobId>)>,
    /// Cells that evictions of the next `Prepare` free.
    pub(super) freeing: u32,
    /// When a request's total or queue time is over.
    pub(super) deadlines: BTreeSet<(Time, RequestId, TimeoutOrder)>,
    /// What the next `Prepare` has to do.
    pub(super) ops: Vec<Op>,
    /// Requests whose start or resumption is told once the ops are done.
    pub(super) starting: Vec<RequestId>,
    pub(super) in_flight: bool,
    /// Whether there is no backend at the moment.
    pub(super) is_lost: bool,
    /// Requests that end as soon as the work under way is back.
    pub(super) doomed: Vec<RequestId>,
    pub(super) custom_grants: Option<Result<Vec<Grant>, String>>,
    /// Whose decode row came last.
    pub(super) last_served: Option<RequestId>,
    /// Rows that fitted after the backend said that more do not.
    pub(super) row_cap: Option<u32>,
    pub(super) costs: Costs,
    pub(super) threads: Threads,
    /// What the pass under way computes, and how long it was forecast to take.
    pub(super) load: Load,
    pub(super) forecast: Option<Duration>,
    /// When the last pass was over.
    pub(super) passed_at: Time,
    pub(super) pressure: Pressure,
    pub(super) n_admitted: u64,
    pub(super) totals: Stats,
    pub(super) events: VecDeque<Event>,
}

/// What was done for room since the last pass that succeeded.
#[derive(Debug, Default)]
pub(super) struct Pressure {
    pub(super) reason: PressureReason,
    pub(super) purged: Vec<SeqId>,
    pub(super) n_splits: u32,
    pub(super) n_parked: u32,
}

impl Scheduler {
    /// A scheduler over an empty KV cache with these limits.
    pub fn new(options: SchedulerOptions, limits: Limits) -> Self {
        assert!(options.n_parallel > 0 && options.n_parallel <= limits.n_seq_max, "a sequence for each slot");
        assert!(limits.n_batch > 0 && limits.n_ctx_seq > 0, "room for a row");
        let sequences = Sequences::new(limits.clone(), options.n_cache_seqs);
        let ram = Self::empty_ram(&options, &limits);
        let disk = Disk::new(limits.block, if ram.is_on() { options.disk_bytes } else { 0 });
        let slots = vec![None; options.n_parallel as usize];
        let threads = Threads::new(limits.n_threads);
        let (line, embeds) = (Line::new(options.priority_aging), Embeds::new(options.priority_aging));
        Self {
            options,
            limits,
            live: BTreeMap::new(),
            line,
            embeds,
            slots,
            sequences,
            ram,
            disk,
            tally: Tally::default(),
            reserved: 0,
            saved_ahead: false,
            residency: Residency::default(),
            sessions: Sessions::default(),
            loading: Vec::new(),
            importing: Vec::new(),
            freeing: 0,
            deadlines: BTreeSet::new(),
            ops: Vec::new(),
            starting: Vec::new(),
            in_flight: false,
            is_lost: false,
            doomed: Vec::new(),
            custom_grants: None,
            last_served: None,
            row_cap: None,
            costs: Costs::default(),
            threads,
            load: Load::default(),
            forecast: None,
            passed_at: Time::default(),
            pressure: Pressure::default(),
            n_admitted: 0,
            totals: Stats::default(),
            events: VecDeque::new(),
        }
    }

    /// Take a request in.
    ///
    /// # Errors
    /// [`Error::EmptyPrompt`], [`Error::ContextFull`] for a prompt that can never fit, [`Error::TextTooLong`] for such a
    /// text, [`Error::Prompt`] for a token that the vocabulary lacks, [`Error::Unsupported`] for what this model cannot do,
    /// [`Error::QueueFull`], [`Error::BackendLost`] while there is none and nobody is to wait for it. The request is then unknown to the scheduler.
    ///
    /// # Panics
    /// When a request is submitted twice.
    pub fn submit(&mut self, now: Time, request: Request) -> Result<(), Error> {
        let id = request.id;
        assert!(!self.live.contains_key(&id) && !self.embeds.has(id), "request {id} is submitted once");
        self.may_wait()?;
        let embed = match &request.embed {
            Some(embed) => Some(self.embeddable(embed)?),
            None => self.admissible(&request).map(|()| None)?,
        };
        self.has_room(&request)?;
        self.note_deadlines(now, &request);
        self.totals.n_submitted += 1;
        let (prompt_tokens, mode, session) = (request.n_prompt(), request.mode, request.session.clone());
        if let Some(embed) = embed {
            self.embeds.take_in(now, request, embed);
        } else {
            let flow = self.line.join(request.flow.as_ref());
            let turn = self.line.turn(flow, id, request.priority, now);
            let live = Live::new(request, turn, now);
            self.line.wait(turn);
            self.live.insert(id, live);
        }
        let queue_depth = self.queue_depth();
        self.events.push_back(Event::Queued { request: id, prompt_tokens, queue_depth, mode, session });
        Ok(())
    }

    /// Requests that have not ended.
    pub(super) fn n_live(&self) -> u64 {
        (self.live.len() + self.embeds.len()) as u64
    }

    /// End a request, wherever it is; unknown and ended ones are left alone.
    pub fn cancel(&mut self, now: Time, id: RequestId) {
        self.end(now, id, Ok(FinishReason::Cancelled));
    }

    /// What the core has to tell, oldest first.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The next thing to do; nothing while a work is under way or all is idle.
    pub fn plan(&mut self, now: Time) -> Option<Work> {
        if self.in_flight || self.is_lost {
            return None;
        }
        self.end_waits(now);
        self.admit(now);
        self.save_ahead();
        self.move_out();
        self.store_ahead();
        if self.ops.is_empty() {
            self.tell_starts();
            self.importing.append(&mut self.loading);
            self.tell_loaded();
        }
        let work = if self.ops.is_empty() { self.plan_turn(now) } else { None };
        let work = if self.ops.is_empty() { work } else { Some(self.prepare()) };
        self.in_flight = work.is_some();
        self.check_step();
        // In this order: the last is a walk over all who wait.
        assert!(
            work.is_some() || self.is_vacant() || (self.is_pending() && self.embeds.is_empty()),
            "nothing to do although requests are waiting"
        );
        work
    }

    /// A pass that generates and one over texts by turns, where there are both.
    fn plan_turn(&mut self, now: Time) -> Option<Work> {
        let texts = if self.embeds.is_next { self.plan_embed(now) } else { None };
        if !self.ops.is_empty() {
            return None;
        }
        self.embeds.is_next = false;
        let work = texts.or_else(|| self.plan_pass(now));
        if work.is_none() && self.ops.is_empty() {
            return self.plan_embed(now);
        }
        self.embeds.is_next = matches!(work, Some(Work::Decode(_)));
        work
    }

    /// What has been decided, as a work.
    fn prepare(&mut self) -> Work {
        self.importing.append(&mut self.loading);
        Work::Prepare(std::mem::take(&mut self.ops))
    }

    /// Take a work back with what came of it.
    ///
    /// # Panics
    /// When the outcome is not one of this work.
    pub fn apply(&mut self, now: Time, work: Work, outcome: Outcome) {
        assert!(self.in_flight, "an outcome without a work");
        self.in_flight = false;
        match (work, outcome) {
            (Work::Prepare(ops), Outcome::Prepare(results)) => self.apply_prepare(now, ops, results),
            (Work::Decode(rows), Outcome::Decode(outcome)) => self.apply_decode(now, &rows, outcome),
            (Work::Embed(parts), Outcome::Embed(outcome)) => self.apply_embed(now, &parts, outcome),
            (Work::Strategy(_), Outcome::Strategy(answer)) => self.custom_grants = Some(answer),
            (work, Outcome::Lost(error)) => self.apply_lost(now, work, &error),
            (Work::Prepare(_) | Work::Decode(_) | Work::Embed(_) | Work::Strategy(_), outcome) => {
                panic!("the outcome is of another kind than its work: {outcome:?}")
            }
        }
        self.end_doomed(now);
        self.check_step();
    }

    /// Whether nothing is running, waiting or to be done.
    pub fn is_idle(&self) -> bool {
        self.is_vacant() && self.ops.is_empty() && !self.in_flight
    }

    /// Whether there are no requests; something may still be done for later ones.
    pub fn is_vacant(&self) -> bool {
        self.live.is_empty() && self.embeds.is_empty()
    }

    /// Whether the backend has done all that was decided.
    pub fn is_settled(&self) -> bool {
        self.ops.is_empty() && !self.in_flight
    }

    /// Figures of this moment.
    pub fn stats(&self) -> Stats {
        let active_slots = self.running_ids().count() as u32;
        let (n_threads, n_threads_batch) = self.threads.counts();
        let [pass_cost_ns, decode_row_cost_ns, prefill_row_cost_ns, context_cost_ns] = self.costs.whole_ns();
        Stats {
            active_slots,
            idle_slots: self.options.n_parallel - active_slots,
            prefilling_slots: self.running_ids().filter(|id| !self.live[id].is_decoding()).count() as u32,
            queue_depth: self.queue_depth(),
            parked_requests: self.line.parked().len() as u32,
            n_parallel: self.options.n_parallel,
            n_batch: self.max_rows(),
            cached_sequences: self.sequences.n_cached(),
            ram_cache_entries: self.ram.n_blocks(),
            ram_cache_bytes: self.ram.n_bytes(),
            disk_cache_entries: self.disk.blocks.n_blocks(),
            disk_cache_bytes: self.disk.blocks.n_bytes(),
            kv_cells_used: self.sequences.n_cells_used(),
            kv_cells_running: self.sequences.n_cells_running(),
            kv_cells_total: self.sequences.n_cells(),
            embedding_requests: self.embeds.len() as u32,
            pass_cost_ns,
            decode_row_cost_ns,
            prefill_row_cost_ns,
            context_cost_ns,
            n_threads,
            n_threads_batch,
            ..self.totals.clone()
        }
    }

    pub(super) fn max_rows(&self) -> u32 {
        self.options.n_batch.min(self.limits.n_batch)
    }

    pub(super) fn queue_depth(&self) -> u32 {
        (self.line.n_waiting() + self.line.parked().len()) as u32
    }

    /// The requests that hold a slot, by slot.
    pub(super) fn running_ids(&self) -> impl Iterator<Item = RequestId> {
        self.slots.iter().flatten().copied()
    }

    /// End a request now, or as soon as the work under way is back.
    pub(super) fn end(&mut self, now: Time, id: RequestId, end: End) {
        if self.embeds.has(id) {
            return self.end_embed(now, id, end);
        }
        let Some(live) = self.live.get_mut(&id) else { return };
        if self.in_flight && live.place != Place::Waiting {
            if live.doomed.is_none() {
                live.doomed = Some(end);
                self.doomed.push(id);
            }
            return;
        }
        self.finish(now, id, end);
    }

    fn end_doomed(&mut self, now: Time) {
        for id in std::mem::take(&mut self.doomed) {
            if let Some(end) = self.live.get_mut(&id).and_then(|live| live.doomed.take()) {
                self.finish(now, id, end);
            }
        }
    }

    /// Forget a cached sequence.
    pub(super) fn drop_cached(&mut self, seq: SeqId) {
        self.sequences.release(seq);
        self.ops.push(Op::Remove(seq));
    }

    /// The request that runs on a sequence.
    pub(super) fn holder_mut(&mut self, seq: SeqId) -> Option<&mut Live> {
        match self.sequences.holder(seq)? {
            Holder::Request(id) => self.live.get_mut(id),
            Holder::Cached(_) => None,
        }
    }

    pub(super) fn free_slot(&self) -> Option<SlotId> {
        self.slots.iter().position(Option::is_none).map(|at| SlotId(at as u32))
    }
}
