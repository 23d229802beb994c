//! The Rust tests: one binary.
