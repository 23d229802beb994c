//! Telemetry: what the core tells, for anybody who listens. Costs nothing while nobody does.

use super::clock::Clock;
use super::home::Home;
use super::lock;
use super::mailbox::wait_for;
use super::waker::{Signal, Wakes};
use crate::core::{Event, Time};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Events that wait for one subscriber at most; more are dropped and counted.
pub const EVENT_QUEUE_LEN: usize = 4096;

/// One event of one engine. Never an [`Event::Chunk`]: text is for the caller alone.
#[derive(Clone, Debug)]
pub struct TelemetryEvent {
    /// The engine's name.
    pub engine: Arc<str>,
    /// The engine's number in this process.
    pub engine_id: u64,
    /// When, since the engine was made.
    pub at: Time,
    /// What.
    pub event: Event,
}

/// What a wait for an event gives.
#[derive(Clone, Debug)]
pub enum Received {
    /// An event.
    Event(Arc<TelemetryEvent>),
    /// The time ran out.
    Timeout,
    /// The engine or the receiver is closed, and everything that was told before was received.
    Closed,
    /// The engine belongs to the process that this one was forked from.
    Forked,
}

/// The engine's side.
pub(super) struct Telemetry {
    name: Arc<str>,
    engine_id: u64,
    n_subscribers: AtomicUsize,
    subscribers: Mutex<Subscribers>,
    n_dropped: AtomicU64,
}

#[derive(Default)]
struct Subscribers {
    queues: Vec<Arc<Queue>>,
    closed: bool,
}

struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
    n_dropped: AtomicU64,
}

#[derive(Default)]
struct QueueState {
    events: VecDeque<Arc<TelemetryEvent>>,
    closed: bool,
    /// Who waits: each once, until it is marked.
    signals: Vec<Signal>,
}

impl QueueState {
    /// Mark all who wait; who goes on waiting says so again.
    fn mark(&mut self, wakes: &mut Wakes) {
        for signal in self.signals.drain(..) {
            wakes.mark(&signal);
        }
    }
}

impl Telemetry {
    pub(super) fn new(name: Arc<str>, engine_id: u64) -> Self {
        let (n_subscribers, n_dropped) = (AtomicUsize::new(0), AtomicU64::new(0));
        Self { name, engine_id, n_subscribers, subscribers: Mutex::default(), n_dropped }
    }

    /// Tell everybody who listens.
    pub(super) fn publish(&self, clock: Clock, event: impl FnOnce() -> Event, wakes: &mut Wakes) {
        if self.n_subscribers.load(Ordering::Relaxed) == 0 {
            return;
        }
        let (engine, engine_id) = (Arc::clone(&self.name), self.engine_id);
        let event = Arc::new(TelemetryEvent { engine, engine_id, at: clock.now(), event: event() });
        for queue in &lock(&self.subscribers).queues {
            if !queue.push(&event, wakes) {
                self.n_dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Nothing more comes.
    pub(super) fn close(&self, wakes: &mut Wakes) {
        let mut subscribers = lock(&self.subscribers);
        subscribers.closed = true;
        for queue in &subscribers.queues {
            queue.close(wakes);
        }
    }

    /// Events that some subscriber was too slow for.
    pub(super) fn n_dropped(&self) -> u64 {
        self.n_dropped.load(Ordering::Relaxed)
    }

    /// One listener less; what it was told already stays with it.
    fn leave(&self, queue: &Arc<Queue>) {
        let mut subscribers = lock(&self.subscribers);
        let n_before = subscribers.queues.len();
        subscribers.queues.retain(|other| !Arc::ptr_eq(queue, other));
        self.n_subscribers.fetch_sub(n_before - subscribers.queues.len(), Ordering::Relaxed);
    }

    fn subscribe(&self) -> Arc<Queue> {
        let mut subscribers = lock(&self.subscribers);
        let state = Mutex::new(QueueState { closed: subscribers.closed, ..QueueState::default() });
        let queue = Arc::new(Queue { state, changed: Condvar::new(), n_dropped: AtomicU64::new(0) });
        subscribers.queues.push(Arc::clone(&queue));
        self.n_subscribers.fetch_add(1, Ordering::Relaxed);
        queue
    }
}

impl Queue {
    fn close(&self, wakes: &mut Wakes) {
        let mut state = lock(&self.state);
        state.closed = true;
        state.mark(wakes);
        drop(state);
        self.changed.notify_all();
    }

    fn push(&self, event: &Arc<TelemetryEvent>, wakes: &mut Wakes) -> bool {
        let mut state = lock(&self.state);
        if state.events.len() >= EVENT_QUEUE_LEN {
            self.n_dropped.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        state.events.push_back(Arc::clone(event));
        state.mark(wakes);
        drop(state);
        self.changed.notify_all();
        true
    }
}

/// A subscriber's side: a bounded queue. Dropping it ends the subscription.
pub struct EventReceiver {
    home: Home,
    telemetry: Arc<Telemetry>,
    queue: Arc<Queue>,
}

impl EventReceiver {
    pub(super) fn new(telemetry: &Arc<Telemetry>) -> Self {
        let queue = telemetry.subscribe();
        Self { home: Home::here(), telemetry: Arc::clone(telemetry), queue }
    }

    /// The next event, or why there is none. No timeout waits for as long as it takes.
    pub fn recv(&self, timeout: Option<Duration>) -> Received {
        if self.home.is_elsewhere() {
            return Received::Forked;
        }
        wait_for(&self.queue.state, &self.queue.changed, timeout, |state| state.closed || !state.events.is_empty());
        let mut state = lock(&self.queue.state);
        match state.events.pop_front() {
            Some(event) => Received::Event(event),
            None if state.closed => Received::Closed,
            None => Received::Timeout,
        }
    }

    /// Have a signal marked once, when an event comes or nothing more comes. True if something is there already.
    pub fn subscribe(&self, signal: Signal) -> bool {
        if self.home.is_elsewhere() {
            return true;
        }
        let mut state = lock(&self.queue.state);
        if !state.signals.iter().any(|other| other.is(&signal)) {
            state.signals.retain(|other| !other.is_gone());
            state.signals.push(signal);
        }
        state.closed || !state.events.is_empty()
    }

    /// Nothing more comes; what came before is still received.
    pub fn close(&self) {
        if !self.home.is_elsewhere() {
            self.telemetry.leave(&self.queue);
            self.queue.close(&mut Wakes::default());
        }
    }

    /// Events that this subscriber was too slow for.
    pub fn n_dropped(&self) -> u64 {
        self.queue.n_dropped.load(Ordering::Relaxed)
    }
}

impl Drop for EventReceiver {
    fn drop(&mut self) {
        if self.home.is_elsewhere() {
            return;
        }
        self.telemetry.leave(&self.queue);
    }
}
