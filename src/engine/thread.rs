//! The engine thread: it owns the scheduler and the backend, and does what the one says with the other.

use super::disk::{self, WithDisk};
use super::intake::Entry;
use super::loader::{MakeAgain, MakeBackend};
use super::mailbox::Mailbox;
use super::prompt::Identity;
use super::recovery::{self, Recovery};
use super::sessions::Transfers;
use super::shared::{Command, Shared};
use super::waker::Wakes;
use super::{Callables, panic_text};
use crate::backend::Backend;
use crate::core::{Event, FinishReason, Outcome, PassStatus, RequestId, Scheduler, SchedulerOptions, Time, Work};
use crate::error::Error;
use crate::options::{StartOptions, StrategyOption};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::UnboundedReceiver;

/// ggml builds graphs on the stack of who calls it.
pub(super) const STACK_BYTES: usize = 16 << 20;

/// A custom strategy answers within this time, or the default stands in: every running request waits for it.
const STRATEGY_DEADLINE: Duration = Duration::from_millis(200);

/// The engine thread, from the making of the engine to its end.
pub(super) fn run(shared: &Arc<Shared>, receiver: UnboundedReceiver<Command>, callables: Arc<dyn Callables>) {
    match catch_unwind(AssertUnwindSafe(|| serve(shared, receiver, callables))) {
        Ok(Ok(())) => shared.retire(),
        Ok(Err(error)) => shared.fail(&error),
        Err(panic) => shared.fail(&Error::EngineCrashed(panic_text(&*panic))),
    }
}

fn serve(
    shared: &Arc<Shared>,
    receiver: UnboundedReceiver<Command>,
    callables: Arc<dyn Callables>,
) -> Result<(), Error> {
    let mut commands = Commands::new(receiver)?;
    let Some((Start { make_backend, make_again, identity }, early)) = wait_for_model(shared, &mut commands) else {
        return Ok(());
    };
    let backend = make_backend()?;
    let limits = backend.limits();
    let directory = disk::open(&shared.options, &limits, &identity)?;
    let (mut backend, on_disk) = WithDisk::new(backend, directory);
    recovery::watch(shared, &mut backend);
    shared.servers.all_well(shared.clock.now());
    let mut options = SchedulerOptions::from(&shared.options);
    // The handle keeps the bounds, so that a caller hears at once.
    (options.max_queue, options.max_queue_per_scope) = (0, 0);
    let mut scheduler = Scheduler::new(options, limits.clone());
    scheduler.adopt_disk(on_disk);
    let shared = Arc::clone(shared);
    let routes = BTreeMap::new();
    let (transfers, wakes) = (Transfers::default(), Wakes::default());
    let recovery = Recovery::new(make_again, shared.clock.now());
    let mut thread =
        EngineThread { shared, commands, callables, backend, recovery, scheduler, routes, transfers, wakes };
    // Who sees that it is ready sees what it begins with.
    thread.shared.stats.publish(&thread.scheduler.stats());
    thread.shared.set_limits(limits);
    for command in early {
        thread.obey(command);
    }
    thread.run()
}

/// What the loader gives.
struct Start {
    make_backend: MakeBackend,
    make_again: Option<MakeAgain>,
    identity: Identity,
}

/// Wait for the loader. None if the engine ended first; else with the commands that came before it was done.
fn wait_for_model(shared: &Shared, commands: &mut Commands) -> Option<(Start, Vec<Command>)> {
    let mut early = Vec::new();
    while !shared.may_stop() {
        let wait = shared.held_until().map(|at| at - shared.clock.now());
        match commands.wait(wait) {
            Some(Command::Start(make_backend, make_again, identity)) => {
                return Some((Start { make_backend, make_again, identity }, early));
            }
            Some(command @ (Command::Submit(_) | Command::Cancel(_) | Command::Transfer(_))) => early.push(command),
            Some(Command::Look | Command::Chosen(..) | Command::Made(_)) | None => {}
        }
        shared.expire_held(shared.clock.now());
    }
    None
}

pub(super) struct EngineThread {
    pub(super) shared: Arc<Shared>,
    commands: Commands,
    callables: Arc<dyn Callables>,
    pub(super) backend: WithDisk,
    pub(super) recovery: Recovery,
    pub(super) scheduler: Scheduler,
    /// The mailboxes of the requests that the core has.
    routes: BTreeMap<RequestId, Arc<Mailbox>>,
    /// Who waits for a session to be saved or loaded.
    transfers: Transfers,
    /// Who is woken at the end of the turn.
    pub(super) wakes: Wakes,
}

impl EngineThread {
    /// Turn after turn, until the engine is closed.
    ///
    /// # Errors
    /// Why it cannot go on.
    fn run(&mut self) -> Result<(), Error> {
        loop {
            self.drain_commands();
            if self.shared.leaves_states() {
                self.scheduler.leave();
            }
            let worked = self.work();
            // Only now, and by the clock of the outcome: a long pass must not end a request that it brought forward.
            let now = worked.unwrap_or_else(|| self.shared.clock.now());
            self.look_after_backend(now);
            self.shared.expire_held(now);
            self.scheduler.handle_timeout(now);
            self.shared.stats.publish(&self.scheduler.stats());
            self.route_events();
            if let Some(error) = self.recovery.fatal.take() {
                return Err(error);
            }
            // What is only done for later is not waited for, unless it is for the next engine.
            let is_over = worked.is_none() || (self.scheduler.is_vacant() && !self.shared.leaves_states());
            if is_over && self.shared.may_stop() {
                return Ok(());
            }
            if worked.is_none() {
                self.idle();
            }
        }
    }

    /// Do the next thing, if there is one; when it was done.
    fn work(&mut self) -> Option<Time> {
        let work = self.scheduler.plan(self.shared.clock.now())?;
        let outcome = self.carry_out(&work);
        let loss = self.backend.loss();
        let outcome = loss.clone().map_or(outcome, Outcome::Lost);
        // Before the outcome: a pass may have been aborted because of what they say.
        self.drain_commands();
        let now = self.shared.clock.now();
        let undrawn: Vec<RequestId> = match &outcome {
            Outcome::Decode(outcome) => outcome.undrawn().collect(),
            Outcome::Prepare(_) | Outcome::Embed(_) | Outcome::Strategy(_) | Outcome::Lost(_) => Vec::new(),
        };
        self.scheduler.apply(now, work, outcome);
        if let Some(error) = loss {
            self.recover(now, &error);
        }
        for request in undrawn {
            self.ask_sampler(request);
        }
        Some(now)
    }

    /// Have the caller's own sampler draw. Everybody else goes on meanwhile.
    fn ask_sampler(&mut self, request: RequestId) {
        let Some((id, logits)) = self.backend.offered(request) else { return };
        let shared = Arc::clone(&self.shared);
        let reply = move |choice| shared.send(Command::Chosen(request, choice));
        self.callables.sample(id, logits, Box::new(reply));
    }

    fn carry_out(&mut self, work: &Work) -> Outcome {
        match work {
            Work::Prepare(ops) => Outcome::Prepare(self.backend.prepare(ops)),
            Work::Decode(rows) => {
                let requests = rows.iter().map(|row| row.request);
                self.shared.passes.begin(requests, self.backend.abort_flag());
                let outcome = self.backend.decode(rows);
                self.shared.passes.end();
                if outcome.status == PassStatus::Done {
                    self.shared.metrics.pass(rows);
                }
                Outcome::Decode(outcome)
            }
            Work::Embed(parts) => {
                let requests = parts.iter().map(|part| part.request);
                self.shared.passes.begin(requests, self.backend.abort_flag());
                let outcome = self.backend.embed(parts);
                self.shared.passes.end();
                Outcome::Embed(outcome)
            }
            Work::Strategy(view) => Outcome::Strategy(match strategy_id(&self.shared.options) {
                Some(id) => self.callables.strategy(id, view.clone(), STRATEGY_DEADLINE),
                None => Err("the strategy is built in".into()),
            }),
        }
    }

    /// Sleep until somebody says something or somebody's time is over.
    fn idle(&mut self) {
        self.scheduler.check_idle();
        let due = self.scheduler.poll_timeout().into_iter().chain(self.shared.held_until()).min();
        let wait = due.map(|at: Time| at - self.shared.clock.now());
        if let Some(command) = self.commands.wait(wait) {
            self.obey(command);
        }
    }

    fn drain_commands(&mut self) {
        while let Some(command) = self.commands.next() {
            self.obey(command);
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Submit(entries) => entries.into_iter().for_each(|entry| self.take_in(entry)),
            Command::Cancel(id) => {
                self.shared.passes.settle(id);
                self.scheduler.cancel(self.shared.clock.now(), id);
            }
            Command::Chosen(id, choice) => {
                let drawn = choice.map_err(Error::Inference).and_then(|choice| self.backend.settle(id, choice));
                self.scheduler.supply(self.shared.clock.now(), id, drawn);
            }
            Command::Transfer(asked) => self.transfers.begin(&mut self.scheduler, self.shared.clock.now(), asked),
            Command::Made(made) => self.backend_made(made),
            // The loader runs once, and this thread has what it gave.
            Command::Start(..) | Command::Look => {}
        }
    }

    fn take_in(&mut self, entry: Entry) {
        let id = entry.request.id;
        if entry.mailbox.has_ended(id) {
            self.shared.count_outside(&Ok(FinishReason::Cancelled));
            return;
        }
        match self.scheduler.submit(entry.at, entry.request) {
            Ok(()) => drop(self.routes.insert(id, entry.mailbox)),
            Err(error) => self.shared.end_outside(id, Err(error)),
        }
    }

    /// Tell the callers and the listeners what happened in this turn, then wake each of them once.
    fn route_events(&mut self) {
        while let Some(event) = self.scheduler.poll_event() {
            match self.transfers.take(event) {
                Some(Event::Embedded { request, embedded }) => {
                    if let Some(mailbox) = self.routes.get(&request) {
                        mailbox.put(embedded);
                    }
                }
                Some(event) => self.route(&event),
                None => {}
            }
        }
        self.wakes = Wakes::default();
    }

    fn route(&mut self, event: &Event) {
        self.shared.metrics.note(event);
        let about = match event {
            Event::Chunk { request, text, tokens, told } => {
                if let Some(mailbox) = self.routes.get(request) {
                    mailbox.push(*request, text, tokens, told, &mut self.wakes);
                }
                return;
            }
            Event::Finished(finished) => {
                self.routes.remove(&finished.request);
                self.shared.end(finished, &mut self.wakes);
                return;
            }
            Event::Started { request, .. } => {
                if let Some(mailbox) = self.routes.get(request) {
                    mailbox.start(*request);
                }
                Some(request)
            }
            Event::Queued { request, .. } | Event::Parked { request, .. } | Event::Resumed { request, .. } => {
                Some(request)
            }
            Event::Token { .. }
            | Event::Embedded { .. }
            | Event::SessionSaved { .. }
            | Event::SessionLoaded { .. }
            | Event::TransferFailed { .. } => {
                return;
            }
            Event::Tick { .. }
            | Event::KvPressure { .. }
            | Event::TierChanged { .. }
            | Event::PrefixInstability { .. }
            | Event::Backend(_)
            | Event::StrategyFailed { .. } => None,
        };
        // Nothing is told of a request after its end.
        if about.is_none_or(|id| self.routes.get(id).is_some_and(|mailbox| !mailbox.has_ended(*id))) {
            self.shared.telemetry.publish(self.shared.clock, || event.clone(), &mut self.wakes);
        }
    }
}

fn strategy_id(options: &StartOptions) -> Option<u64> {
    match options.batch_strategy {
        StrategyOption::Callable(id) => Some(id),
        StrategyOption::Builtin(_) => None,
    }
}

/// The engine thread's end of the channel, with a timer.
struct Commands {
    receiver: UnboundedReceiver<Command>,
    runtime: Runtime,
}

impl Commands {
    fn new(receiver: UnboundedReceiver<Command>) -> Result<Self, Error> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let runtime = runtime.map_err(|e| Error::EngineCrashed(format!("there is no timer: {e}")))?;
        Ok(Self { receiver, runtime })
    }

    /// The next command that is there.
    fn next(&mut self) -> Option<Command> {
        self.receiver.try_recv().ok()
    }

    /// Wait for a command; none when the time runs out first.
    fn wait(&mut self, timeout: Option<Duration>) -> Option<Command> {
        let receiver = &mut self.receiver;
        self.runtime.block_on(async {
            match timeout {
                Some(timeout) => tokio::time::timeout(timeout, receiver.recv()).await.ok().flatten(),
                None => receiver.recv().await,
            }
        })
    }
}
