//! Text: tokens, pieces, templates, and what is known of a model.

use super::model;
use llama_batch::backend::Tokenizer;
use llama_batch::error::Error;
use llama_batch::options::StartOptions;

#[test]
#[ignore = "needs LLAMA_BATCH_TEST_MODEL"]
fn text_comes_back_whole_from_its_tokens() {
    let model = model();
    for text in ["", "Hello, world", "naïve 日本語 🙂👩‍👩‍👧", "a\0b", "  spaces \n\n\t", "<|im_end|> in the text"]
    {
        let tokens = model.tokenize(text, false, false).unwrap();
        assert_eq!(model.detokenize(&tokens, true).unwrap(), text);
        let pieces: Vec<u8> = tokens.iter().flat_map(|token| model.piece(*token, true)).collect();
        assert_eq!(String::from_utf8_lossy(&pieces), text);
    }
}

#[test]
#[ignore = "needs LLAMA_BATCH_TEST_MODEL"]
fn control_tokens_are_parsed_only_when_asked_and_have_no_text() {
    let model = model();
    let parsed = model.tokenize("<|im_end|>", false, true).unwrap();
    assert_eq!(parsed.len(), 1);
    assert!(model.is_eog(parsed[0]) && model.piece(parsed[0], false).is_empty());
    assert_eq!(model.piece(parsed[0], true), b"<|im_end|>");
    assert!(model.tokenize("<|im_end|>", false, false).unwrap().len() > 1);
}

#[test]
#[ignore = "needs LLAMA_BATCH_TEST_MODEL"]
fn ids_that_are_no_tokens_are_answered() {
    let model = model();
    for token in [-1, i32::MIN, model.n_vocab() as i32, i32::MAX] {
        assert!(model.piece(token, true).is_empty() && !model.is_eog(token));
        assert!(matches!(model.detokenize(&[token], false), Err(Error::Prompt(_))));
    }
}

#[test]
#[ignore = "needs LLAMA_BATCH_TEST_MODEL"]
fn long_and_monotonous_text_does_not_overflow_a_small_stack() {
    let model = model();
    for text in ["a".repeat(1 << 20), " ".repeat(1 << 20), "é1\n".repeat(1 << 18), "漢".repeat(1 << 18)] {
        let model = &model;
        let n =
            std::thread::scope(|scope| scope.spawn(move || model.tokenize(&text, true, true).unwrap().len()).join());
        assert!(n.unwrap() > 0);
    }
}

#[test]
#[ignore = "needs LLAMA_BATCH_TEST_MODEL"]
fn a_conversation_is_rendered_by_the_models_own_template() {
    let model = model();
    assert!(model.chat_template().unwrap().contains("im_start"));
    let messages = r#"[{"role": "user", "content": "Héllo 🙂"}]"#;
    let prompt = model.apply_chat_template(messages, true).unwrap();
    assert!(prompt.contains("<|im_start|>user\nHéllo 🙂<|im_end|>"), "{prompt:?}");
    assert!(prompt.ends_with("<|im_start|>assistant\n"), "{prompt:?}");
    assert!(!model.apply_chat_template(messages, false).unwrap().ends_with("assistant\n"));
    let tokens = model.chat_tokens(messages, true).unwrap();
    assert_eq!(tokens, super::tokens(&model, &prompt));
    assert!(tokens.len() < 60, "control tokens are single tokens");
}

#[test]
#[ignore = "needs LLAMA_BATCH_TEST_MODEL"]
fn a_conversation_has_one_bos_at_most() {
    let paths = ["LLAMA_BATCH_TEST_MODEL", "LLAMA_BATCH_TEST_SLIDING"].into_iter().filter_map(super::named);
    for path in paths {
        let model = llama_batch::backend::llama::load(&StartOptions::default(), &path, &|_| true).unwrap();
        if model.chat_template().is_none() {
            continue;
        }
        let tokens = model.chat_tokens(r#"[{"role": "user", "content": "Hi"}]"#, true).unwrap();
        let n_bos = tokens.iter().take(3).filter(|token| Some(**token) == model.bos()).count();
        assert!(n_bos <= 1 || !model.adds_bos(), "{tokens:?}");
        assert!(!model.adds_bos() || Some(tokens[0]) == model.bos());
    }
}

#[test]
#[ignore = "needs LLAMA_BATCH_TEST_MODEL"]
fn messages_that_no_template_takes_are_its_error() {
    let model = model();
    for messages in ["", "no JSON", "{}", "[1]", r#"[{"content": "no role"}]"#, r#"[{"role": "user"}]"#] {
        let rendered = model.apply_chat_template(messages, true);
        assert!(matches!(rendered, Err(Error::Template(_))), "{messages:?}: {rendered:?}");
    }
}

#[test]
#[ignore = "needs LLAMA_BATCH_TEST_MODEL"]
fn what_a_model_is_can_be_asked() {
    let model = model();
    assert_eq!(model.architecture(), "llama");
    assert_eq!(model.metadata_value("general.architecture").as_deref(), Some("llama"));
    assert_eq!(model.metadata_value("no.such.key"), None);
    assert!(model.metadata().iter().any(|(key, value)| key == "tokenizer.chat_template" && value.len() > 256));
    assert!(model.n_params() > 1_000_000 && model.size_bytes() > 1_000_000);
    assert!(model.n_layer() > 0 && model.n_embd() > 0 && model.n_ctx_train() > 0);
    assert!(model.description().contains("llama"), "{}", model.description());
    assert!(model.eos().is_some());
}
