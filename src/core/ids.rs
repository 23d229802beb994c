//! Names of things that are counted.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A token of the model's vocabulary, as llama.cpp numbers it.
pub type Token = i32;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub $inner);
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { self.0.fmt(f) }
        }
    };
}

id!(
    /// A request; numbered by whoever submits it, in order of arrival, never reused.
    RequestId(u64)
);
id!(
    /// A place in the running set.
    SlotId(u32)
);
id!(
    /// A sequence in the KV cache: llama.cpp's `llama_seq_id`.
    SeqId(u32)
);
id!(
    /// A block of KV state that the backend keeps in a tier; ascending in each, never reused.
    BlobId(u64)
);
