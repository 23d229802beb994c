//! How the servers of a running model fare, as far as it can be seen from beside llama.cpp.
//!
//! A server has one client. While a model uses it, whoever else connects waits in the system's queue, which has two
//! places; so a server in use is only knocked at, and once it is not, it is asked.

use super::probe::{prove, reach, resolve};
use crate::error::Error;
use crate::options::Endpoint;
use std::net::SocketAddrV4;
use std::time::Duration;

/// What was seen of a server when somebody last looked.
#[derive(Clone, Debug, PartialEq)]
pub struct Sight {
    /// The server, as `host:port`.
    pub endpoint: String,
    /// What is wrong with it, if anything.
    pub trouble: Option<Error>,
}

/// A server that a model was loaded over, under the address that it had then: a name server that fails later is no
/// trouble of its.
#[derive(Clone, Debug)]
pub struct Met {
    endpoint: Endpoint,
    address: Result<SocketAddrV4, Error>,
}

impl Met {
    /// Find its address.
    pub fn new(endpoint: &Endpoint) -> Self {
        Self { endpoint: endpoint.clone(), address: resolve(endpoint) }
    }

    /// The server, as `host:port`.
    pub fn endpoint(&self) -> String {
        self.endpoint.to_string()
    }
}

/// See whether each server takes connections, all of them at once and within `limit`. A server that serves does not
/// notice until its client has left; each call takes a place in its queue until then.
pub fn knock(servers: &[Met], limit: Duration) -> Vec<Sight> {
    each(servers, |endpoint, address| reach(endpoint, address, limit).map(drop))
}

/// Prove each server, all of them at once and within `limit`. One that serves a client is in trouble by that.
pub fn examine(servers: &[Met], limit: Duration) -> Vec<Sight> {
    each(servers, |endpoint, address| prove(endpoint, address, limit).map(drop))
}

fn each(servers: &[Met], look: impl Fn(&Endpoint, SocketAddrV4) -> Result<(), Error> + Sync) -> Vec<Sight> {
    let look = |server: &Met| {
        let seen = server.address.clone().and_then(|address| look(&server.endpoint, address));
        Sight { endpoint: server.endpoint(), trouble: seen.err() }
    };
    std::thread::scope(|scope| {
        // Without a thread it is looked at here, in its turn.
        let spawn = |server| std::thread::Builder::new().spawn_scoped(scope, move || look(server)).map_err(|_| server);
        let looks: Vec<_> = servers.iter().map(spawn).collect();
        let seen = looks.into_iter().map(|looking| match looking {
            Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(server) => look(server),
        });
        seen.collect()
    })
}
