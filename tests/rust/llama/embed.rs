//! Vectors of texts, held against those that llama.cpp pools itself in a plain context.

use super::{long, model, model_file, options, tokens};
use llama_batch::backend::llama::LlamaBackend;
use llama_batch::backend::{Backend, Tokenizer};
use llama_batch::core::{EmbedPart, EmbedStatus, RequestId, Token};
use llama_batch::options::{Pooling, StartOptions};
use llama_cpp_sys_2 as sys;
use std::ffi::CString;
use std::sync::Arc;

fn whole(index: u32, text: &[Token], pooling: Pooling) -> EmbedPart {
    let n_text = text.len() as u32;
    EmbedPart { request: RequestId(1), index, from: 0, tokens: text.into(), n_text, pooling }
}

fn done(backend: &mut LlamaBackend, parts: &[EmbedPart]) -> Vec<Vec<f32>> {
    match backend.embed(parts).status {
        EmbedStatus::Done(vectors) => vectors,
        other => panic!("{other:?}"),
    }
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

fn largest(vector: &[f32]) -> f32 {
    vector.iter().map(|value| value.abs()).fold(0.0, f32::max)
}

/// What llama.cpp gives for a text in a context that pools by itself.
fn by_llama_cpp(text: &[Token], pooling: sys::llama_pooling_type) -> Vec<f32> {
    let path = CString::new(model_file().to_str().unwrap()).unwrap();
    let mut text = text.to_vec();
    // SAFETY: the model and the context are used by this thread alone and freed at the end; the batch points to `text`,
    // whose tokens are of the vocabulary; the vector has the model's width and is copied before the context goes.
    unsafe {
        // Without weights laid out for AMX, which some compilers get wrong.
        let params = sys::llama_model_params { use_extra_bufts: false, ..sys::llama_model_default_params() };
        let model = sys::llama_model_load_from_file(path.as_ptr(), params);
        let mut params = sys::llama_context_default_params();
        params.n_ctx = 1024;
        params.n_batch = 1024;
        params.n_ubatch = 1024;
        params.embeddings = true;
        params.pooling_type = pooling;
        let context = sys::llama_init_from_model(model, params);
        assert!(!context.is_null());
        let batch = sys::llama_batch_get_one(text.as_mut_ptr(), text.len() as i32);
        assert_eq!(sys::llama_decode(context, batch), 0);
        let n_embd = sys::llama_model_n_embd_out(model) as usize;
        let vector = std::slice::from_raw_parts(sys::llama_get_embeddings_seq(context, 0), n_embd).to_vec();
        sys::llama_free(context);
        sys::llama_model_free(model);
        vector
    }
}

#[test]
#[ignore = "needs LLAMA_BATCH_TEST_MODEL"]
fn pooled_here_they_are_what_llama_cpp_pools() {
    let model = model();
    let mut backend = LlamaBackend::new(Arc::clone(&model), &options()).unwrap();
    let texts = [tokens(&model, "The cat sat on the mat."), long(&model, 400)];
    let kinds = [
        (Pooling::Mean, sys::LLAMA_POOLING_TYPE_MEAN),
        (Pooling::Cls, sys::LLAMA_POOLING_TYPE_CLS),
        (Pooling::Last, sys::LLAMA_POOLING_TYPE_LAST),
    ];
    for (ours, theirs) in kinds {
        // Each alone, as llama.cpp has it: the shape of a batch moves the vectors of a quantised model.
        for text in &texts {
            let vector = done(&mut backend, &[whole(0, text, ours)]).remove(0);
            let expected = by_llama_cpp(text, theirs);
            let (likeness, size) = (cosine(&vector, &expected), largest(&vector) / largest(&expected));
            assert!(likeness > 0.99 && (size - 1.0).abs() < 0.1, "{ours:?}: {likeness}, {size}");
        }
    }
}

#[test]
#[ignore = "needs LLAMA_BATCH_TEST_MODEL"]
fn a_text_in_parts_is_the_text_at_once_and_nothing_else_is_taken_for_a_part() {
    let model = model();
    let small = StartOptions { n_ubatch: 100, ..options() };
    let mut backend = LlamaBackend::new(Arc::clone(&model), &small).unwrap();
    let limits = backend.limits().embed.unwrap();
    assert_eq!((limits.n_batch, limits.n_text, limits.in_parts), (100, 2048, true));
    let text = long(&model, 700);
    let part = |from: usize, to: usize| EmbedPart {
        from: from as u32,
        tokens: text[from..to].into(),
        ..whole(0, &text, Pooling::Mean)
    };
    let mut vectors = Vec::new();
    for from in (0..700).step_by(100) {
        vectors.extend(done(&mut backend, &[part(from, from + 100)]));
    }
    let likeness = cosine(&vectors[0], &by_llama_cpp(&text, sys::LLAMA_POOLING_TYPE_MEAN));
    assert!(vectors.len() == 1 && likeness > 0.999, "{likeness}");
    // Another text, a part that is not the next one, more rows than fit, a token that there is not.
    assert!(done(&mut backend, &[part(0, 100)]).is_empty());
    let n_vocab = model.n_vocab() as Token;
    for parts in [
        vec![],
        vec![part(200, 300)],
        vec![EmbedPart { index: 1, ..part(100, 200) }],
        vec![part(0, 101)],
        vec![whole(0, &[n_vocab], Pooling::Mean)],
        vec![whole(0, &[-1], Pooling::Mean)],
    ] {
        assert!(matches!(backend.embed(&parts).status, EmbedStatus::Failed { code: -1, .. }), "{parts:?}");
    }
    assert!(matches!(backend.embed(&[part(100, 200)]).status, EmbedStatus::Failed { .. }), "what was begun is gone");
    assert_eq!(done(&mut backend, &[whole(0, &text[..50], Pooling::Mean)]).len(), 1);
}
