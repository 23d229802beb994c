//! The Rust tests: one binary.

#![expect(clippy::unwrap_used, reason = "a test that meets what it does not expect fails by panicking")]

mod engine;
mod sampling;
mod scheduler;
