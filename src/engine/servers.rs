//! What is known of the servers that a model is spread over, and of passes that take unusually long.

use super::lock;
use super::shared::Shared;
use crate::backend::Sight;
use crate::core::Time;
use crate::error::Error;
use crate::options::StartOptions;
use std::sync::Mutex;
use std::time::Duration;

/// A server, as it was when somebody last looked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerHealth {
    /// The server, as `host:port`.
    pub endpoint: String,
    /// Whether it was of use; none before anybody has looked.
    pub is_reachable: Option<bool>,
    /// What was wrong with it, if anything.
    pub trouble: Option<String>,
    /// How long ago that was.
    pub age: Option<Duration>,
}

/// Works that take unusually long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slow {
    /// So many, since the start.
    pub n: u64,
    /// Whether one is under way.
    pub is_now: bool,
    /// How long the last one took, or has taken so far.
    pub last: Option<Duration>,
}

struct Seen {
    endpoint: String,
    last: Option<(Time, Option<String>)>,
}

/// Written when a model is loaded, when a work is slow, and when a backend is lost; whoever reads it copies it.
pub(super) struct Servers {
    seen: Mutex<Vec<Seen>>,
    slow: Mutex<(u64, SlowWork)>,
}

#[derive(Clone, Copy)]
enum SlowWork {
    Never,
    Since(Time),
    Took(Duration),
}

impl Servers {
    pub(super) fn new(options: &StartOptions) -> Self {
        let endpoints = options.rpc_servers.iter().flat_map(|servers| &servers.0);
        let seen = endpoints.map(|endpoint| Seen { endpoint: endpoint.to_string(), last: None }).collect();
        Self { seen: Mutex::new(seen), slow: Mutex::new((0, SlowWork::Never)) }
    }

    /// The model was loaded over all of them.
    pub(super) fn all_well(&self, now: Time) {
        lock(&self.seen).iter_mut().for_each(|server| server.last = Some((now, None)));
    }

    /// Somebody has looked.
    pub(super) fn note(&self, now: Time, sights: &[Sight]) {
        for server in lock(&self.seen).iter_mut() {
            if let Some(sight) = sights.iter().find(|sight| sight.endpoint == server.endpoint) {
                server.last = Some((now, sight.trouble.as_ref().map(ToString::to_string)));
            }
        }
    }

    /// A model could not be loaded; it may be a server's fault.
    pub(super) fn note_failure(&self, now: Time, error: &Error) {
        if let Error::Rpc { endpoint, .. } = error {
            self.note(now, &[Sight { endpoint: endpoint.clone(), trouble: Some(error.clone()) }]);
        }
    }

    /// A work is slow: it began at that time.
    pub(super) fn slow_since(&self, began: Time) {
        let mut slow = lock(&self.slow);
        *slow = (slow.0 + 1, SlowWork::Since(began));
    }

    /// The slow work is over.
    pub(super) fn slow_took(&self, took: Duration) {
        lock(&self.slow).1 = SlowWork::Took(took);
    }

    /// How each of them is.
    pub(super) fn health(&self, now: Time) -> Vec<ServerHealth> {
        let health = |server: &Seen| {
            let last = server.last.as_ref();
            ServerHealth {
                endpoint: server.endpoint.clone(),
                is_reachable: last.map(|(_, trouble)| trouble.is_none()),
                trouble: last.and_then(|(_, trouble)| trouble.clone()),
                age: last.map(|(at, _)| now - *at),
            }
        };
        lock(&self.seen).iter().map(health).collect()
    }

    pub(super) fn slow(&self, now: Time) -> Slow {
        let (n, work) = *lock(&self.slow);
        match work {
            SlowWork::Never => Slow { n, is_now: false, last: None },
            SlowWork::Since(began) => Slow { n, is_now: true, last: Some(now - began) },
            SlowWork::Took(took) => Slow { n, is_now: false, last: Some(took) },
        }
    }
}

impl Shared {
    /// Whom an event of a slow work names, and what is wrong with them: those in trouble, or else all.
    pub(super) fn suspects(&self, sights: &[Sight]) -> (String, Option<String>) {
        let bad = sights.iter().filter_map(|sight| Some((sight.endpoint.clone(), sight.trouble.as_ref()?.to_string())));
        let (named, troubles): (Vec<_>, Vec<_>) = bad.unzip();
        if named.is_empty() {
            let all = self.options.rpc_servers.iter().flat_map(|servers| &servers.0);
            return (all.map(ToString::to_string).collect::<Vec<_>>().join(","), None);
        }
        (named.join(","), Some(troubles.join("; ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::RpcReason;
    use crate::options::{Endpoint, Endpoints};

    fn servers(names: &[&str]) -> Servers {
        let list = names.iter().map(|name| Endpoint::parse(name).expect("an endpoint")).collect();
        Servers::new(&StartOptions { rpc_servers: Some(Endpoints(list)), ..StartOptions::default() })
    }

    #[test]
    fn a_server_is_as_it_was_when_it_was_last_seen() {
        let servers = servers(&["a:1", "b:2"]);
        let second = |n: u64| Time(n * 1_000_000_000);
        assert!(servers.health(second(1)).iter().all(|server| server.is_reachable.is_none() && server.age.is_none()));
        servers.all_well(second(1));
        let error = Error::Rpc { reason: RpcReason::Busy, endpoint: "b:2".into(), text: "b:2 hangs".into() };
        servers.note_failure(second(3), &error);
        let [a, b] = &servers.health(second(4))[..] else { panic!("two servers") };
        assert_eq!((a.is_reachable, a.age, &a.trouble), (Some(true), Some(Duration::from_secs(3)), &None));
        assert_eq!((b.is_reachable, b.age), (Some(false), Some(Duration::from_secs(1))));
        assert_eq!(b.trouble.as_deref(), Some("b:2 hangs"));
        servers.all_well(second(5));
        assert!(servers.health(second(5)).iter().all(|server| server.is_reachable == Some(true)));
    }

    #[test]
    fn a_slow_work_grows_until_it_is_over() {
        let servers = servers(&[]);
        assert_eq!(servers.slow(Time(5)), Slow::default());
        servers.slow_since(Time(10));
        let slow = Slow { n: 1, is_now: true, last: Some(Duration::from_nanos(20)) };
        assert_eq!(servers.slow(Time(30)), slow);
        servers.slow_took(Duration::from_nanos(25));
        assert_eq!(servers.slow(Time(99)), Slow { is_now: false, last: Some(Duration::from_nanos(25)), ..slow });
    }
}
