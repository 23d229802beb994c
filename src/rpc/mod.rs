//! llama.cpp's RPC, as far as it can be had without llama.cpp: proving a server over a socket of our own, before ggml
//! connects, which ends the process where anything is wrong; seeing how servers fare later; placing a model; and the worker's
//! cache of tensors.

mod cache;
mod place;
mod probe;
mod sight;

pub use cache::{hash, is_whole};
pub use place::{Candidate, Kind, place};
pub use probe::{Memory, PROTOCOL, Server, prove, resolve};
pub use sight::{Met, Sight, examine, knock};

use crate::error::{Error, RpcReason};

/// The error of a server.
pub(crate) fn failure(reason: RpcReason, endpoint: &impl ToString, what: &str) -> Error {
    let endpoint = endpoint.to_string();
    Error::Rpc { reason, text: format!("RPC server {endpoint}: {what}"), endpoint }
}
