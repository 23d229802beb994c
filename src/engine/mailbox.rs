//! What a request's caller gets: text as it comes, then one end.

use super::home::Home;
use super::lock;
use super::waker::{Signal, Wakes};
use crate::core::{
    Embedded, FinishReason, Finished, Mode, PrefixReason, PrefixSource, RequestId, Telling, Time, Timings, Token,
    TokenLogprobs, Usage,
};
use crate::error::Error;
use crate::options::Key;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Everything that came of one answer since the last look, in one piece.
#[derive(Clone, Debug, PartialEq)]
pub struct Chunk {
    /// Which answer, of several to one prompt.
    pub choice: u32,
    /// What the text adds, in whole characters.
    pub text: String,
    /// The tokens that made it.
    pub tokens: Vec<Token>,
    /// How likely each of them was, where the request wants to know.
    pub told: Vec<TokenLogprobs>,
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

/// All that came of one answer.
#[derive(Clone, Debug, Default)]
pub struct SoFar {
    /// Its text.
    pub text: String,
    /// Its tokens.
    pub tokens: Vec<Token>,
    /// How likely each of them was, where the request wants to know.
    pub told: Vec<TokenLogprobs>,
    /// How it ended.
    pub end: Option<Arc<Finished>>,
}

/// What a caller wants to be woken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Every chunk, and the end.
    Items,
    /// The end only: who waits for the whole is not woken for each token.
    End,
}

/// What comes of one submission: one answer to its prompt, or several, each of a request of its own. The engine writes
/// and never waits; any number of threads read.
///
/// It is bounded by what the requests may generate, and unread chunks run together.
pub struct Mailbox {
    header: Header,
    home: Home,
    inbox: Mutex<Inbox>,
    arrived: Condvar,
    ended: Condvar,
}

/// What is known of a submission from its beginning on.
#[derive(Clone, Debug)]
pub(super) struct Header {
    /// Of the first request; the others follow it.
    pub(super) id: RequestId,
    /// Answers.
    pub(super) n: u32,
    /// What it wants to know of each token.
    pub(super) telling: Telling,
    pub(super) at: Time,
    pub(super) mode: Mode,
    pub(super) session: Option<Key>,
}

struct Inbox {
    choices: Vec<Choice>,
    n_prompt_tokens: u32,
    embedded: Option<Arc<Embedded>>,
    end_taken: bool,
    signals: Vec<(Interest, Signal)>,
}

/// One answer.
#[derive(Default)]
struct Choice {
    text: String,
    tokens: Vec<Token>,
    told: Vec<TokenLogprobs>,
    text_taken: usize,
    tokens_taken: usize,
    phase: Phase,
    end: Option<Arc<Finished>>,
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
        let choices = (0..header.n).map(|_| Choice::default()).collect();
        let inbox = Inbox { choices, n_prompt_tokens: 0, embedded: None, end_taken: false, signals: Vec::new() };
        Self { header, home: Home::here(), inbox: Mutex::new(inbox), arrived, ended }
    }

    /// The first request.
    pub fn id(&self) -> RequestId {
        self.header.id
    }

    /// What the caller wants to know of each token.
    pub fn telling(&self) -> Telling {
        self.header.telling
    }

    /// All requests, one for each answer.
    pub(super) fn ids(&self) -> impl Iterator<Item = RequestId> + use<> {
        let first = self.header.id.0;
        (first..first + u64::from(self.header.n)).map(RequestId)
    }

    /// The next item, if there is one: all text of an answer that nobody took yet, or the end, once.
    pub fn take(&self) -> Option<Item> {
        if self.home.is_elsewhere() {
            return self.end().map(Item::End);
        }
        let mut inbox = lock(&self.inbox);
        if let Some((which, choice)) = inbox.choices.iter_mut().enumerate().find(|(_, choice)| choice.has_chunk()) {
            return Some(Item::Chunk(choice.take_chunk(which as u32)));
        }
        let end = inbox.end().filter(|_| !inbox.end_taken)?;
        inbox.end_taken = true;
        Some(Item::End(end))
    }

    /// Wait until there is an item to take, or the end was taken; false if the time runs out first.
    pub fn wait(&self, timeout: Option<Duration>) -> bool {
        if self.home.is_elsewhere() {
            return true;
        }
        wait_for(&self.inbox, &self.arrived, timeout, |inbox| inbox.has_item())
    }

    /// Wait for the end; chunks stay where they are. None if the time runs out first, which changes nothing.
    pub fn wait_end(&self, timeout: Option<Duration>) -> Option<Arc<Finished>> {
        if !self.home.is_elsewhere() {
            wait_for(&self.inbox, &self.ended, timeout, |inbox| inbox.has_ended());
        }
        self.end()
    }

    /// The end, if it came: of the first answer, or of the first that failed. It can still be taken.
    pub fn end(&self) -> Option<Arc<Finished>> {
        if self.home.is_elsewhere() {
            let lost = self.finished(self.header.id, &Choice::default(), 0, Err(Error::Forked), Duration::ZERO);
            return Some(Arc::new(lost));
        }
        lock(&self.inbox).end()
    }

    /// All text and tokens of each answer so far, taken or not, and its end, if it came.
    pub fn so_far(&self) -> Vec<SoFar> {
        if self.home.is_elsewhere() {
            return vec![SoFar::default()];
        }
        let so_far = |choice: &Choice| SoFar {
            text: choice.text.clone(),
            tokens: choice.tokens.clone(),
            told: choice.told.clone(),
            end: choice.end.clone(),
        };
        lock(&self.inbox).choices.iter().map(so_far).collect()
    }

    /// The vectors, if they came.
    pub fn embedded(&self) -> Option<Arc<Embedded>> {
        if self.home.is_elsewhere() { None } else { lock(&self.inbox).embedded.clone() }
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
        if interest == Interest::Items { inbox.has_item() } else { inbox.has_ended() }
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

    /// A request got a slot.
    pub(super) fn start(&self, id: RequestId) {
        let mut inbox = lock(&self.inbox);
        if let Some(choice) = self.choice(&mut inbox, id).filter(|choice| choice.phase == Phase::Waiting) {
            choice.phase = Phase::Started;
        }
    }

    /// More text. Ignored after the end.
    pub(super) fn push(&self, id: RequestId, text: &str, tokens: &[Token], told: &[TokenLogprobs], wakes: &mut Wakes) {
        let mut inbox = lock(&self.inbox);
        let Some(choice) = self.choice(&mut inbox, id).filter(|choice| choice.end.is_none()) else { return };
        choice.text.push_str(text);
        choice.tokens.extend_from_slice(tokens);
        choice.told.extend_from_slice(told);
        inbox.mark(Interest::Items, wakes);
        drop(inbox);
        self.arrived.notify_all();
    }

    /// The vectors of a request; its end follows.
    pub(super) fn put(&self, embedded: Embedded) {
        lock(&self.inbox).embedded = Some(Arc::new(embedded));
    }

    /// The end of one request. Ignored if it came before.
    pub(super) fn finish(&self, finished: Finished, wakes: &mut Wakes) {
        let mut inbox = lock(&self.inbox);
        let choice = self.choice(&mut inbox, finished.request).filter(|choice| choice.end.is_none());
        let Some(choice) = choice else { return };
        choice.end = Some(Arc::new(finished));
        if !inbox.has_ended() {
            return;
        }
        inbox.mark(Interest::Items, wakes);
        inbox.mark(Interest::End, wakes);
        let signals = std::mem::take(&mut inbox.signals);
        drop(inbox);
        drop(signals);
        self.arrived.notify_all();
        self.ended.notify_all();
    }

    /// Somebody cancels the submission: what that means for each of its requests.
    pub(super) fn cancel(&self) -> Vec<(RequestId, Cancelling)> {
        let mut inbox = lock(&self.inbox);
        let cancel = |choice: &mut Choice| match std::mem::replace(&mut choice.phase, Phase::Cancelled) {
            _ if choice.end.is_some() => Cancelling::Done,
            Phase::Waiting => Cancelling::Now,
            Phase::Started => Cancelling::Running,
            Phase::Cancelled => Cancelling::Done,
        };
        self.ids().zip(inbox.choices.iter_mut().map(cancel)).collect()
    }

    /// Whether the end of a request came.
    pub(super) fn has_ended(&self, id: RequestId) -> bool {
        self.choice(&mut lock(&self.inbox), id).is_none_or(|choice| choice.end.is_some())
    }

    /// An end that the core does not know of, for what the caller got so far.
    pub(super) fn ended_outside(&self, id: RequestId, end: Result<FinishReason, Error>, now: Time) -> Finished {
        let mut inbox = lock(&self.inbox);
        let n_prompt_tokens = inbox.n_prompt_tokens;
        let nothing = &mut Choice::default();
        let choice = self.choice(&mut inbox, id).unwrap_or(nothing);
        self.finished(id, choice, n_prompt_tokens, end, now.since(self.header.at))
    }

    fn choice<'a>(&self, inbox: &'a mut Inbox, id: RequestId) -> Option<&'a mut Choice> {
        inbox.choices.get_mut(usize::try_from(id.0.checked_sub(self.header.id.0)?).ok()?)
    }

    fn finished(
        &self,
        request: RequestId,
        choice: &Choice,
        prompt_tokens: u32,
        end: Result<FinishReason, Error>,
        total: Duration,
    ) -> Finished {
        let generated_tokens = u32::try_from(choice.tokens.len()).unwrap_or(u32::MAX);
        Finished {
            request,
            end,
            stopped_by: None,
            usage: Usage { prompt_tokens, generated_tokens, ..Usage::default() },
            timings: Timings { queue: total, ttft: total, total, ..Timings::default() },
            seq: None,
            mode: self.header.mode,
            session: self.header.session.clone(),
            prefix_source: PrefixSource::None,
            prefix_reason: PrefixReason::NoMatch,
            n_prefilled: 0,
            prompt_told: Vec::new(),
        }
    }
}

impl Inbox {
    fn has_ended(&self) -> bool {
        self.choices.iter().all(|choice| choice.end.is_some())
    }

    fn has_item(&self) -> bool {
        self.choices.iter().any(Choice::has_chunk) || self.has_ended()
    }

    fn end(&self) -> Option<Arc<Finished>> {
        let ends = || self.choices.iter().filter_map(|choice| choice.end.as_ref());
        let failed = ends().find(|finished| finished.end.is_err()).or_else(|| ends().next())?;
        self.has_ended().then(|| Arc::clone(failed))
    }

    fn mark(&self, interest: Interest, wakes: &mut Wakes) {
        for (_, signal) in self.signals.iter().filter(|(i, _)| *i == interest) {
            wakes.mark(signal);
        }
    }
}

impl Choice {
    fn has_chunk(&self) -> bool {
        self.tokens_taken < self.tokens.len() || self.text_taken < self.text.len()
    }

    fn take_chunk(&mut self, choice: u32) -> Chunk {
        let index = u32::try_from(self.tokens_taken).unwrap_or(u32::MAX);
        let text = self.text[self.text_taken..].to_owned();
        let tokens = self.tokens[self.tokens_taken..].to_vec();
        let told = self.told.get(self.tokens_taken..).unwrap_or_default().to_vec();
        self.text_taken = self.text.len();
        self.tokens_taken = self.tokens.len();
        Chunk { choice, text, tokens, told, index }
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
