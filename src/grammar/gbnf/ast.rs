//! What a grammar says, once it is read.

use super::class::Class;

/// A part of a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Node {
    /// One character of a class.
    Class(Class),
    /// Another rule, by its index.
    Rule(usize),
    /// One after the other; of none, the empty text.
    Seq(Vec<Node>),
    /// Any of them.
    Alt(Vec<Node>),
    /// So many times at least, and at most.
    Repeat(Box<Node>, u32, Option<u32>),
}

impl Node {
    /// The empty text.
    pub(crate) const EMPTY: Self = Self::Seq(Vec::new());

    /// Parts, one after the other.
    pub(crate) fn seq(mut parts: Vec<Self>) -> Self {
        if parts.len() == 1 { parts.remove(0) } else { Self::Seq(parts) }
    }

    /// Alternatives.
    pub(crate) fn alt(mut options: Vec<Self>) -> Self {
        if options.len() == 1 { options.remove(0) } else { Self::Alt(options) }
    }

    /// Its parts.
    pub(crate) fn children(&self) -> &[Self] {
        match self {
            Self::Class(_) | Self::Rule(_) => &[],
            Self::Seq(parts) | Self::Alt(parts) => parts,
            Self::Repeat(part, ..) => std::slice::from_ref(part),
        }
    }
}

/// A rule.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    pub(crate) name: String,
    pub(crate) body: Node,
}

/// The rules of a grammar, all of them defined.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) rules: Vec<Rule>,
    pub(crate) root: usize,
}
