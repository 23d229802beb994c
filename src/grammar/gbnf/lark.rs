//! Writes a grammar over terminals in llguidance's language.

use super::ast::{Node, Rules};
use super::class::Class;
use super::lower::{Part, Skeleton};
use std::fmt::Write;

/// Bytes that the grammar may take.
const MAX_BYTES: usize = 8 << 20;

pub(crate) fn write(skeleton: &Skeleton, rules: &Rules) -> Result<String, String> {
    let mut out = String::new();
    let _ = writeln!(out, "start: r{}", skeleton.root);
    for (rule, part) in &skeleton.rules {
        let _ = write!(out, "r{rule}: ");
        part_to(part, &mut out);
        out.push('\n');
    }
    for (index, term) in skeleton.terms.iter().enumerate() {
        let _ = write!(out, "T{index}: /");
        regex_to(term, rules, &mut out);
        // A terminal is never empty: the rules say where it may be left out.
        out.push_str("/ & /[\\x{1}-\\x{10ffff}]+/\n");
        if out.len() > MAX_BYTES {
            return Err("the grammar is too large once its rules are put together".into());
        }
    }
    Ok(out)
}

fn part_to(part: &Part, out: &mut String) {
    match part {
        Part::Term(term) => drop(write!(out, "T{term}")),
        Part::Rule(rule) => drop(write!(out, "r{rule}")),
        Part::Seq(parts) if parts.is_empty() => out.push_str("\"\""),
        Part::Seq(parts) => list(parts, " ", out),
        Part::Alt(parts) => list(parts, " | ", out),
        Part::Repeat(part, min, max) => {
            out.push('(');
            part_to(part, out);
            out.push(')');
            match (min, max) {
                (0, None) => out.push('*'),
                (1, None) => out.push('+'),
                (0, Some(1)) => out.push('?'),
                (min, None) => drop(write!(out, "{{{min},}}")),
                (min, Some(max)) => drop(write!(out, "{{{min},{max}}}")),
            }
        }
    }
}

fn list(parts: &[Part], between: &str, out: &mut String) {
    out.push('(');
    for (i, part) in parts.iter().enumerate() {
        out.push_str(if i == 0 { "" } else { between });
        part_to(part, out);
    }
    out.push(')');
}

fn regex_to(node: &Node, rules: &Rules, out: &mut String) {
    match node {
        Node::Class(class) => class_to(class, out),
        Node::Rule(rule) => regex_to(&rules.rules[*rule].body, rules, out),
        Node::Seq(parts) => {
            for part in parts {
                let alone = matches!(part, Node::Class(_));
                out.push_str(if alone { "" } else { "(?:" });
                regex_to(part, rules, out);
                out.push_str(if alone { "" } else { ")" });
            }
        }
        Node::Alt(options) => {
            out.push_str("(?:");
            for (i, option) in options.iter().enumerate() {
                out.push_str(if i == 0 { "" } else { "|" });
                regex_to(option, rules, out);
            }
            out.push(')');
        }
        Node::Repeat(part, min, max) => {
            out.push_str("(?:");
            regex_to(part, rules, out);
            out.push(')');
            let _ = match max {
                Some(max) => write!(out, "{{{min},{max}}}"),
                None => write!(out, "{{{min},}}"),
            };
        }
    }
}

fn class_to(class: &Class, out: &mut String) {
    let one = |c: u32, out: &mut String| match char::from_u32(c).filter(char::is_ascii_alphanumeric) {
        Some(c) => out.push(c),
        None => drop(write!(out, "\\x{{{c:x}}}")),
    };
    if let [(from, to)] = class.ranges()
        && from == to
    {
        return one(*from, out);
    }
    out.push('[');
    for (from, to) in class.ranges() {
        one(*from, out);
        if from < to {
            out.push('-');
            one(*to, out);
        }
    }
    out.push(']');
}
