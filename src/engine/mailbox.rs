//! What a request's caller gets: text as it comes, then one end.

use super::home::Home;
use super::lock;
use super::waker::{Signal, Wakes};
use crate::core::{FinishReason, Finished, Mode, PrefixReason, PrefixSource, RequestId, Time, Timings, Token, Usage};
use crate::error::Error;
use crate::options::Key;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Everything that came since the last look, in one piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// What the text adds, in whole characters.
    pub text: String,
    /// The tokens that made it.
    pub tokens: Vec<Token>,
    /// How many tokens came before.
    pub index: u32,
}

/// What [`Mailbox::take`] gives.
#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    /// More text.
    Chunk(Chunk),
    /// The end; nothing comes after it.
    End(Arc<Finished>),
}

/// What a caller wants to be woken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Every chunk, and the end.
    Items,
    /// The end only: who waits for the whole is not woken for each token.
    End,
}

/// One request's output. The engine writes and never waits; any number of threads read.
///
/// It is bounded by what the request may generate, and unread chunks run together.
pub struct Mailbox {
    header: Header,
    home: Home,
    inbox: Mutex<Inbox>,
    arrived: Condvar,
    ended: Condvar,
}

/// What is known of a request from its submission on.
#[derive(Clone, Debug)]
pub(super) struct Header {
    pub(super) id: RequestId,
    pub(super) at: Time,
    pub(super) mode: Mode,
    pub(super) session: Option<Key>,
}

#[derive(Default)]
struct Inbox {
    text: String,
    tokens: Vec<Token>,
    text_taken: usize,
    tokens_taken: usize,
    n_prompt_tokens: u32,
    phase: Phase,
    end: Option<Arc<Finished>>,
    end_taken: bool,
    signals: Vec<(Interest, Signal)>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Phase {
    /// It waits; a cancellation ends it at once.
    #[default]
    Waiting,
    /// It holds a slot; a cancellation asks the engine thread.
    Started,
    /// It was cancelled, at once or through the engine thread.
    Cancelled,
}

/// What a cancellation has to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cancelling {
    /// It had no slot yet: end it now.
    Now,
    /// It runs: the engine thread has to stop it.
    Running,
    /// It has ended, or somebody else cancelled it.
    Done,
}

impl Mailbox {
    pub(super) fn new(header: Header) -> Self {
        let (arrived, ended) = (Condvar::new(), Condvar::new());
        Self { header, home: Home::here(), inbox: Mutex::default(), arrived, ended }
    }

    /// Which request.
    pub fn id(&self) -> RequestId {
        self.header.id
    }

    /// The next item, if there is one: all text that nobody took yet, or the end, once.
    pub fn take(&self) -> Option<Item> {
        if self.home.is_elsewhere() {
            return Some(Item::End(Arc::new(self.finished(&Inbox::default(), Err(Error::Forked), Duration::ZERO))));
        }
        let mut inbox = lock(&self.inbox);
        if inbox.has_chunk() {
            return Some(Item::Chunk(inbox.take_chunk()));
        }
        let end = inbox.end.clone().filter(|_| !inbox.end_taken)?;
        inbox.end_taken = true;
        Some(Item::End(end))
    }

    /// Wait until there is an item to take, or the end was taken; false if the time runs out first.
    pub fn wait(&self, timeout: Option<Duration>) -> bool {
        if self.home.is_elsewhere() {
            return true;
        }
        wait_for(&self.inbox, &self.arrived, timeout, |inbox| inbox.has_chunk() || inbox.end.is_some())
    }

    /// Wait for the end; chunks stay where they are. None if the time runs out first, which changes nothing.
    pub fn wait_end(&self, timeout: Option<Duration>) -> Option<Arc<Finished>> {
        if !self.home.is_elsewhere() {
            wait_for(&self.inbox, &self.ended, timeout, |inbox| inbox.end.is_some());
        }
        self.end()
    }

    /// The end, if it came; it can still be taken.
    pub fn end(&self) -> Option<Arc<Finished>> {
        if self.home.is_elsewhere() {
            return Some(Arc::new(self.finished(&Inbox::default(), Err(Error::Forked), Duration::ZERO)));
        }
        lock(&self.inbox).end.clone()
    }

    /// All text and tokens so far, taken or not.
    pub fn so_far(&self) -> (String, Vec<Token>) {
        if self.home.is_elsewhere() {
            return (String::new(), Vec::new());
        }
        let inbox = lock(&self.inbox);
        (inbox.text.clone(), inbox.tokens.clone())
    }

    /// Have a signal marked whenever something of interest comes, until [`Self::unsubscribe`]. True if something is
    /// there already: then nothing is marked for it.
    pub fn subscribe(&self, interest: Interest, signal: Signal) -> bool {
        if self.home.is_elsewhere() {
            return true;
        }
        let mut inbox = lock(&self.inbox);
        if !inbox.signals.iter().any(|(i, s)| *i == interest && s.is(&signal)) {
            // Loops come and go while one request runs.
            inbox.signals.retain(|(_, other)| !other.is_gone());
            inbox.signals.push((interest, signal));
        }
        inbox.end.is_some() || (interest == Interest::Items && inbox.has_chunk())
    }

    /// Take back every subscription of this signal.
    pub fn unsubscribe(&self, signal: &Signal) {
        if !self.home.is_elsewhere() {
            lock(&self.inbox).signals.retain(|(_, s)| !s.is(signal));
        }
    }

    /// How many tokens the prompt has, once that is known.
    pub(super) fn set_prompt_tokens(&self, n: u32) {
        lock(&self.inbox).n_prompt_tokens = n;
    }

    /// The request got a slot.
    pub(super) fn start(&self) {
        let mut inbox = lock(&self.inbox);
        if inbox.phase == Phase::Waiting {
            inbox.phase = Phase::Started;
        }
    }

    /// More text. Ignored after the end.
    pub(super) fn push(&self, text: &str, tokens: &[Token], wakes: &mut Wakes) {
        let mut inbox = lock(&self.inbox);
        if inbox.end.is_some() {
            return;
        }
        inbox.text.push_str(text);
        inbox.tokens.extend_from_slice(tokens);
        inbox.mark(Interest::Items, wakes);
        drop(inbox);
        self.arrived.notify_all();
    }

    /// The end. Ignored if it came before.
    pub(super) fn finish(&self, finished: Finished, wakes: &mut Wakes) {
        let mut inbox = lock(&self.inbox);
        if inbox.end.is_some() {
            return;
        }
        inbox.end = Some(Arc::new(finished));
        inbox.mark(Interest::Items, wakes);
        inbox.mark(Interest::End, wakes);
        let signals = std::mem::take(&mut inbox.signals);
        drop(inbox);
        drop(signals);
        self.arrived.notify_all();
        self.ended.notify_all();
    }

    /// Somebody cancels the request.
    pub(super) fn cancel(&self) -> Cancelling {
        let mut inbox = lock(&self.inbox);
        let before = std::mem::replace(&mut inbox.phase, Phase::Cancelled);
        match before {
            _ if inbox.end.is_some() => Cancelling::Done,
            Phase::Waiting => Cancelling::Now,
            Phase::Started => Cancelling::Running,
            Phase::Cancelled => Cancelling::Done,
        }
    }

    /// Whether the end came.
    pub(super) fn has_ended(&self) -> bool {
        lock(&self.inbox).end.is_some()
    }

    /// An end that the core does not know of, for what the caller got so far.
    pub(super) fn ended_outside(&self, end: Result<FinishReason, Error>, now: Time) -> Finished {
        self.finished(&lock(&self.inbox), end, now.since(self.header.at))
    }

    fn finished(&self, inbox: &Inbox, end: Result<FinishReason, Error>, total: Duration) -> Finished {
        let Header { id, at: _, mode, ref session } = self.header;
        let usage = Usage {
            prompt_tokens: inbox.n_prompt_tokens,
            generated_tokens: u32::try_from(inbox.tokens.len()).unwrap_or(u32::MAX),
            prefix_cache_tokens: 0,
        };
        Finished {
            request: id,
            end,
            stopped_by: None,
            usage,
            timings: Timings { queue: total, ttft: total, total, ..Timings::default() },
            seq: None,
            mode,
            session: session.clone(),
            prefix_source: PrefixSource::None,
            prefix_reason: PrefixReason::NoMatch,
            n_prefilled: 0,
        }
    }
}

impl Inbox {
    fn has_chunk(&self) -> bool {
        self.tokens_taken < self.tokens.len() || self.text_taken < self.text.len()
    }

    fn take_chunk(&mut self) -> Chunk {
        let index = u32::try_from(self.tokens_taken).unwrap_or(u32::MAX);
        let text = self.text[self.text_taken..].to_owned();
        let tokens = self.tokens[self.tokens_taken..].to_vec();
        self.text_taken = self.text.len();
        self.tokens_taken = self.tokens.len();
        Chunk { text, tokens, index }
    }

    fn mark(&self, interest: Interest, wakes: &mut Wakes) {
        for (_, signal) in self.signals.iter().filter(|(i, _)| *i == interest) {
            wakes.mark(signal);
        }
    }
}

/// Wait on a condition variable until something holds; false if the time runs out first.
pub(super) fn wait_for<T>(
    mutex: &Mutex<T>,
    changed: &Condvar,
    timeout: Option<Duration>,
    mut holds: impl FnMut(&mut T) -> bool,
) -> bool {
    let guard = lock(mutex);
    if let Some(timeout) = timeout {
        let waited = changed.wait_timeout_while(guard, timeout, |value| !holds(value));
        !waited.unwrap_or_else(std::sync::PoisonError::into_inner).1.timed_out()
    } else {
        drop(changed.wait_while(guard, |value| !holds(value)));
        true
    }
}
