//! Loading: files that are no model, options that do not fit, and what a load can be told.

use super::{model, model_file, options};
use llama_batch::backend::llama::{LlamaBackend, available_memory, build, drain_logs, load};
use llama_batch::error::Error;
use llama_batch::options::{CacheType, FlashAttention, StartOptions};
use std::cell::RefCell;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file that goes with the value.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, bytes: &[u8]) -> Self {
        let path = std::env::temp_dir().join(format!("llama-batch-{}-{name}", std::process::id()));
        std::fs::File::create(&path).unwrap().write_all(bytes).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn reason(path: &Path, options: &StartOptions) -> String {
    match load(options, path, &|_| true) {
        Err(Error::ModelLoad(reason)) => reason,
        other => panic!("{other:?}"),
    }
}

/// A GGUF file that names an architecture and holds nothing.
fn of_architecture(name: &str) -> Vec<u8> {
    let text = |text: &str| [(text.len() as u64).to_le_bytes().as_slice(), text.as_bytes()].concat();
    [
        b"GGUF".as_slice(),
        &3_u32.to_le_bytes(),
        &0_u64.to_le_bytes(),
        &1_u64.to_le_bytes(),
        &text("general.architecture"),
        &8_u32.to_le_bytes(),
        &text(name),
    ]
    .concat()
}

#[test]
fn a_file_that_is_not_there_or_no_model_is_named() {
    let defaults = StartOptions::default();
    assert!(matches!(load(&defaults, Path::new("/no/model.gguf"), &|_| true), Err(Error::ModelNotFound(_))));
    assert!(reason(&std::env::temp_dir(), &defaults).contains("folder"));
    assert!(reason(&Scratch::new("text", b"no model").0, &defaults).contains("not a GGUF file"));
    assert!(matches!(
        load(&defaults, Path::new("nul\0.gguf"), &|_| true),
        Err(Error::ModelLoad(_) | Error::ModelNotFound(_))
    ));
}

#[test]
fn an_unknown_architecture_comes_with_the_words_of_llama_cpp() {
    let file = Scratch::new("architecture", &of_architecture("palantir"));
    let reason = reason(&file.0, &StartOptions::default());
    assert!(reason.contains("unknown model architecture: 'palantir'"), "{reason}");
    let lines = drain_logs().lines;
    assert!(lines.iter().any(|line| line.text.contains("palantir")), "the log has it too");
}

#[test]
fn a_model_without_what_it_needs_is_refused_by_llama_cpp_with_its_reason() {
    let file = Scratch::new("empty", &of_architecture("llama"));
    let reason = reason(&file.0, &StartOptions::default());
    assert!(reason.contains("key not found in model"), "{reason}");
}

#[test]
fn a_device_that_is_not_there_is_answered_with_those_that_are() {
    let wrong = StartOptions { devices: Some(vec!["Cuda77".into()]), ..StartOptions::default() };
    let file = Scratch::new("device", &of_architecture("llama"));
    let Err(Error::Option(message)) = load(&wrong, &file.0, &|_| true) else {
        panic!("a wrong device is an option error")
    };
    assert!(message.contains("Cuda77") && message.contains("CPU"), "{message}");
}

#[test]
fn the_build_names_llama_cpp() {
    assert!(build().starts_with("llama.cpp "), "{}", build());
}

#[test]
#[ignore = "needs LLAMA_BATCH_TEST_MODEL"]
fn a_truncated_model_is_refused_at_any_length() {
    let mut head = vec![0; 4 << 20];
    std::fs::File::open(model_file()).unwrap().read_exact(&mut head).unwrap();
    for length in [0, 3, 10, 1000, 1 << 20, 4 << 20] {
        let file = Scratch::new(&format!("cut-{length}"), &head[..length]);
        let reason = reason(&file.0, &StartOptions::default());
        assert!(reason.contains("cut short") || reason.contains("not a GGUF"), "{length}: {reason}");
    }
}

#[test]
#[ignore = "needs LLAMA_BATCH_TEST_MODEL"]
fn progress_grows_to_one_and_a_no_stops_the_load() {
    let seen = RefCell::new(Vec::new());
    let watch = |done: f32| {
        seen.borrow_mut().push(done);
        true
    };
    load(&StartOptions::default(), &model_file(), &watch).unwrap();
    assert!(seen.borrow().is_sorted() && seen.borrow().last() == Some(&1.0));
    let stopped = load(&StartOptions::default(), &model_file(), &|_| false);
    assert!(matches!(&stopped, Err(Error::ModelLoad(reason)) if reason.contains("stopped")), "{stopped:?}");
    let panicked = load(&StartOptions::default(), &model_file(), &|_| panic!("in a callback"));
    assert!(matches!(panicked, Err(Error::ModelLoad(_))));
}

#[test]
#[ignore = "needs LLAMA_BATCH_TEST_MODEL"]
fn every_way_of_reading_the_file_gives_the_same_model() {
    for (use_mmap, use_mlock, use_direct_io) in [(false, false, false), (true, false, true), (false, false, true)] {
        let with = StartOptions { use_mmap, use_mlock, use_direct_io, check_tensors: true, ..StartOptions::default() };
        assert_eq!(load(&with, &model_file(), &|_| true).unwrap().size_bytes(), model().size_bytes());
    }
}

#[test]
#[ignore = "needs LLAMA_BATCH_TEST_MODEL"]
fn a_context_beyond_the_memory_is_refused_before_it_is_allocated() {
    let Some(_) = available_memory() else { return };
    let huge = StartOptions { n_ctx: 16_777_216, ..options() };
    let Err(Error::ModelLoad(reason)) = LlamaBackend::new(model(), &huge) else { panic!("it cannot fit") };
    assert!(reason.matches("GiB").count() >= 2 && reason.contains("are available"), "{reason}");
}

#[test]
#[ignore = "needs LLAMA_BATCH_TEST_MODEL"]
fn cache_types_and_attention_are_checked_against_the_model() {
    let new = |type_k, type_v, flash_attn| {
        LlamaBackend::new(model(), &StartOptions { type_k, type_v, flash_attn, n_ctx: 256, ..options() }).map(|_| ())
    };
    assert!(matches!(new(CacheType::F16, CacheType::Q8_0, FlashAttention::Off), Err(Error::Option(_))));
    assert_eq!(new(CacheType::Q8_0, CacheType::Q8_0, FlashAttention::Auto), Ok(()));
    assert_eq!(new(CacheType::Q4_0, CacheType::F16, FlashAttention::Off), Ok(()));
    assert_eq!(new(CacheType::F32, CacheType::Bf16, FlashAttention::On), Ok(()));
}

#[test]
#[ignore = "needs LLAMA_BATCH_TEST_MODEL"]
fn a_model_outlives_its_contexts_and_its_owners() {
    let model = load(&StartOptions::default(), &model_file(), &|_| true).unwrap();
    let backend = LlamaBackend::new(Arc::clone(&model), &options()).unwrap();
    drop(model);
    drop(backend);
}
