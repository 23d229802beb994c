//! Models that generate no text: BERT and its kin. They read a text whole and keep nothing of it.

use super::decode::LlamaBackend;
use super::embed::{self, Embedder};
use super::model::Model;
use crate::backend::Backend;
use crate::core::{
    CellCost, DecodeOutcome, EmbedOutcome, EmbedPart, EmbedStatus, Limits, MemoryKind, Op, OpResult, RequestId, Row,
    StateSize,
};
use crate::error::Error;
use crate::options::{Pooling, StartOptions};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The backend that suits a model.
///
/// # Errors
/// Those of [`LlamaBackend::new`], but for models that only compute embeddings.
pub fn backend(model: Arc<Model>, options: &StartOptions) -> Result<Box<dyn Backend>, Error> {
    match LlamaBackend::make(Arc::clone(&model), options)? {
        Some(backend) => Ok(Box::new(backend)),
        None => Ok(Box::new(EncoderBackend::new(model, options)?)),
    }
}

/// A model that only embeds.
pub struct EncoderBackend {
    embedder: Embedder,
    limits: Limits,
    abort: Arc<AtomicBool>,
}

impl EncoderBackend {
    /// Make a context, and compute one token in it: what is wrong fails here rather than under a request.
    ///
    /// # Errors
    /// [`Error::Option`] where options contradict each other or the model; [`Error::ModelLoad`] where the model gives no
    /// vectors, the memory does not suffice, or llama.cpp fails, with its reason.
    pub fn new(model: Arc<Model>, options: &StartOptions) -> Result<Self, Error> {
        let n_ctx = if options.n_ctx == 0 { model.n_ctx_train() } else { options.n_ctx };
        let Some(embed) = embed::limits(&model, options, n_ctx, false) else {
            return Err(Error::ModelLoad("this model neither generates text nor computes embeddings".into()));
        };
        let n_seq_max = options.n_parallel;
        let limits = Limits {
            n_ctx: embed.n_text,
            n_ctx_seq: embed.n_text,
            n_batch: embed.n_batch,
            n_outputs: embed.n_batch,
            n_seq_max,
            n_seq_ids: n_seq_max,
            n_vocab: model.n_vocab,
            memory: MemoryKind::Full,
            is_pool: true,
            block: 0,
            state: StateSize { fixed: 0, per_token: 0, per_window_token: 0 },
            cell_cost: CellCost::default(),
            ram_bytes: 0,
            generates: false,
            embed: Some(embed),
            n_threads: 0,
        };
        let abort = Arc::new(AtomicBool::new(false));
        let token = model.bos().unwrap_or(0);
        let mut embedder = Embedder::new(model, options, embed, Arc::clone(&abort));
        let (request, tokens) = (RequestId(0), Arc::from([token]));
        let part = EmbedPart { request, index: 0, from: 0, tokens, n_text: 1, pooling: Pooling::Mean };
        match embedder.embed(&[part]).status {
            EmbedStatus::Done(_) => Ok(Self { embedder, limits, abort }),
            EmbedStatus::Failed { reason, .. } => {
                Err(Error::ModelLoad(format!("the model could not compute a token: {reason}")))
            }
            EmbedStatus::Refused(error) => Err(Error::ModelLoad(error.to_string())),
        }
    }
}

impl Backend for EncoderBackend {
    fn limits(&self) -> Limits {
        self.limits.clone()
    }

    fn prepare(&mut self, ops: &[Op]) -> Vec<OpResult> {
        ops.iter().map(|_| OpResult::Refused("this model keeps nothing".into())).collect()
    }

    fn decode(&mut self, _: &[Row]) -> DecodeOutcome {
        DecodeOutcome::nothing("this model generates no text")
    }

    fn embed(&mut self, parts: &[EmbedPart]) -> EmbedOutcome {
        self.embedder.embed(parts)
    }

    fn abort_flag(&self) -> Option<Arc<AtomicBool>> {
        Some(Arc::clone(&self.abort))
    }

    fn loss(&mut self) -> Option<Error> {
        self.embedder.model.loss()
    }
}
