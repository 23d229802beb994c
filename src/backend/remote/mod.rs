//! A backend in a process of its own, so that what ends llama.cpp (a peer that goes away makes ggml abort) ends that
//! process and not the user's interpreter.
//!
//! - [`RemoteBackend`] (`proxy.rs`) is a [`super::Backend`] like any other: each call is a frame out and a frame back.
//! - `process.rs` starts the process, keeps its last words, and sees to its end.
//! - [`serve`] is what the process does: it makes the real backend, and answers.
//! - `peers.rs` sees how the servers are that the process computes with.
//! - `wire.rs` is the frames, `message.rs` what is in them.
//!
//! Two socket pairs join the two: one carries works and outcomes, the engine thread itself waiting for each answer; the
//! other carries the number of a pass that is to be aborted, which a thread of the process reads beside it.

mod message;
mod peers;
mod process;
mod proxy;
mod serve;
mod wire;

pub use message::Recipe;
pub use process::{LOG_MARK, Launch};
pub use proxy::RemoteBackend;
pub use serve::serve;
