//! Sessions on their way to a file and back: their tokens, and their state by way of the RAM tier.

use super::blocks::Room;
use super::event::{Event, Tier};
use super::ids::{BlobId, Token};
use super::op::{Op, OpResult};
use super::ram::Most;
use super::scheduler::Scheduler;
use super::sequences::{Cached, Holder};
use super::time::Time;
use crate::error::Error;
use crate::options::Key;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Sessions whose last tokens are remembered, and how many tokens in all; who was not heard of for longest is forgotten
/// first.
const MAX_SESSIONS: usize = 4096;
const MAX_TOKENS: usize = 16 << 20;

/// A transfer, by a number that its caller chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TransferId(pub u64);

/// The state of some tokens that follow each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatePart {
    /// The first position.
    pub from: u32,
    /// Unit: tokens.
    pub len: u32,
    /// As the backend gave it.
    pub state: Vec<u8>,
}

/// What is kept of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionState {
    /// Its tokens: the prompt of its last request, and what was generated.
    pub tokens: Vec<Token>,
    /// The state of the first of them.
    pub parts: Vec<StatePart>,
}

impl SessionState {
    /// Tokens that have a state.
    pub fn n_restorable(&self) -> u32 {
        self.parts.last().map_or(0, |part| part.from + part.len)
    }
}

type SessionKey = (Option<Key>, Key);

/// The last tokens of each session, whichever tier their state is in.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    last: BTreeMap<SessionKey, (Arc<[Token]>, Time)>,
    n_tokens: usize,
}

impl Sessions {
    fn note(&mut self, scope: Option<&Key>, session: &Key, tokens: &Arc<[Token]>, now: Time) {
        let before = self.last.insert((scope.cloned(), session.clone()), (Arc::clone(tokens), now));
        self.n_tokens = self.n_tokens + tokens.len() - before.map_or(0, |(tokens, _)| tokens.len());
        while self.last.len() > MAX_SESSIONS || (self.n_tokens > MAX_TOKENS && self.last.len() > 1) {
            let oldest = self.last.iter().min_by_key(|(_, (_, at))| *at).map(|(key, _)| key.clone());
            let gone = oldest.and_then(|key| self.last.remove(&key));
            self.n_tokens -= gone.map_or(0, |(tokens, _)| tokens.len());
        }
    }

    fn tokens(&self, scope: Option<&Key>, session: &Key) -> Option<Arc<[Token]>> {
        self.last.get(&(scope.cloned(), session.clone())).map(|(tokens, _)| Arc::clone(tokens))
    }
}

impl Scheduler {
    /// Take out the state of a session's last request: [`Event::SessionSaved`] brings it.
    ///
    /// # Errors
    /// [`Error::Session`] where it left nothing, or where the RAM tier, through which it passes, is off.
    pub fn save_session(
        &mut self,
        now: Time,
        transfer: TransferId,
        scope: Option<&Key>,
        session: &Key,
    ) -> Result<(), Error> {
        self.needs_ram()?;
        self.needs_backend()?;
        let Some(tokens) = self.sessions.tokens(scope, session) else {
            return Err(Error::Session(
                "no finished request of this session and scope has left anything to save".into(),
            ));
        };
        let held = self.sequences.matches(scope, &tokens).find(|(_, holder, len)| {
            let has = |cached: &Cached| self.ram.block() > 0 || cached.tokens.len() == *len;
            *len == tokens.len() && matches!(holder, Holder::Cached(cached) if has(cached))
        });
        if let Some(seq) = held.map(|(seq, ..)| seq) {
            self.save(now, seq, scope, &tokens, Most::ALL);
        }
        self.load_missing(now, scope, &tokens, u64::MAX);
        let blobs = self.saved_path(scope, &tokens);
        self.ram.pin(&blobs);
        self.ops.push(Op::Export { transfer, tokens, blobs });
        Ok(())
    }

    /// Put a session's state into the RAM tier, where its next request finds it: [`Event::SessionLoaded`] tells of it.
    ///
    /// # Errors
    /// [`Error::Session`] where its tokens or parts do not fit this engine, or the RAM tier is off.
    pub fn load_session(
        &mut self,
        now: Time,
        transfer: TransferId,
        scope: Option<&Key>,
        session: &Key,
        state: SessionState,
    ) -> Result<(), Error> {
        self.needs_ram()?;
        self.needs_backend()?;
        self.check_state(&state)?;
        let SessionState { tokens, parts } = state;
        let tokens: Arc<[Token]> = tokens.into();
        let mut path: Vec<BlobId> = Vec::new();
        for part in parts {
            let own = &tokens[part.from as usize..(part.from + part.len) as usize];
            let there = self.saved_path(scope, &tokens[..(part.from + part.len) as usize]);
            if let Some(there) = there.get(path.len()).filter(|blob| self.ram.len_of(**blob) == part.len) {
                path.push(*there);
                continue;
            }
            let room = Room { n_bytes: part.state.len() as u64, drop_until: Some(Time::NEVER) };
            let Some(blob) = self.take_in(Tier::Ram, now, path.last().copied(), scope, own, room) else { break };
            self.ops.push(Op::Import { blob, from: part.from, len: part.len, state: part.state });
            path.push(blob);
        }
        self.sessions.note(scope, session, &tokens, now);
        self.loading.push((transfer, path));
        Ok(())
    }

    fn needs_ram(&self) -> Result<(), Error> {
        if self.ram.is_on() {
            return Ok(());
        }
        Err(Error::Session(
            "sessions are saved and loaded through the RAM tier: prompt_cache_ram_mb must not be 0".into(),
        ))
    }

    /// What the RAM tier holds of these tokens, or is about to, in order and without what goes beyond them.
    fn saved_path(&self, scope: Option<&Key>, tokens: &[Token]) -> Vec<BlobId> {
        if self.ram.block() == 0 {
            let whole = self.ram.matches(scope, tokens).find(|(_, n_held, len)| n_held == len);
            return whole.map(|(blob, ..)| blob).into_iter().collect();
        }
        let mut path = self.ram.path(scope, tokens);
        let rest = &tokens[path.len() * self.ram.block() as usize..];
        let part = self.ram.part(scope, &path, rest).filter(|(blob, len)| self.ram.len_of(*blob) == *len);
        path.extend(part.map(|(blob, _)| blob));
        path
    }

    /// Whether a state that somebody brings can be one of this engine's.
    fn check_state(&self, state: &SessionState) -> Result<(), Error> {
        let wrong = |what: &str| Err(Error::Session(format!("the saved session does not fit this engine: {what}")));
        let n_vocab = self.limits.n_vocab;
        if state.tokens.is_empty() || state.tokens.len() as u32 > self.limits.n_ctx_seq {
            return wrong("it has no tokens, or more than a request may have here (n_ctx)");
        }
        if state.tokens.iter().any(|token| u32::try_from(*token).map_or(true, |token| token >= n_vocab)) {
            return wrong("it has tokens that the vocabulary lacks");
        }
        let block = self.ram.block();
        let mut end = 0;
        for (at, part) in state.parts.iter().enumerate() {
            let is_last = at + 1 == state.parts.len();
            let fits = if block == 0 { is_last && at == 0 } else { part.len == block || (is_last && part.len < block) };
            if part.from != end || part.len == 0 || !fits || part.len > state.tokens.len() as u32 - end {
                return wrong("its parts are not laid out as here");
            }
            end += part.len;
        }
        Ok(())
    }

    /// The state of a session is out, or in.
    pub(super) fn apply_export(&mut self, transfer: TransferId, tokens: &[Token], blobs: &[BlobId], result: OpResult) {
        self.ram.unpin(blobs);
        let states = match result {
            OpResult::Exported(states) => states,
            OpResult::Done
            | OpResult::Refused(_)
            | OpResult::Lost(_)
            | OpResult::Saved { .. }
            | OpResult::Restored { .. } => Vec::new(),
        };
        let mut from = 0;
        let mut parts = Vec::new();
        for (blob, state) in blobs.iter().zip(states) {
            let (len, Some(state)) = (self.ram.len_of(*blob), state) else { break };
            if len == 0 {
                break;
            }
            parts.push(StatePart { from, len, state: state.into_vec() });
            from += len;
        }
        let state = SessionState { tokens: tokens.to_vec(), parts };
        self.events.push_back(Event::SessionSaved { transfer, state });
    }

    /// Tell which sessions are in the RAM tier, once the backend has taken their states.
    pub(super) fn tell_loaded(&mut self) {
        for (transfer, path) in std::mem::take(&mut self.importing) {
            let lens = path.into_iter().map(|blob| self.ram.len_of(blob));
            let n_restorable = lens.take_while(|len| *len > 0).sum();
            self.events.push_back(Event::SessionLoaded { transfer, n_restorable });
        }
    }

    /// A request of a session has ended: these are its tokens from now on.
    pub(super) fn note_session(
        &mut self,
        now: Time,
        scope: Option<&Key>,
        session: Option<&Key>,
        tokens: &Arc<[Token]>,
    ) {
        if let Some(session) = session {
            self.sessions.note(scope, session, tokens, now);
        }
    }
}
