//! Conversations: what a model's template makes of messages and tools, and how answers to them are read. Free of
//! llama.cpp.
//!
//! The template itself is a [`Template`]: llama.cpp's Jinja, or a stand-in. What surrounds it is here: text of callers that
//! spells a control token never becomes one (`controls`), tools work on models whose template knows none (`tools`), and
//! the answer gets the grammar and the stops that go with it ([`Shape`](crate::core::Shape)).

mod asked;
mod controls;
mod render;
mod tools;

pub use asked::{Asked, ToolChoice};
pub use controls::{Control, Controls};
pub use render::{Conversation, Made, Template, plain, render};
