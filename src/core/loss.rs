//! A backend that is gone, with all that it held: cells, samplers, copies in RAM. What outlives it is the core's: tokens,
//! the queue, and what is on disk.
//!
//! Who was told to have started has lost its sampler and fails; its caller may ask again. Whose start was still being
//! prepared has lost nothing: it goes back to its place in line, once, so that no request can end backend after backend.

use super::blocks::Blocks;
use super::event::Event;
use super::ids::RequestId;
use super::op::Op;
use super::residency::Residency;
use super::running::Place;
use super::scheduler::{Pressure, Scheduler};
use super::scheduler_options::SchedulerOptions;
use super::sequences::Sequences;
use super::time::Time;
use super::work::{Limits, Work};
use crate::error::Error;
use crate::options::OnBackendLoss;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Backends that may be lost under a request that is not told to have started.
const MAX_LOSSES: u32 = 2;

/// What happens to a backend, for telemetry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BackendEvent {
    /// It is gone.
    Lost {
        /// Why.
        reason: String,
        /// The servers that may be why, as `host:port`, with commas; empty where it computed with none.
        endpoint: String,
    },
    /// It is about to be made again.
    Retry {
        /// Which time, counted from 1.
        attempt: u32,
        /// How long that is waited for first.
        delay: Duration,
        /// Why there is none.
        reason: String,
    },
    /// There is one again.
    Restored {
        /// The times that it took.
        attempts: u32,
        /// Since the loss.
        took: Duration,
    },
    /// A work takes unusually long; it goes on.
    Slow {
        /// So far.
        elapsed: Duration,
        /// The servers that it may wait for, as `host:port`, with commas: those in trouble, or else all.
        endpoint: String,
        /// What is wrong with them, where that can be seen.
        reason: Option<String>,
    },
}

impl Scheduler {
    /// The RAM tier, empty.
    pub(super) fn empty_ram(options: &SchedulerOptions, limits: &Limits) -> Blocks {
        Blocks::new(limits.block, options.ram_bytes.unwrap_or(limits.ram_bytes))
    }

    /// Whether a request may come in and wait.
    pub(super) fn may_wait(&self) -> Result<(), Error> {
        if self.is_lost && self.options.on_backend_loss == OnBackendLoss::Fail {
            return Err(Error::BackendLost("it is being made again (on_backend_loss=\"fail\")".into()));
        }
        Ok(())
    }

    /// Sessions are saved and loaded through the backend.
    pub(super) fn needs_backend(&self) -> Result<(), Error> {
        if self.is_lost { Err(Error::BackendLost("it is being made again".into())) } else { Ok(()) }
    }

    /// Whether there is no backend at the moment.
    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// The backend is gone while it had nothing to do.
    ///
    /// # Panics
    /// When a work is under way: then [`super::Outcome::Lost`] is what came of it.
    pub fn lose_backend(&mut self, now: Time, error: &Error) {
        assert!(!self.in_flight, "what comes of a work is its outcome");
        self.lose_all(now, Vec::new(), error);
        self.fail_waiting(now, error);
        self.check_step();
    }

    /// The backend is gone, and the work under way with it.
    pub(super) fn apply_lost(&mut self, now: Time, work: Work, error: &Error) {
        let mut in_pass: Vec<RequestId> = Vec::new();
        let ops = match work {
            Work::Prepare(ops) => ops,
            Work::Embed(parts) => {
                self.embeds.give_back(now, &parts);
                in_pass.extend(parts.iter().map(|part| part.request));
                Vec::new()
            }
            Work::Decode(_) | Work::Strategy(_) => Vec::new(),
        };
        self.lose_all(now, ops, error);
        for id in in_pass {
            // Once for each of its texts in the pass.
            let Some(job) = self.embeds.jobs.get_mut(&id) else { continue };
            job.n_in_pass = 0;
            let end = job.doomed.take().unwrap_or_else(|| Err(error.clone()));
            self.end_embed(now, id, end);
        }
        self.fail_waiting(now, error);
    }

    fn lose_all(&mut self, now: Time, ops: Vec<Op>, error: &Error) {
        self.is_lost = true;
        self.forget_ops(ops, error);
        self.sequences = Sequences::new(self.limits.clone(), self.options.n_cache_seqs);
        self.ram = Self::empty_ram(&self.options, &self.limits);
        (self.reserved, self.freeing, self.saved_ahead, self.row_cap) = (0, 0, false, None);
        self.residency = Residency::default();
        self.pressure = Pressure::default();
        self.custom_grants = None;
        self.starting.clear();
        self.doomed.clear();
        self.slots.fill(None);
        self.embeds.rewind(now);
        let held = self.live.iter().filter(|(_, live)| live.place != Place::Waiting).map(|(id, _)| *id);
        for id in held.collect::<Vec<RequestId>>() {
            self.take_from(now, id, error);
        }
    }

    /// What was to be done, or was perhaps done, to what is gone. The disk is left as the account has it: what was to be
    /// stored may be there or not, and goes.
    fn forget_ops(&mut self, ops: Vec<Op>, error: &Error) {
        let mut failed = Vec::new();
        for op in ops.into_iter().chain(std::mem::take(&mut self.ops)).collect::<Vec<Op>>() {
            match op {
                Op::Store { entry, .. } => {
                    let gone = self.disk.blocks.forget(entry);
                    self.ops.extend(gone.into_iter().map(Op::Discard));
                }
                Op::Discard(entry) => self.ops.push(Op::Discard(entry)),
                Op::Export { transfer, .. } => failed.push(transfer),
                Op::Open { .. }
                | Op::Close(_)
                | Op::Copy { .. }
                | Op::Trim { .. }
                | Op::Remove(_)
                | Op::Save { .. }
                | Op::Restore { .. }
                | Op::Forget(_)
                | Op::Import { .. }
                | Op::Load { .. }
                | Op::Touch(_)
                | Op::Threads(_)
                | Op::Compact { .. } => {}
            }
        }
        self.disk.forget_ram();
        let loading = self.loading.drain(..).chain(self.importing.drain(..)).map(|(transfer, _)| transfer);
        failed.extend(loading);
        for transfer in failed {
            self.events.push_back(Event::TransferFailed { transfer, error: error.clone() });
        }
    }

    /// A request has lost its slot, its cells and its sampler: it ends, or waits again if nothing of it had begun.
    fn take_from(&mut self, now: Time, id: RequestId, error: &Error) {
        let Some(live) = self.live.get_mut(&id) else { return };
        live.place = Place::Waiting;
        live.has_sampler = false;
        live.is_pending = false;
        (live.n_computed, live.pos_min, live.n_failures) = (0, 0, 0);
        live.checkpoints.clear();
        (live.awaits, live.loaded_at, live.parked_for) = (None, None, None);
        live.n_losses += 1;
        if let Some(end) = live.doomed.take() {
            return self.finish(now, id, end);
        }
        if live.is_told || live.n_losses >= MAX_LOSSES {
            return self.finish(now, id, Err(error.clone()));
        }
        live.started_at = None;
        let (turn, n_prepaid) = (live.turn, std::mem::take(&mut live.n_prepaid));
        self.line.refund(turn.flow, n_prepaid.into());
        self.line.wait(turn);
    }

    /// Nobody waits for a new backend where that is so chosen.
    fn fail_waiting(&mut self, now: Time, error: &Error) {
        if self.options.on_backend_loss == OnBackendLoss::Wait {
            return;
        }
        let waiting: Vec<RequestId> = self.live.keys().chain(self.embeds.jobs.keys()).copied().collect();
        for id in waiting {
            self.end(now, id, Err(error.clone()));
        }
    }

    /// There is a backend again, as empty as the first one was. Who waits goes on; who does not fit any more ends.
    ///
    /// # Errors
    /// [`Error::ModelLoad`] where it is of another model or kind than the one that was lost: of no use here.
    ///
    /// # Panics
    /// When there is one already.
    pub fn restore_backend(&mut self, now: Time, limits: Limits) -> Result<(), Error> {
        assert!(self.is_lost, "a second backend");
        let kind = |limits: &Limits| {
            let Limits { n_vocab, memory, is_pool, block, generates, .. } = *limits;
            (n_vocab, memory, is_pool, block, generates)
        };
        let width = |limits: &Limits| limits.embed.map(|embed| embed.n_embd);
        if kind(&limits) != kind(&self.limits)
            || width(&limits) != width(&self.limits)
            || limits.n_seq_max < self.options.n_parallel
        {
            return Err(Error::ModelLoad(
                "what was loaded again is another model than before, or has less room".into(),
            ));
        }
        self.sequences = Sequences::new(limits.clone(), self.options.n_cache_seqs);
        self.ram = Self::empty_ram(&self.options, &limits);
        self.threads.begin_anew(limits.n_threads);
        self.limits = limits;
        self.is_lost = false;
        let requests = self.live.iter().map(|(id, live)| (*id, self.admissible(&live.request).err()));
        let texts = self.embeds.jobs.iter().map(|(id, job)| (*id, self.embeddable(&job.embed).err()));
        let misfits: Vec<(RequestId, Option<Error>)> = requests.chain(texts).collect();
        for (id, error) in misfits {
            if let Some(error) = error {
                self.end(now, id, Err(error));
            }
        }
        self.check_step();
        Ok(())
    }
}
