//! The books of who is in the engine: who waits for the model, who for room in the queue (`room.rs`), and who is with the
//! core.
//!
//! Plain data under one lock (`shared.rs`), which is never held for longer than it takes to write a line here.

use super::mailbox::{Header, Mailbox};
use super::prompt::{Model, first_limit};
use super::room::{Room, ScopeKey, Scopes};
use super::settle::Asked;
use crate::core::{Request, RequestId, Time};
use crate::error::Error;
use crate::options::StartOptions;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// A request on its way to the core.
pub(super) struct Entry {
    pub(super) at: Time,
    pub(super) request: Request,
    pub(super) mailbox: Arc<Mailbox>,
}

impl Entry {
    /// When it ends if it has no slot by then, and why.
    fn deadline(&self) -> Option<(Time, Error)> {
        let (limit, kind) = first_limit(&self.request)?;
        Some((self.at + limit, Error::RequestTimeout { kind, limit_s: limit.as_secs_f64() }))
    }
}

/// How far the engine is.
pub(super) enum Stage {
    /// Prompts cannot become tokens yet.
    Loading,
    /// They can.
    Open(Model),
    /// Whoever comes gets this error.
    Ended(Error),
}

/// How the engine is being closed. Grows only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Closing {
    /// It is not.
    No,
    /// Nobody comes in any more; those who are in are served.
    Drain,
    /// Everybody is cancelled.
    Cancel,
}

/// One request that has not ended.
struct Live {
    mailbox: Arc<Mailbox>,
    scope: ScopeKey,
    /// Whether it counts against the bound.
    counted: bool,
    /// Whether the engine thread was told of it.
    sent: bool,
}

/// A request that does not come in, and why.
type Refusal = (Arc<Mailbox>, Error);

/// What happens to a request that comes in.
pub(super) enum Verdict {
    /// The model is not there: it waits in the backlog.
    Held(Arc<Mailbox>),
    /// Its place is reserved; its prompt has to be made into tokens.
    Prepare(Model, Box<Request>, Box<Asked>),
    /// It is refused.
    Refused(Arc<Mailbox>, Error),
}

/// What taking a request off the books leaves to do.
pub(super) struct Removed {
    pub(super) mailbox: Arc<Mailbox>,
    /// Whether the engine thread was told of it.
    pub(super) sent: bool,
    /// Who has room now.
    pub(super) next: Vec<Entry>,
    /// What was held back, to be dropped without the lock.
    pub(super) _held: Option<(Entry, Option<Asked>)>,
}

/// Everybody who was in; and what was held back, and the model, to be dropped without the lock.
pub(super) struct Everybody {
    pub(super) mailboxes: Vec<(RequestId, Arc<Mailbox>)>,
    pub(super) _held: (VecDeque<(Entry, Asked)>, Scopes, Stage),
}

/// The books.
pub(super) struct Intake {
    pub(super) stage: Stage,
    pub(super) closing: Closing,
    room: Room,
    last_id: u64,
    live: BTreeMap<RequestId, Live>,
    /// Waiting for the model, in order of arrival.
    backlog: VecDeque<(Entry, Asked)>,
}

impl Intake {
    pub(super) fn new(options: &StartOptions) -> Self {
        Self {
            stage: Stage::Loading,
            closing: Closing::No,
            room: Room::new(options),
            last_id: 0,
            live: BTreeMap::new(),
            backlog: VecDeque::new(),
        }
    }

    /// A request comes in.
    pub(super) fn arrive(&mut self, at: Time, mut request: Request, asked: Asked) -> Verdict {
        if let Some(error) = self.gone().or_else(|| self.room.refusal(&request.flow, asked.n)) {
            return Verdict::Refused(self.name(at, &mut request, asked.n), error);
        }
        if self.room.reserves() {
            self.room.take(&request.flow, asked.n);
        }
        if let Stage::Open(model) = &self.stage {
            return Verdict::Prepare(model.clone(), Box::new(request), Box::new(asked));
        }
        let mailbox = self.register(at, &mut request, asked.n);
        self.backlog.push_back((Entry { at, request, mailbox: Arc::clone(&mailbox) }, asked));
        Verdict::Held(mailbox)
    }

    /// A request whose place was reserved has its tokens: it is let through if there is room, each of its answers by
    /// itself. In an engine that ended meanwhile it is refused.
    pub(super) fn enter(
        &mut self,
        at: Time,
        mut request: Request,
        n: u32,
    ) -> Result<(Arc<Mailbox>, Vec<Entry>), Refusal> {
        if let Some(error) = self.gone() {
            self.release(&request.flow, n);
            return Err((self.name(at, &mut request, n), error));
        }
        let mailbox = self.register(at, &mut request, n);
        let entry = Entry { at, request, mailbox: Arc::clone(&mailbox) };
        Ok((mailbox, self.let_all_through(entry, n)))
    }

    /// A request has its tokens: those of its `n` answers for which there is room.
    pub(super) fn let_all_through(&mut self, entry: Entry, n: u32) -> Vec<Entry> {
        let Entry { at, request, mailbox } = entry;
        let entries = request.siblings(n).map(|request| Entry { at, request, mailbox: Arc::clone(&mailbox) });
        entries.filter_map(|entry| self.let_through(entry)).collect()
    }

    fn let_through(&mut self, entry: Entry) -> Option<Entry> {
        let live = self.live.get_mut(&entry.request.id)?;
        entry.mailbox.set_prompt_tokens(entry.request.n_prompt());
        let entry = if live.counted { entry } else { self.room.enter(entry)? };
        live.counted = true;
        live.sent = true;
        Some(entry)
    }

    /// Reserved places are given back.
    pub(super) fn release(&mut self, scope: &ScopeKey, n: u32) {
        if self.room.reserves() {
            self.room.give_back(scope, n);
        }
    }

    /// The next request that waits for the model.
    pub(super) fn pop_backlog(&mut self) -> Option<(Entry, Asked)> {
        self.backlog.pop_front()
    }

    /// A mailbox for a request that is refused, and ids for its `n` answers.
    pub(super) fn name(&mut self, at: Time, request: &mut Request, n: u32) -> Arc<Mailbox> {
        request.id = RequestId(self.last_id + 1);
        self.last_id += u64::from(n);
        let (mode, session, telling) = (request.mode, request.session.clone(), request.sampling.telling);
        Arc::new(Mailbox::new(Header { id: request.id, n, telling, at, mode, session }))
    }

    /// Take a request off the books; none if somebody else did, who then ends it.
    pub(super) fn remove(&mut self, id: RequestId) -> Option<Removed> {
        let Live { mailbox, scope, counted, sent } = self.live.remove(&id)?;
        if counted {
            self.room.give_back(&scope, 1);
        }
        let held = if sent { None } else { self.take_held(&scope, id) };
        let mut next = Vec::new();
        while let Some(entry) = self.room.next() {
            if let Some(live) = self.live.get_mut(&entry.request.id) {
                live.counted = true;
                live.sent = true;
            }
            next.push(entry);
        }
        Some(Removed { mailbox, sent, next, _held: held })
    }

    /// Everybody leaves; whoever comes later gets the error.
    pub(super) fn end(&mut self, error: Error) -> Everybody {
        let error = if self.closing > Closing::No { Error::EngineClosed } else { error };
        let stage = std::mem::replace(&mut self.stage, Stage::Ended(error));
        let mailboxes = std::mem::take(&mut self.live).into_iter().map(|(id, live)| (id, live.mailbox)).collect();
        let held = (std::mem::take(&mut self.backlog), self.room.clear(), stage);
        Everybody { mailboxes, _held: held }
    }

    /// Begin to close; what was begun before goes on if it is stricter.
    pub(super) fn close(&mut self, closing: Closing) {
        self.closing = self.closing.max(closing);
        if let Stage::Ended(error) = &mut self.stage {
            *error = Error::EngineClosed;
        }
    }

    /// Who is held back here and has no time left, with the error.
    pub(super) fn overdue(&self, now: Time) -> Vec<(RequestId, Error)> {
        let due = |entry: &Entry| entry.deadline().filter(|(at, _)| *at <= now).map(|(_, error)| error);
        let unsettled = self.backlog.iter().filter_map(|(entry, _)| Some((entry.mailbox.ids(), due(entry)?)));
        let unsettled = unsettled.flat_map(|(ids, error)| ids.map(move |id| (id, error.clone())));
        unsettled.chain(self.room.waiting().filter_map(|entry| Some((entry.request.id, due(entry)?)))).collect()
    }

    /// When the first of those who are held back here runs out of time.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.held().filter_map(|entry| entry.deadline().map(|(at, _)| at)).min()
    }

    /// The mailbox of a request that has not ended.
    pub(super) fn find(&self, id: RequestId) -> Option<Arc<Mailbox>> {
        self.live.get(&id).map(|live| Arc::clone(&live.mailbox))
    }

    /// All requests that have not ended.
    pub(super) fn live_ids(&self) -> Vec<RequestId> {
        self.live.keys().copied().collect()
    }

    /// Whether all have ended.
    pub(super) fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    /// How many count against the bound, and how many are held back here.
    pub(super) fn counts(&self) -> (u32, u32) {
        let (n_in_flight, n_waiting) = self.room.counts();
        (n_in_flight, self.backlog.len() as u32 + n_waiting)
    }

    fn held(&self) -> impl Iterator<Item = &Entry> {
        self.backlog.iter().map(|(entry, _)| entry).chain(self.room.waiting())
    }

    /// Ids ascend in the backlog.
    fn take_held(&mut self, scope: &ScopeKey, id: RequestId) -> Option<(Entry, Option<Asked>)> {
        if let Ok(at) = self.backlog.binary_search_by_key(&id, |(entry, _)| entry.request.id) {
            return self.backlog.remove(at).map(|(entry, asked)| (entry, Some(asked)));
        }
        self.room.leave(scope, id).map(|entry| (entry, None))
    }

    fn gone(&self) -> Option<Error> {
        match &self.stage {
            Stage::Ended(error) => Some(error.clone()),
            Stage::Loading | Stage::Open(_) => (self.closing > Closing::No).then_some(Error::EngineClosed),
        }
    }

    fn register(&mut self, at: Time, request: &mut Request, n: u32) -> Arc<Mailbox> {
        let (mailbox, counted) = (self.name(at, request, n), self.room.reserves());
        for id in mailbox.ids() {
            let scope = request.flow.clone();
            self.live.insert(id, Live { mailbox: Arc::clone(&mailbox), scope, counted, sent: false });
        }
        mailbox
    }
}
