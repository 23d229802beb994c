//! Where a prompt pauses on its way into the KV cache: where its state is saved, or where others wait to go on from.
//!
//! Of full attention any part of a sequence can be had at any time. A sliding window and a recurrent state are there only
//! where the sequence stands, so that it has to stand where somebody will need it.

use super::ids::RequestId;
use super::memory::MemoryKind;
use super::running::Live;
use super::scheduler::Scheduler;
use super::time::Time;

/// Tokens that are worth a checkpoint.
const MIN_CHECKPOINT: u32 = 32;

impl Scheduler {
    /// Decide where the state of a request will be saved: close to the end of its prompt, where an identical one and the
    /// next turn of a conversation go on; and where it parted from another that could not give its beginning, since a
    /// third may come with that.
    pub(super) fn set_checkpoints(&mut self, id: RequestId) {
        let live = &self.live[&id];
        let n_prompt = live.n_prompt();
        let end = match self.limits.memory {
            MemoryKind::Full => return,
            // Its last token can still be taken away.
            MemoryKind::SlidingWindow(_) => n_prompt,
            MemoryKind::Recurrent | MemoryKind::Hybrid => n_prompt - 1,
        };
        if !live.request.keeps() || !self.ram.is_on() {
            return;
        }
        let lens = [self.parting(live), end];
        let at = live.n_computed;
        let checkpoints = lens.into_iter().filter(|len| *len > at && *len >= MIN_CHECKPOINT).collect();
        if let Some(live) = self.live.get_mut(&id) {
            live.checkpoints = checkpoints;
        }
    }

    /// Tokens that a request has in common with another whose beginning could not be had.
    pub(super) fn parting(&self, live: &Live) -> u32 {
        let scope = live.request.scope.as_ref();
        let tokens = &live.request.prompt[..live.request.prompt.len() - 1];
        let running = self.sequences.matches(scope, tokens).find(|(seq, ..)| Some(*seq) != live.seq());
        let saved = self.ram.matches(scope, tokens).map(|(.., len)| len).next();
        let len = running.map_or(0, |(.., len)| len as u32).max(saved.unwrap_or(0));
        // Close to either end it is not worth a pause.
        if len + MIN_CHECKPOINT <= live.n_prompt() && len >= live.n_computed + MIN_CHECKPOINT { len } else { 0 }
    }

    /// Tokens that a request may compute before it has to pause.
    pub(super) fn n_until_stop(&self, live: &Live) -> u32 {
        let n_left = live.n_remaining();
        if self.limits.memory == MemoryKind::Full {
            return n_left;
        }
        let id = live.request.id;
        let awaited = self.running_ids().filter_map(|other| self.live[&other].awaits).filter(|a| a.donor == id);
        let stops = awaited.map(|awaited| awaited.len).chain(live.checkpoints.iter().copied());
        let ahead = stops.filter(|stop| *stop > live.n_computed).map(|stop| stop - live.n_computed);
        ahead.min().map_or(n_left, |stop| stop.min(n_left))
    }

    /// Save the state of a request that stands where that was decided.
    pub(super) fn save_checkpoint(&mut self, now: Time, id: RequestId) {
        let Some(live) = self.live.get(&id) else { return };
        if let Some(seq) = live.seq()
            && live.checkpoints.contains(&live.n_computed)
        {
            self.save_running(now, id, seq, self.beside(id));
        }
    }
}
