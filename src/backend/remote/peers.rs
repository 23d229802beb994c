//! The servers that a process computes with: what can be seen of them from here, beside the process.

use super::message::Recipe;
use crate::error::{Error, RpcReason};
use crate::rpc::{Met, Sight, examine, knock};
use std::time::Duration;

/// What a look takes at most.
const LOOK: Duration = Duration::from_secs(2);

/// The servers of one process.
pub(super) struct Peers {
    met: Vec<Met>,
    limit: Duration,
    was_knocked: bool,
}

impl Peers {
    /// Those of a recipe.
    pub(super) fn of(recipe: &Recipe) -> Self {
        let (servers, limit) = recipe.servers();
        Self { met: servers.iter().map(Met::new).collect(), limit: limit.min(LOOK), was_knocked: false }
    }

    /// Knock at them while they are in use: once, since each knock takes one of two places in their queues.
    pub(super) fn knock(&mut self) -> Vec<Sight> {
        if std::mem::replace(&mut self.was_knocked, true) {
            return Vec::new();
        }
        knock(&self.met, self.limit)
    }

    /// What becomes of those whose process is gone, and what is seen of its servers, which nobody uses now.
    pub(super) fn loss(&self, why: &str) -> (Error, Vec<Sight>) {
        if self.met.is_empty() {
            return (Error::BackendLost(why.to_owned()), Vec::new());
        }
        let seen = examine(&self.met, self.limit);
        let all = listed(seen.iter());
        let troubles: Vec<String> = seen.iter().filter_map(|s| s.trouble.as_ref()).map(ToString::to_string).collect();
        let (endpoint, what) = if troubles.is_empty() {
            (all.clone(), "one of which may have gone away; all of them answer now".to_owned())
        } else {
            (listed(seen.iter().filter(|sight| sight.trouble.is_some())), format!("and now: {}", troubles.join("; ")))
        };
        let text = format!("the backend was lost: {why}; it computed with {all}, {what}");
        (Error::Rpc { reason: RpcReason::Lost, endpoint, text }, seen)
    }

    /// Why there is no process: the trouble that a server is in, or else what is known of the process.
    pub(super) fn blame(&self, why: &str) -> Error {
        let seen = examine(&self.met, self.limit);
        match seen.iter().find_map(|sight| sight.trouble.as_ref()) {
            Some(Error::Rpc { reason, endpoint, text }) => {
                Error::Rpc { reason: *reason, endpoint: endpoint.clone(), text: format!("{text}; {why}") }
            }
            _ if seen.is_empty() => Error::ModelLoad(why.to_owned()),
            _ => Error::ModelLoad(format!("{why}; it was to compute with {}", listed(seen.iter()))),
        }
    }
}

fn listed<'a>(sights: impl Iterator<Item = &'a Sight>) -> String {
    sights.map(|sight| &*sight.endpoint).collect::<Vec<_>>().join(",")
}
