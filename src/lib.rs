//! llama-batch: continuous batching for llama.cpp, inside Python.
//!
//! Start at [`core`]: it decides. [`backend`] computes, [`engine`] joins them on one thread, `py` translates.

pub mod backend;
pub mod chat;
pub mod core;
pub mod engine;
pub mod error;
pub mod grammar;
pub mod options;
#[cfg(feature = "python")]
mod py;
pub mod rpc;
pub mod sampling;
pub mod sim;
pub mod store;
pub mod tune;
