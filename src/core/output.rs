//! What a request says: bytes become characters, and a stop string ends it.
//!
//! Text that may be the beginning of a stop string is held back until that is known, so that nothing of one ever leaves;
//! its tokens are held with it. Where a stop string begins and ends does not depend on how the text came in tokens: of
//! several the one that is complete first counts, and of those the longest.

use super::ids::Token;
use super::request::StopRules;
use super::text::Utf8Assembler;

/// Text that may leave, with the tokens that end in it.
pub(super) type Piece = (String, Vec<Token>);

/// The text of one request.
#[derive(Debug, Default)]
pub(super) struct Output {
    utf8: Utf8Assembler,
    held: String,
    /// The tokens whose text is held, each with where it ends.
    tokens: Vec<(Token, usize)>,
    /// Where in what is held a stop string may begin: what came before `min_tokens` ends nothing.
    free_from: usize,
}

impl Output {
    /// Take one token: what may leave, and which stop string is complete with it.
    ///
    /// `may_stop` is whether a stop string may end the request here.
    pub(super) fn push(
        &mut self,
        rules: &StopRules,
        may_stop: bool,
        token: Token,
        bytes: &[u8],
    ) -> (Option<Piece>, Option<usize>) {
        let Some(piece) = self.utf8.push(token, bytes) else { return (None, None) };
        if rules.strings.is_empty() {
            return (Some(piece), None);
        }
        self.hold(piece);
        if !may_stop {
            self.free_from = self.held.len();
        }
        if let Some((which, start, end)) = self.find(rules) {
            self.held.truncate(if rules.include { end } else { start });
            // The token may have begun a character behind it.
            self.utf8 = Utf8Assembler::default();
            return (self.take_all(), Some(which));
        }
        let keep = self.longest_beginning(rules);
        (self.release(self.held.len() - keep), None)
    }

    /// What is left at the end: an incomplete character becomes U+FFFD, and what was held is no stop string.
    pub(super) fn flush(&mut self) -> Option<Piece> {
        if let Some(piece) = self.utf8.flush() {
            self.hold(piece);
        }
        self.take_all()
    }

    fn hold(&mut self, (text, tokens): Piece) {
        self.held.push_str(&text);
        self.tokens.extend(tokens.into_iter().map(|token| (token, self.held.len())));
    }

    /// The stop string that is complete first, and where it is.
    fn find(&self, rules: &StopRules) -> Option<(usize, usize, usize)> {
        let text = &self.held[self.free_from..];
        let found = rules.strings.iter().enumerate().filter_map(|(which, stop)| {
            let start = self.free_from + text.find(stop.as_str())?;
            Some((which, start, start + stop.len()))
        });
        found.min_by_key(|(_, start, end)| (*end, *start))
    }

    /// How many of the last bytes may be the beginning of a stop string.
    fn longest_beginning(&self, rules: &StopRules) -> usize {
        let text = &self.held.as_bytes()[self.free_from..];
        let beginning = |stop: &String| {
            let stop = stop.as_bytes();
            (1..stop.len().min(text.len() + 1)).rev().find(|len| text.ends_with(&stop[..*len])).unwrap_or(0)
        };
        rules.strings.iter().map(beginning).max().unwrap_or(0)
    }

    fn release(&mut self, n_bytes: usize) -> Option<Piece> {
        if n_bytes == 0 {
            return None;
        }
        let rest = self.held.split_off(n_bytes);
        let text = std::mem::replace(&mut self.held, rest);
        let n_tokens = self.tokens.partition_point(|(_, end)| *end <= n_bytes);
        let tokens = self.tokens.drain(..n_tokens).map(|(token, _)| token).collect();
        for (_, end) in &mut self.tokens {
            *end -= n_bytes;
        }
        self.free_from = self.free_from.saturating_sub(n_bytes);
        Some((text, tokens))
    }

    fn take_all(&mut self) -> Option<Piece> {
        self.free_from = 0;
        let (text, tokens) = (std::mem::take(&mut self.held), std::mem::take(&mut self.tokens));
        if text.is_empty() && tokens.is_empty() {
            return None;
        }
        Some((text, tokens.into_iter().map(|(token, _)| token).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rules(strings: &[&str], include: bool) -> StopRules {
        StopRules { strings: strings.iter().map(ToString::to_string).collect(), include, ..StopRules::default() }
    }

    /// Chunks until the end, and which stop string ended it.
    fn say(rules: &StopRules, n_free: usize, pieces: &[&[u8]]) -> (Vec<Piece>, Option<usize>) {
        let (mut output, mut chunks) = (Output::default(), Vec::new());
        for (i, bytes) in pieces.iter().enumerate() {
            let (piece, stopped) = output.push(rules, i >= n_free, i as Token, bytes);
            chunks.extend(piece);
            if stopped.is_some() {
                chunks.extend(output.flush());
                return (chunks, stopped);
            }
        }
        chunks.extend(output.flush());
        (chunks, None)
    }

    fn text(chunks: &[Piece]) -> String {
        chunks.iter().map(|(text, _)| text.as_str()).collect()
    }

    #[test]
    fn what_may_be_a_stop_string_is_held_until_it_is_none() {
        let (chunks, stopped) = say(&rules(&["<end>"], false), 0, &[b"Hi <", b"en", b"try> ", b"x"]);
        assert_eq!(stopped, None);
        let expected = [("Hi ", vec![]), ("<entry> ", vec![0, 1, 2]), ("x", vec![3])];
        assert_eq!(chunks, expected.map(|(text, tokens)| (text.to_string(), tokens)));
    }

    #[test]
    fn a_stop_string_over_token_borders_ends_it_and_its_tokens_are_not_lost() {
        let pieces: [&[u8]; 4] = [b"one", b" <e", b"nd", b"> two"];
        let (chunks, stopped) = say(&rules(&["zzz", "<end>"], false), 0, &pieces);
        assert_eq!((text(&chunks).as_str(), stopped), ("one ", Some(1)));
        let tokens: Vec<Token> = chunks.into_iter().flat_map(|(_, tokens)| tokens).collect();
        assert_eq!(tokens, [0, 1, 2, 3]);
        assert_eq!(text(&say(&rules(&["<end>"], true), 0, &pieces).0), "one <end>");
    }

    #[test]
    fn of_several_the_one_that_is_complete_first_counts_and_of_those_the_longest() {
        assert_eq!(say(&rules(&["b", "ab", "abcd"], false), 0, &[b"xabcd"]), (vec![("x".into(), vec![0])], Some(1)));
        assert_eq!(text(&say(&rules(&["bcd", "c"], false), 0, &[b"ab", b"cd"]).0), "ab");
    }

    #[test]
    fn before_min_tokens_nothing_stops_it_nor_is_part_of_what_does() {
        let (chunks, stopped) = say(&rules(&["aa"], false), 2, &[b"a", b"a", b"a", b"b", b"aa"]);
        assert_eq!((text(&chunks).as_str(), stopped), ("aaab", Some(0)));
    }

    #[test]
    fn a_stop_string_may_end_within_a_character_s_tokens() {
        let snowman = "☃".as_bytes();
        let (chunks, stopped) = say(&rules(&["☃"], false), 0, &[b"a", &snowman[..1], &snowman[1..2], &snowman[2..]]);
        assert_eq!((text(&chunks).as_str(), stopped), ("a", Some(0)));
    }

    /// Character by character: what is left before the first stop string that is complete.
    fn expected(stops: &[String], include: bool, text: &str) -> (String, Option<usize>) {
        for end in text.char_indices().map(|(at, c)| at + c.len_utf8()) {
            let ends =
                |(which, stop): (usize, &String)| text[..end].ends_with(stop.as_str()).then_some((stop.len(), which));
            let longest =
                stops.iter().enumerate().filter_map(ends).max_by_key(|(len, which)| (*len, usize::MAX - which));
            if let Some((len, which)) = longest {
                return (text[..if include { end } else { end - len }].into(), Some(which));
            }
        }
        (text.into(), None)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

        #[test]
        fn token_borders_change_nothing_and_nothing_of_a_stop_string_leaves(
            stops in prop::collection::vec("[ab☃]{1,4}", 0..4),
            spoken in "[abc☃]{0,24}",
            cuts in prop::collection::vec(0usize..80, 0..24),
            include in any::<bool>(),
        ) {
            let bytes = spoken.as_bytes();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|c| c.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|w| &bytes[w[0]..w[1]]).collect();
            let strings: Vec<&str> = stops.iter().map(String::as_str).collect();
            let (chunks, stopped) = say(&rules(&strings, include), 0, &pieces);
            let (left, which) = expected(&stops, include, &spoken);
            prop_assert_eq!(text(&chunks), left);
            prop_assert_eq!(stopped.map(|which| &stops[which]), which.map(|which| &stops[which]));
            // Tokens leave in order, all of them, and never before their text.
            let tokens: Vec<Token> = chunks.iter().flat_map(|(_, tokens)| tokens.clone()).collect();
            prop_assert!(tokens.iter().enumerate().all(|(i, token)| *token == i as Token));
            prop_assert!(stopped.is_some() || tokens.len() == pieces.len());
            let mut said = 0;
            for (text, tokens) in &chunks[..chunks.len().saturating_sub(1)] {
                said += text.len();
                // A token that ends within a character leaves before that.
                let told = tokens.last().map_or(0, |last| spoken.floor_char_boundary(cuts[*last as usize + 1]));
                prop_assert!(told <= said, "a token left before its text");
            }
        }
    }
}
