//! The Rust tests: one binary.

mod sampling;
mod scheduler;
