//! A grammar that waits for a trigger.

/// Looks for trigger texts in what is generated.
#[derive(Clone, Debug)]
pub(super) struct Triggers {
    texts: Vec<Vec<u8>>,
    /// Whether the grammar begins with the text, or behind it.
    included: bool,
    /// The end of what was said: as much as may be the beginning of a trigger.
    tail: Vec<u8>,
}

impl Triggers {
    pub(super) fn new(texts: Vec<String>, included: bool) -> Result<Self, String> {
        if texts.is_empty() || texts.iter().any(String::is_empty) {
            return Err("a lazy grammar needs triggers, and none of them empty".into());
        }
        Ok(Self { texts: texts.into_iter().map(String::into_bytes).collect(), included, tail: Vec::new() })
    }

    /// What the grammar is fed where these bytes complete a trigger: all from its start on, or what follows it. Of several
    /// triggers the one that starts first counts.
    pub(super) fn completed_by(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let last_bytes = |text: &Vec<u8>| text.last().is_some_and(|last| bytes.contains(last));
        if !self.texts.iter().any(last_bytes) {
            return None;
        }
        let said = [&self.tail[..], bytes].concat();
        let find = |text: &Vec<u8>| {
            let start = said.windows(text.len()).position(|window| window == &text[..])?;
            Some((start, if self.included { start } else { start + text.len() }))
        };
        let (_, from) = self.texts.iter().filter_map(find).min()?;
        Some(said[from..].to_vec())
    }

    /// These bytes were said, and completed none.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.tail.extend_from_slice(bytes);
        let keep = self.texts.iter().map(Vec::len).max().unwrap_or(0).saturating_sub(1);
        self.tail.drain(..self.tail.len().saturating_sub(keep));
    }
}
