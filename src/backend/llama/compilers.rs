//! The grammar compilers of a model: one over its vocabulary, and one for each set of control tokens that are text.

use super::model::Model;
use crate::backend::{Tokenizer, compiler};
use crate::core::Token;
use crate::error::Error;
use crate::grammar::Compiler;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Sets of control tokens that are remembered. A template has one or two, and each holds a vocabulary.
const MAX_KNOWN: usize = 4;

type Made = Result<Arc<Compiler>, Error>;

/// Compilers by the control tokens that they take for text, made when they are asked for.
#[derive(Debug, Default)]
pub(super) struct Compilers(Mutex<BTreeMap<Vec<Token>, Made>>);

impl Compilers {
    /// The compiler that takes these control tokens for text.
    pub(super) fn compiler(&self, model: &Model, shown: &[Token]) -> Made {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(made) = known.get(shown) {
            return made.clone();
        }
        if known.len() >= MAX_KNOWN {
            known.retain(|shown, _| shown.is_empty());
        }
        let made = compiler(model as &dyn Tokenizer, shown).map(Arc::new);
        known.insert(shown.to_vec(), made.clone());
        made
    }
}
