//! The Rust tests: one binary.
#![allow(
    clippy::unwrap_used,
    clippy::float_cmp,
    clippy::unit_arg,
    clippy::wildcard_enum_match_arm,
    clippy::too_many_lines,
    reason = "a test may stop at what it did not expect"
)]

mod chat;
mod engine;
mod grammar;
#[cfg(feature = "llama")]
mod llama;
#[cfg(unix)]
mod remote;
mod rpc;
mod sampling;
mod scheduler;
mod store;
