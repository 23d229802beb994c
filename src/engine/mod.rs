//! Joins the core with a backend on one thread, and both with the callers.
