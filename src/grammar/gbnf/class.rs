//! Sets of characters.

/// The last character of Unicode.
const LAST: u32 = 0x10_ffff;

/// No text of a token can have these, so no class does: the NUL that ends a text in C, and what only UTF-16 has.
const NEVER: [(u32, u32); 2] = [(0, 0), (0xd800, 0xdfff)];

/// A set of characters: ranges in order that neither overlap nor touch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Class(Vec<(u32, u32)>);

/// The first byte of a character in UTF-8.
fn first_byte(c: u32) -> u8 {
    let lead = |prefix: u32, shift: u32| (prefix | (c >> shift)) as u8;
    match c {
        0..0x80 => lead(0, 0),
        0x80..0x800 => lead(0xc0, 6),
        0x800..0x1_0000 => lead(0xe0, 12),
        _ => lead(0xf0, 18),
    }
}

impl Class {
    /// All characters of some ranges.
    pub(crate) fn of(mut ranges: Vec<(u32, u32)>) -> Self {
        ranges.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::new();
        for (from, to) in ranges {
            match merged.last_mut() {
                Some(last) if from <= last.1.saturating_add(1) => last.1 = last.1.max(to),
                _ => merged.push((from, to)),
            }
        }
        Self(merged).without(&NEVER)
    }

    /// One character.
    pub(crate) fn one(c: u32) -> Self {
        Self::of(vec![(c, c)])
    }

    /// All characters.
    pub(crate) fn any() -> Self {
        Self::of(vec![(0, LAST)])
    }

    /// All characters but those of some ranges.
    pub(crate) fn not(ranges: Vec<(u32, u32)>) -> Self {
        let excluded = Self::of(ranges);
        Self::any().without(&excluded.0)
    }

    fn without(self, holes: &[(u32, u32)]) -> Self {
        let mut kept = Vec::new();
        for (mut from, to) in self.0 {
            for &(hole_from, hole_to) in holes {
                if hole_to < from || hole_from > to {
                    continue;
                }
                if hole_from > from {
                    kept.push((from, hole_from - 1));
                }
                from = hole_to + 1;
            }
            if from <= to {
                kept.push((from, to));
            }
        }
        Self(kept)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn ranges(&self) -> &[(u32, u32)] {
        &self.0
    }

    /// Whether the two have a character in common.
    pub(crate) fn meets(&self, other: &Self) -> bool {
        let (mut a, mut b) = (self.0.iter().peekable(), other.0.iter().peekable());
        while let (Some(x), Some(y)) = (a.peek(), b.peek()) {
            if x.1 < y.0 {
                a.next();
            } else if y.1 < x.0 {
                b.next();
            } else {
                return true;
            }
        }
        false
    }

    /// Whether a character of each begin with the same byte in UTF-8.
    pub(crate) fn begins_like(&self, other: &Self) -> bool {
        // First bytes are in the order of characters, so those of a range are a range.
        let overlap =
            |a: &(u32, u32), b: &(u32, u32)| first_byte(a.0) <= first_byte(b.1) && first_byte(b.0) <= first_byte(a.1);
        self.0.iter().any(|a| other.0.iter().any(|b| overlap(a, b)))
    }

    #[cfg(test)]
    pub(crate) fn has(&self, c: char) -> bool {
        self.0.iter().any(|(from, to)| (*from..=*to).contains(&(c as u32)))
    }
}

#[cfg(test)]
mod tests {
    use super::{Class, first_byte};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_first_byte_is_the_one_of_utf_8(c in any::<char>()) {
            let mut bytes = [0; 4];
            prop_assert_eq!(first_byte(c as u32), c.encode_utf8(&mut bytes).as_bytes()[0]);
        }
    }

    #[test]
    fn characters_of_the_same_first_byte_begin_alike() {
        let class = |text: &str| Class::of(text.chars().map(|c| (c as u32, c as u32)).collect());
        assert!(class("»").begins_like(&class("a«")));
        assert!(!class("»é").begins_like(&class("aжb")));
        assert!(Class::not(vec![(0xbb, 0xbb)]).begins_like(&class("»")));
        assert!(!Class::of(vec![(1, 0x7f)]).begins_like(&class("»")));
    }
}
