//! llama.cpp's grammar language, translated to llguidance's so that the language stays the same.
//!
//! llguidance splits text into terminals before it parses, and takes the longest one: `[a-z]* "x"` would match nothing
//! if both were terminals. So parts that are regular are made one terminal, as large as may be (`lower`); where the longest
//! match could be the wrong one (`conflicts`), the terminal is taken apart; at the end of that stand single characters,
//! which are always right, and slower.
//!
//! What llama.cpp takes and this refuses: references to tokens, a rule that is defined twice, a class without
//! characters, a range that runs backwards, more than 2000 repetitions (llama.cpp takes those for any number), and rules
//! that never end. What this takes and llama.cpp refuses: an empty text that is repeated, and many repetitions within each
//! other. Both refuse left recursion.

mod ast;
mod automaton;
mod check;
mod class;
mod conflicts;
mod lark;
mod lower;
mod parse;
mod tail;
#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]
mod tests;

use lower::{Broken, Lowering};

/// Steps of looking for conflicts; after those the grammar is read character by character.
const MAX_WORK: u64 = 1_000_000;

/// Translate a grammar.
pub(super) fn to_lark(text: &str, root: &str) -> Result<String, String> {
    let mut rules = parse::parse(text, root)?;
    check::check(&rules)?;
    tail::rewrite(&mut rules);
    let lowering = Lowering::new(&rules);
    let (mut broken, mut work) = (Broken::default(), MAX_WORK);
    loop {
        let skeleton = lowering.skeleton(&broken);
        match conflicts::conflicts(&skeleton, &rules, &mut work) {
            Some(found) if found.is_empty() => return lark::write(&skeleton, &rules),
            Some(found) => broken.nodes.extend(found.into_iter().map(|term| skeleton.terms[term].clone())),
            None => {
                broken.all = true;
                return lark::write(&lowering.skeleton(&broken), &rules);
            }
        }
    }
}
