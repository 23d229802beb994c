//! Regular expressions in schemas. Python's and Rust's differ in what a class of characters is: each is written so that
//! what Rust takes Python takes too.

use serde_json::{Map, Value};

/// Rewrite `pattern` and the keys of `patternProperties`.
pub(super) fn narrow(schema: &mut Map<String, Value>) -> Result<(), String> {
    if let Some(pattern) = schema.get_mut("pattern") {
        let Some(text) = pattern.as_str() else { return Err("`pattern` is no text".into()) };
        *pattern = Value::String(narrowed(text));
    }
    if let Some(Value::Object(properties)) = schema.get_mut("patternProperties") {
        let mut renamed = Map::new();
        for (key, value) in std::mem::take(properties) {
            if renamed.insert(narrowed(&key), value).is_some() {
                return Err(format!("`patternProperties`: {key:?} means the same as another pattern"));
            }
        }
        *properties = renamed;
    }
    Ok(())
}

/// All that Python may take for a letter, digit or underscore; more than that.
const WIDE_WORD: &str = "\\p{L}\\p{M}\\p{N}\\p{Pc}\\p{Cf}";

/// All that Python takes for white space, and no less.
const WIDE_SPACE: &str = "\\s\\x1c-\\x1f";

fn narrowed(pattern: &str) -> String {
    let mut out = String::new();
    // Within a class: whether it is negated.
    let mut class: Option<bool> = None;
    let mut chars = pattern.chars().peekable();
    while let Some(c) = chars.next() {
        match (c, class) {
            ('\\', _) => match chars.next() {
                Some(c) => {
                    escape(c, class, &mut out);
                    // The same of a range that begins with the first of them.
                    let zeros = if c == 'x' { "00-" } else { "0000-" };
                    let rest: String = chars.clone().take(zeros.len()).collect();
                    if class == Some(false) && matches!(c, 'x' | 'u') && rest == zeros {
                        out.push_str(&zeros.replace("0-", "2-"));
                        chars.by_ref().take(zeros.len()).for_each(drop);
                    }
                }
                None => out.push('\\'),
            },
            ('[', None) => {
                out.push('[');
                let negated = chars.next_if_eq(&'^').is_some();
                // To llguidance a class with every control character has the escaped quote and backslash too, whatever
                // it says of those. Nothing is lost by one that no answer spells.
                out.push_str(if negated { "^\\x01" } else { "" });
                // The first bracket of a class is one of its characters.
                out.push_str(if chars.next_if_eq(&']').is_some() { "\\]" } else { "" });
                class = Some(negated);
            }
            (']', Some(_)) => {
                out.push(']');
                class = None;
            }
            // Rust nests classes and has operators for them, Python does not.
            ('[' | '&' | '~', Some(_)) => out.extend(['\\', c]),
            ('-', Some(_)) if chars.next_if_eq(&'-').is_some() => out.push_str("-\\-"),
            _ => out.push(c),
        }
    }
    out
}

fn escape(c: char, class: Option<bool>, out: &mut String) {
    let parts: &[&str] = match (c, class) {
        // What is excluded must be no less than in Python, what is included no more.
        ('d', Some(true)) => &["\\p{Nd}"],
        ('w', Some(true)) => &[WIDE_WORD],
        ('s', Some(true)) => &[WIDE_SPACE],
        ('D', None | Some(false)) => &["\\P{Nd}"],
        ('W', None | Some(false)) => &["[^", WIDE_WORD, "]"],
        ('S', None | Some(false)) => &["[^", WIDE_SPACE, "]"],
        _ => return out.extend(['\\', c]),
    };
    out.extend(parts.iter().copied());
}

#[cfg(test)]
mod tests {
    use super::narrowed;

    #[test]
    fn classes_are_no_wider_than_python_s() {
        assert_eq!(narrowed(r"^\d+-\w$"), r"^\d+-\w$");
        assert_eq!(narrowed(r"[^\d]"), r"[^\x01\p{Nd}]");
        assert_eq!(narrowed(r"\D\\D"), r"\P{Nd}\\D");
        assert_eq!(narrowed(r"[[a&&b]"), r"[\[a\&\&b]");
        assert_eq!(narrowed("[]a]x"), r"[\]a]x");
        assert_eq!(narrowed("[^]a]"), r"[^\x01\]a]");
        assert_eq!(narrowed(r"[\x00-!\u0000-!]"), r"[\x02-!\u0002-!]");
        assert_eq!(narrowed("[+--]"), r"[+-\-]");
    }
}
