//! Fields of a header as bytes, little-endian, and back without trust.

/// A field that is not there, or not as it was written: what is wrong, in words.
pub(super) type Field<T> = Result<T, &'static str>;

/// Writes fields.
#[derive(Default)]
pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub(super) fn u32(&mut self, n: u32) {
        self.bytes(&n.to_le_bytes());
    }

    pub(super) fn u64(&mut self, n: u64) {
        self.bytes(&n.to_le_bytes());
    }

    /// A length takes 64 bits, so that it never has to be cut; a header's own bound keeps it small.
    pub(super) fn text(&mut self, text: Option<&str>) {
        self.bytes(&[u8::from(text.is_some())]);
        if let Some(text) = text {
            self.u64(text.len() as u64);
            self.bytes(text.as_bytes());
        }
    }

    pub(super) fn tokens(&mut self, tokens: &[i32]) {
        self.u64(tokens.len() as u64);
        for token in tokens {
            self.bytes(&token.to_le_bytes());
        }
    }
}

/// Reads fields.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn bytes(&mut self, n_bytes: u64) -> Field<&'a [u8]> {
        let n_bytes = usize::try_from(n_bytes).map_err(|_| "its header ends early")?;
        let (taken, rest) = self.0.split_at_checked(n_bytes).ok_or("its header ends early")?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Field<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk().ok_or("its header ends early")?;
        self.0 = rest;
        Ok(*taken)
    }

    pub(super) fn u32(&mut self) -> Field<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Field<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// Whether an optional field follows. One way to write each value: other bytes than 0 and 1 are not ours.
    pub(super) fn is_some(&mut self) -> Field<bool> {
        match self.array::<1>()? {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err("a field of its header is neither there nor absent"),
        }
    }

    pub(super) fn text(&mut self) -> Field<Option<String>> {
        if !self.is_some()? {
            return Ok(None);
        }
        let n_bytes = self.u64()?;
        let text = std::str::from_utf8(self.bytes(n_bytes)?).map_err(|_| "a name in its header is not text")?;
        Ok(Some(text.into()))
    }

    pub(super) fn tokens(&mut self) -> Field<Vec<i32>> {
        let n_bytes = self.u64()?.checked_mul(4).ok_or("its header ends early")?;
        let (tokens, _) = self.bytes(n_bytes)?.as_chunks();
        Ok(tokens.iter().map(|token| i32::from_le_bytes(*token)).collect())
    }

    pub(super) fn end(self) -> Field<()> {
        if self.0.is_empty() { Ok(()) } else { Err("its header holds more than it should") }
    }
}
