//! Turns the bytes of tokens into whole characters.

use super::ids::Token;

/// Holds back the bytes of a character that is not complete, with their tokens.
#[derive(Debug, Default)]
pub(super) struct Utf8Assembler {
    bytes: Vec<u8>,
    tokens: Vec<Token>,
}

impl Utf8Assembler {
    /// Take one token; the text that is complete with it, and the tokens that made it.
    ///
    /// Bytes that can never become a character turn into U+FFFD, one for each maximal broken part, as Unicode advises.
    pub(super) fn push(&mut self, token: Token, piece: &[u8]) -> Option<(String, Vec<Token>)> {
        self.tokens.push(token);
        self.bytes.extend_from_slice(piece);
        let text = self.take_complete();
        if text.is_empty() { None } else { Some((text, std::mem::take(&mut self.tokens))) }
    }

    /// What is left at the end: an incomplete character becomes U+FFFD.
    pub(super) fn flush(&mut self) -> Option<(String, Vec<Token>)> {
        let mut text = self.take_complete();
        if !self.bytes.is_empty() {
            self.bytes.clear();
            text.push(char::REPLACEMENT_CHARACTER);
        }
        if text.is_empty() && self.tokens.is_empty() { None } else { Some((text, std::mem::take(&mut self.tokens))) }
    }

    fn take_complete(&mut self) -> String {
        let mut text = String::new();
        let mut at = 0;
        loop {
            match std::str::from_utf8(&self.bytes[at..]) {
                Ok(rest) => {
                    text.push_str(rest);
                    at = self.bytes.len();
                    break;
                }
                Err(e) => {
                    let valid = at + e.valid_up_to();
                    text.push_str(&String::from_utf8_lossy(&self.bytes[at..valid]));
                    at = valid;
                    let Some(broken) = e.error_len() else { break };
                    text.push(char::REPLACEMENT_CHARACTER);
                    at += broken;
                }
            }
        }
        self.bytes.drain(..at);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn assemble(pieces: &[&[u8]]) -> (Vec<String>, Vec<Token>) {
        let mut assembler = Utf8Assembler::default();
        let mut texts = Vec::new();
        let mut tokens = Vec::new();
        let chunks: Vec<_> = pieces.iter().enumerate().map(|(i, piece)| assembler.push(i as Token, piece)).collect();
        for (text, made_of) in chunks.into_iter().flatten().chain(assembler.flush()) {
            texts.push(text);
            tokens.extend(made_of);
        }
        (texts, tokens)
    }

    #[test]
    fn a_character_split_over_tokens_arrives_whole_with_all_its_tokens() {
        let snowman = "☃".as_bytes();
        let (texts, tokens) = assemble(&[b"a", &snowman[..1], &snowman[1..2], &snowman[2..], b"b"]);
        assert_eq!(texts, ["a", "☃", "b"]);
        assert_eq!(tokens, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn a_broken_byte_is_replaced_and_the_rest_goes_on() {
        assert_eq!(assemble(&[b"a\xffb"]).0, ["a\u{fffd}b"]);
        assert_eq!(assemble(&[b"\xe2\x98", b"x"]).0, ["\u{fffd}x"]);
    }

    #[test]
    fn an_incomplete_end_is_replaced_not_lost() {
        assert_eq!(assemble(&[b"ab", b"\xf0\x9f"]).0, ["ab", "\u{fffd}"]);
    }

    #[test]
    fn tokens_without_text_are_delivered_at_the_end() {
        assert_eq!(assemble(&[b"", b""]), (vec![String::new()], vec![0, 1]));
    }

    proptest! {
        #[test]
        fn any_split_of_a_text_gives_the_text_back(text in "\\PC{0,40}", cuts in prop::collection::vec(0usize..200, 0..20)) {
            let bytes = text.as_bytes();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|c| c.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|w| &bytes[w[0]..w[1]]).collect();
            let (texts, tokens) = assemble(&pieces);
            prop_assert_eq!(&texts.concat(), &text);
            prop_assert_eq!(tokens.len(), pieces.len());
        }

        #[test]
        fn any_bytes_give_what_lossy_decoding_gives(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let pieces: Vec<&[u8]> = bytes.chunks(1).collect();
            prop_assert_eq!(assemble(&pieces).0.concat(), String::from_utf8_lossy(&bytes).into_owned());
        }
    }
}
