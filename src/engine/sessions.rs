//! Saving a session to a file, and loading it: the engine thread gives and takes the state, the caller's thread the bytes.

use super::handle::Engine;
use super::shared::Command;
use crate::core::{Event, Scheduler, SessionState, StatePart, Time, TransferId};
use crate::error::Error;
use crate::options::Key;
use crate::store::{self, Fingerprint, Part, SavedPrefix, StoreError};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::mpsc::{Sender, channel};

/// What the engine thread is asked for.
pub(super) struct Transfer {
    scope: Option<Key>,
    session: Key,
    /// What comes in; none where the session is to be saved.
    state: Option<SessionState>,
    answer: Sender<Result<Answer, Error>>,
}

/// What came of it.
enum Answer {
    Saved(SessionState),
    Loaded(u32),
}

/// Who waits for an answer of the scheduler's.
#[derive(Default)]
pub(super) struct Transfers {
    waiting: BTreeMap<TransferId, Sender<Result<Answer, Error>>>,
    next: u64,
}

impl Transfers {
    pub(super) fn begin(&mut self, scheduler: &mut Scheduler, now: Time, asked: Transfer) {
        let Transfer { scope, session, state, answer } = asked;
        self.next += 1;
        let id = TransferId(self.next);
        let begun = match state {
            None => scheduler.save_session(now, id, scope.as_ref(), &session),
            Some(state) => scheduler.load_session(now, id, scope.as_ref(), &session, state),
        };
        match begun {
            Ok(()) => drop(self.waiting.insert(id, answer)),
            Err(error) => drop(answer.send(Err(error))),
        }
    }

    /// Answer who waits for an event; it comes back if nobody does.
    pub(super) fn take(&mut self, event: Event) -> Option<Event> {
        if let Event::SessionSaved { transfer, state } = event {
            self.settle(transfer, Ok(Answer::Saved(state)));
            return None;
        }
        if let Event::SessionLoaded { transfer, n_restorable } = event {
            self.settle(transfer, Ok(Answer::Loaded(n_restorable)));
            return None;
        }
        if let Event::TransferFailed { transfer, error } = event {
            self.settle(transfer, Err(error));
            return None;
        }
        Some(event)
    }

    fn settle(&mut self, id: TransferId, answer: Result<Answer, Error>) {
        if let Some(waiting) = self.waiting.remove(&id) {
            // Who gave up waiting has no use for it.
            drop(waiting.send(answer));
        }
    }
}

/// What is in a file of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionFile {
    /// The session, as it was called when it was saved or loaded.
    pub session: Key,
    /// All its tokens.
    pub n_tokens: u32,
    /// Those whose state is there too, and need not be computed again.
    pub n_restorable: u32,
}

impl Engine {
    /// Save the tokens and the state of a session's last finished request. Waits for the pass under way, then for the
    /// disk; the file is whole or not there.
    ///
    /// # Errors
    /// [`Error::Session`] where the session left nothing or the file cannot be written; [`Error::EngineNotReady`],
    /// [`Error::EngineClosed`], [`Error::Forked`].
    pub fn save_session(&self, session: Key, scope: Option<Key>, path: &Path) -> Result<SessionFile, Error> {
        let fingerprint = self.fingerprint()?;
        let Answer::Saved(state) = self.transfer(scope.clone(), session.clone(), None)? else {
            return Err(Error::EngineClosed);
        };
        let file = SessionFile {
            session: session.clone(),
            n_tokens: state.tokens.len() as u32,
            n_restorable: state.n_restorable(),
        };
        let parts = state.parts.into_iter().map(|StatePart { from, len, state }| Part { from, len, state }).collect();
        let (scope, session) = (scope.map(|key| key.0), Some(session.0));
        let prefix = SavedPrefix { fingerprint, scope, session, tokens: state.tokens, parts };
        store::file::write(path, &prefix).map_err(|error| Error::Session(error.to_string()))?;
        Ok(file)
    }

    /// Load what [`Self::save_session`] wrote into the RAM tier, under its own name or another one. The next request of
    /// the session, or any of its scope that begins the same, goes on from there.
    ///
    /// # Errors
    /// [`Error::SessionNotFound`]; [`Error::Session`] where the file is damaged, of another model, kind of context or scope, or the RAM tier has no
    /// room at all; [`Error::EngineNotReady`], [`Error::EngineClosed`], [`Error::Forked`].
    pub fn load_session(&self, path: &Path, session: Option<Key>, scope: Option<Key>) -> Result<SessionFile, Error> {
        let fingerprint = self.fingerprint()?;
        let saved = store::file::read(path, &fingerprint).map_err(|error| session_error(&error))?;
        let SavedPrefix { scope: saved_scope, session: saved_session, tokens, parts, .. } = saved;
        if saved_scope != scope.as_ref().map(|key| key.0.clone()) {
            return Err(Error::Session(format!(
                "{} was saved in another cache_scope: only that one may load it",
                path.display()
            )));
        }
        let Some(session) = session.or_else(|| saved_session.map(Key)) else {
            return Err(Error::Session(format!("{} names no session, and none was given", path.display())));
        };
        let n_tokens = tokens.len() as u32;
        let parts = parts.into_iter().map(|Part { from, len, state }| StatePart { from, len, state }).collect();
        match self.transfer(scope, session.clone(), Some(SessionState { tokens, parts }))? {
            Answer::Loaded(n_restorable) => Ok(SessionFile { session, n_tokens, n_restorable }),
            Answer::Saved(_) => Err(Error::EngineClosed),
        }
    }

    fn fingerprint(&self) -> Result<Fingerprint, Error> {
        let identity = self.model()?.identity;
        identity(&self.limits().ok_or(Error::EngineNotReady)?)
    }

    fn transfer(&self, scope: Option<Key>, session: Key, state: Option<SessionState>) -> Result<Answer, Error> {
        let (answer, answered) = channel();
        self.tell(Command::Transfer(Transfer { scope, session, state, answer }));
        // An engine that ends drops its end of the channel.
        answered.recv().unwrap_or(Err(Error::EngineClosed))
    }
}

fn session_error(error: &StoreError) -> Error {
    if matches!(error, StoreError::Io { kind: ErrorKind::NotFound, .. }) {
        return Error::SessionNotFound(error.to_string());
    }
    Error::Session(error.to_string())
}
