use super::{check, part};
use crate::error::Error;
use std::path::{Path, PathBuf};

/// A GGUF file with one tensor of 64 floats, made by hand.
fn model(keys: &[(&str, u32)]) -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(3_u32.to_le_bytes());
    bytes.extend(1_u64.to_le_bytes());
    bytes.extend((keys.len() as u64).to_le_bytes());
    for (key, value) in keys {
        bytes.extend((key.len() as u64).to_le_bytes());
        bytes.extend(key.as_bytes());
        bytes.extend(4_u32.to_le_bytes());
        bytes.extend(value.to_le_bytes());
    }
    bytes.extend(1_u64.to_le_bytes());
    bytes.extend(b"t");
    bytes.extend(1_u32.to_le_bytes());
    bytes.extend(64_u64.to_le_bytes());
    bytes.extend(0_u32.to_le_bytes());
    bytes.extend(0_u64.to_le_bytes());
    bytes.resize(bytes.len().next_multiple_of(32) + 256, 0);
    bytes
}

/// A file of its own that goes with the value.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, bytes: &[u8]) -> Self {
        let path = std::env::temp_dir().join(format!("llama-batch-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        Self(path)
    }

    fn reason(&self) -> String {
        match check(&self.0) {
            Err(Error::ModelLoad(reason)) => reason,
            other => panic!("{other:?}"),
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn a_whole_file_passes_and_every_shorter_one_is_refused() {
    let bytes = model(&[("a.b", 7)]);
    assert_eq!(check(&Scratch::new("whole.gguf", &bytes).0), Ok(bytes.len() as u64));
    for length in 0..bytes.len() {
        let reason = Scratch::new("cut.gguf", &bytes[..length]).reason();
        assert!(reason.contains("cut short") || reason.contains("not a GGUF file"), "{length}: {reason}");
    }
}

#[test]
fn what_is_no_model_is_named() {
    assert!(matches!(check(Path::new("/no/such/file.gguf")), Err(Error::ModelNotFound(_))));
    let folder = check(&std::env::temp_dir()).unwrap_err();
    assert!(folder.to_string().contains("is a folder"), "{folder}");
    assert!(Scratch::new("text.gguf", b"hello, world").reason().contains("is not a GGUF file"));
    let mut old = model(&[]);
    old[4] = 1;
    assert!(Scratch::new("old.gguf", &old).reason().contains("version 1"));
    old[4..8].copy_from_slice(&3_u32.to_be_bytes());
    assert!(Scratch::new("big-endian.gguf", &old).reason().contains("big-endian"));
}

#[test]
fn lengths_that_a_file_claims_are_not_believed() {
    let mut bytes = model(&[("a.b", 7)]);
    bytes[24..32].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(Scratch::new("long-key.gguf", &bytes).reason().contains("cut short"));
    let mut bytes = model(&[]);
    bytes[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(!Scratch::new("many-tensors.gguf", &bytes).reason().is_empty());
    let mut bytes = model(&[("general.alignment", 0)]);
    assert!(Scratch::new("alignment.gguf", &bytes).reason().contains("alignment"));
    bytes = model(&[]);
    // Header, then the tensor's name, number of dimensions and length, then its type.
    let kind = 24 + 9 + 4 + 8;
    bytes[kind..kind + 4].copy_from_slice(&999_u32.to_le_bytes());
    assert!(Scratch::new("type.gguf", &bytes).reason().contains("unknown type"));
}

#[test]
fn a_part_of_a_split_model_says_which_part_to_name() {
    let second = Scratch::new("m-00002-of-00002.gguf", &model(&[("split.no", 1), ("split.count", 2)]));
    assert!(second.reason().contains("part 2 of 2"));
    let first = model(&[("split.no", 0), ("split.count", 2)]);
    assert!(Scratch::new("renamed.gguf", &first).reason().contains("-00001-of-00002.gguf"));
    let first = Scratch::new("n-00001-of-00002.gguf", &first);
    assert!(matches!(check(&first.0), Err(Error::ModelNotFound(_))), "the second part is missing");
    assert_eq!(part(Path::new("/m/n-00001-of-00012.gguf"), 11, 12).unwrap(), Path::new("/m/n-00012-of-00012.gguf"));
}

#[test]
fn a_vocabulary_that_llama_cpp_would_abort_on_is_refused() {
    let text = |text: &str| [(text.len() as u64).to_le_bytes().as_slice(), text.as_bytes()].concat();
    let vocabulary = |tokens: &[&str]| {
        let mut bytes = [b"GGUF".as_slice(), &3_u32.to_le_bytes(), &0_u64.to_le_bytes(), &1_u64.to_le_bytes()].concat();
        bytes.extend(text("tokenizer.ggml.tokens"));
        bytes.extend([9_u32.to_le_bytes(), 8_u32.to_le_bytes()].concat());
        bytes.extend((tokens.len() as u64).to_le_bytes());
        bytes.extend(tokens.iter().flat_map(|token| text(token)));
        bytes
    };
    let twins = Scratch::new("twins.gguf", &vocabulary(&["a", "b", "a"]));
    assert!(twins.reason().contains("same text"));
    assert!(check(&Scratch::new("unique.gguf", &vocabulary(&["a", "", "b", ""])).0).is_ok());
}
