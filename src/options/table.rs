//! The three tables.

use super::{
    AttentionType, BatchStrategy, CacheType, Calibrate, Endpoints, FlashAttention, Isolate, JsonSchema, Key, LogitBias,
    Normalize, OnBackendLoss, OptionSpec, OptionType, Options, PathName, Pooling, QueueFullPolicy, Range, RopeScaling,
    SamplerCallable, SamplerOrder, SplitMode, StrategyOption, Texts, Value,
};
use serde::{Deserialize, Serialize};

const INF: f64 = f64::INFINITY;

/// Declares a struct of options together with its table, defaults and reader.
macro_rules! options {
    ($(#[$sdoc:meta])* $name:ident {
        $( $(#[doc = $doc:literal])+ $field:ident : $ty:ty = $default:expr
            $(, range $min:literal .. $max:expr)? $(, unit $unit:literal)? $(, alias [$($alias:literal),*])? ; )*
    }) => {
        $(#[$sdoc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        pub struct $name { $( $(#[doc = $doc])+ pub $field: $ty, )* }

        impl Default for $name {
            fn default() -> Self { Self { $( $field: $default, )* } }
        }

        impl Options for $name {
            fn table() -> Vec<OptionSpec> {
                let defaults = Self::default();
                vec![ $( OptionSpec {
                    name: stringify!($field),
                    aliases: options!(@aliases $($($alias),*)?),
                    python_type: <$ty as OptionType>::PYTHON,
                    optional: <$ty as OptionType>::OPTIONAL,
                    default: defaults.$field.to_python(),
                    range: options!(@range $($min, $max)?),
                    choices: <$ty as OptionType>::choices(),
                    unit: options!(@unit $($unit)?),
                    doc: concat!($($doc),+).trim_ascii(),
                }, )* ]
            }

            fn set(&mut self, name: &str, value: &Value) -> Result<(), String> {
                match name {
                    $( stringify!($field) => {
                        self.$field = <$ty as OptionType>::read(value, options!(@range $($min, $max)?))?;
                        Ok(())
                    } )*
                    _ => Err("is unknown".into()),
                }
            }

            fn clear(&mut self, name: &str) {
                match name {
                    $( stringify!($field) => if let Some(none) = <$ty as OptionType>::none() { self.$field = none; }, )*
                    _ => {}
                }
            }
        }
    };
    (@aliases) => { &[] };
    (@aliases $($alias:literal),*) => { &[$($alias),*] };
    (@range) => { None };
    (@range $min:literal, $max:expr) => { Some(Range { min: $min, max: $max }) };
    (@unit) => { "" };
    (@unit $unit:literal) => { $unit };
}

options! {
    /// Options of `Engine(...)`.
    StartOptions {
        /// Layers computed on the accelerator; -1 means all, and without one nothing changes.
        n_gpu_layers: i32 = 99, range -1.0..65536.0, unit "layers";
        /// Tokens that the engine holds in total, for running and cached sequences. One request may use all of it, or `n_ctx / n_parallel` with `kv_unified=False`. 0 means the context that the model was trained on.
        n_ctx: u32 = 8192, range 0.0..16_777_216.0, unit "tokens";
        /// Requests that run at the same time.
        n_parallel: u32 = 4, range 1.0..253.0, unit "requests", alias ["max_num_seqs"];
        /// Largest number of tokens in one forward pass; None means `min(n_ctx, 2048)`. Never more than `n_ubatch`.
        n_batch: Option<u32> = None, range 1.0..65536.0, unit "tokens", alias ["max_num_batched_tokens"];
        /// Largest number of prompt tokens of one request in one forward pass.
        chunk_size: u32 = 512, range 1.0..65536.0, unit "tokens";
        /// Requests that may wait for a slot; one more is refused. 0 removes the bound: a burst is then held by memory alone.
        max_queue: u32 = 64, unit "requests";
        /// The same for the requests of one scope (`fair_scope`): who floods the engine leaves the others their places. 0 removes the bound.
        max_queue_per_scope: u32 = 0, unit "requests";
        /// Time in which a request that waits gains a level of `priority`, up to that of the most urgent who waits; 0 is never.
        priority_aging: f64 = 60.0, range 0.0..1e9, unit "seconds";
        /// What a full queue does to a caller: "raise" raises `QueueFullError` at once, "wait" waits for room.
        queue_full: QueueFullPolicy = QueueFullPolicy::Raise;
        /// Keep the tokens of finished requests and reuse them where a new prompt begins the same. Where two tokens are all but equally likely, what is reused can tip the balance, as the batch can. The default for requests that do not say.
        cache_prompt: bool = true;
        /// One KV buffer shared by all requests (True), or an equal part for each (False). None means True.
        kv_unified: Option<bool> = None;
        /// Cached sequences kept beside the running ones; None chooses by the kind of memory that the model has.
        n_cache_seqs: Option<u32> = None, range 0.0..255.0, unit "sequences";
        /// Memory for the KV state of sequences that lost their cells, taken as it is used; 0 is off. None means an eighth of the memory that is free at load, 8 GiB at most.
        prompt_cache_ram_mb: Option<u32> = None, range 0.0..16_777_216.0, unit "MiB";
        /// Folder that keeps KV state beyond the end of the engine, below the RAM tier and by way of it; made where it is missing. What is kept is of use to the same model with the same `type_k`, `type_v`, `flash_attn`, `swa_full`, `kv_unified` and RoPE options, and is written a little at a time, the rest when the engine closes. It holds what was said, of all scopes, in the clear, in files for their owner alone. None is off.
        prompt_cache_dir: Option<PathName> = None;
        /// What the files in `prompt_cache_dir` may take for each engine that is open; the least recently used go first, and those that other models left where all together take more. A token takes as much as in the KV cache: a small model's 20 KiB, one of 8 billion parameters' 128 KiB.
        prompt_cache_dir_mb: u32 = 4096, range 1.0..16_777_216.0, unit "MiB";
        /// Longest gap between two tokens of a stream that prompts of others may cause: while anybody generates, a forward pass reads so much of prompts as keeps its forecast length within it. It may always take 1.5 times as long as one that only generates, prompts always get some tokens, and a strategy of one's own is done as it says. 0 removes the bound.
        max_itl_ms: u32 = 200, range 0.0..3_600_000.0, unit "ms";
        /// Largest number of tokens that a forward pass computes on trial for a request: what followed its last tokens where they stood before in its own prompt and answer, as far as that is likely to save time. Each is kept only where the request's own draw gives the same, so that no answer changes by more than the batch can change it. The default for requests that do not say; 0 is off.
        n_draft: u32 = 8, range 0.0..64.0, unit "tokens";
        /// Run llama.cpp in a process of its own, so that its end is an error of the requests that were running and not the end of this interpreter: "on", "off", or "auto", which leaves it off where all devices are this machine's. Samplers that are Python callables need "off".
        isolate: Isolate = Isolate::Auto;
        /// What requests that wait do while a backend that was lost is made again: "wait", or "fail" as those do that ran.
        on_backend_loss: OnBackendLoss = OnBackendLoss::Wait;
        /// Times that a lost backend is made again until the engine fails for good; a backend that lived for ten minutes starts the count anew.
        max_backend_restarts: u32 = 10, range 0.0..1_000_000.0, unit "restarts";
        /// Time for one forward pass, or one step of moving state, of an isolated backend, and between two signs of life while it loads; after it the process is killed.
        backend_timeout: f64 = 300.0, range 0.01..1e9, unit "seconds";
        /// How a forward pass is shared out between requests: "decode_maximal", "prefill_priority", "balanced", or a callable.
        batch_strategy: StrategyOption = StrategyOption::Builtin(BatchStrategy::DecodeMaximal);

        /// Default temperature of requests; 0 always takes the likeliest token.
        temp: f32 = 0.8, range 0.0..1000.0, alias ["temperature"];
        /// Default number of likeliest tokens that are drawn from; 0 means all.
        top_k: u32 = 40, unit "tokens";
        /// Default share of probability that is drawn from; 1 means all of it.
        top_p: f32 = 0.95, range 0.0..1.0;
        /// Default smallest probability that is drawn, as a share of the likeliest token's.
        min_p: f32 = 0.05, range 0.0..1.0;
        /// Default share of probability that is drawn from, of the tokens whose information is closest to the entropy (locally typical sampling); 1 means all of it.
        typical_p: f32 = 1.0, range 0.0..1.0, alias ["typ_p"];
        /// Default number of standard deviations below the largest logit that are drawn from; 0 means all.
        top_n_sigma: f32 = 0.0, range 0.0..1000.0;
        /// Default probability with which all likely tokens but the least likely of them are left out (XTC); 0 is off.
        xtc_probability: f32 = 0.0, range 0.0..1.0;
        /// Default probability from which on a token is likely for XTC; above 0.5 is off.
        xtc_threshold: f32 = 0.1, range 0.0..1.0;
        /// Default distance by which the temperature goes up and down with the entropy of each row; 0 keeps it fixed.
        dynatemp_range: f32 = 0.0, range 0.0..1000.0;
        /// Default exponent with which the temperature follows the entropy.
        dynatemp_exponent: f32 = 1.0, range 0.0..1000.0;
        /// Default repetition penalty: logits of recent tokens are divided by it (multiplied where negative); 1 is off.
        penalty_repeat: f32 = 1.0, range 0.000_001..1000.0, alias ["repeat_penalty", "repetition_penalty"];
        /// Default frequency penalty: taken off a logit for each recent occurrence; 0 is off.
        penalty_freq: f32 = 0.0, range -1000.0..1000.0, alias ["frequency_penalty"];
        /// Default presence penalty: taken off the logit of any recent token; 0 is off.
        penalty_present: f32 = 0.0, range -1000.0..1000.0, alias ["presence_penalty"];
        /// Default number of last tokens, prompt included, that penalties look at; -1 means all, 0 none.
        penalty_last_n: i32 = 64, range -1.0..2_147_483_647.0, unit "tokens", alias ["repeat_last_n"];
        /// Default DRY penalty: taken off the logits of tokens that would prolong a repetition, times a power of `dry_base`; 0 is off.
        dry_multiplier: f32 = 0.0, range 0.0..1000.0;
        /// Default base of the DRY penalty: its power grows with each token of the repetition. Below 1 is off.
        dry_base: f32 = 1.75, range 0.0..1000.0;
        /// Default length up to which a repetition costs nothing.
        dry_allowed_length: u32 = 2, range 0.0..2_147_483_647.0, unit "tokens";
        /// Default number of last tokens, prompt included, in which DRY looks for repetitions; -1 means all, 0 none.
        dry_penalty_last_n: i32 = 64, range -1.0..2_147_483_647.0, unit "tokens";
        /// Default version of Mirostat, 1 or 2, which then stands for all of the chain but the temperature; 0 is off.
        mirostat: u32 = 0, range 0.0..2.0;
        /// Default surprise that Mirostat aims at.
        mirostat_tau: f32 = 5.0, range 0.0..1000.0, unit "bits";
        /// Default share of its error that Mirostat corrects with each token.
        mirostat_eta: f32 = 0.1, range 0.0..1000.0;
        /// Default seed of requests; None draws one for each.
        seed: Option<u64> = None;

        /// Measure with this model on this machine what is faster where the options leave it open, flash attention on or off, and one KV buffer or one for each request, if each can hold all of `n_ctx` within a quarter of the free memory: "auto" when it is first loaded so, and what was found is kept; "force" at each load; "off" leaves it to llama.cpp. An isolated backend is not measured.
        calibrate: Calibrate = Calibrate::Off;
        /// How long measuring may take, about; a setting that was begun is finished.
        calibrate_s: f64 = 10.0, range 0.0..3600.0, unit "s";
        /// Threads that compute; 0 means one for each physical core, and fewer while other work wants the cores.
        n_threads: u32 = 0, range 0.0..512.0, unit "threads";
        /// Threads that compute passes of several tokens; None means as `n_threads`.
        n_threads_batch: Option<u32> = None, range 0.0..512.0, unit "threads";
        /// Tokens that llama.cpp computes at once.
        n_ubatch: u32 = 512, range 1.0..65536.0, unit "tokens";
        /// Type of the K cells of the KV cache.
        type_k: CacheType = CacheType::F16;
        /// Type of the V cells of the KV cache; quantised types need flash attention.
        type_v: CacheType = CacheType::F16;
        /// Flash attention: "auto" leaves it to `calibrate`, or else to llama.cpp.
        flash_attn: FlashAttention = FlashAttention::Auto;
        /// Keep the KV cache on the accelerator.
        offload_kqv: bool = true;
        /// Offload operations on host tensors to the accelerator.
        op_offload: bool = true;
        /// RoPE scaling; None takes the model's.
        rope_scaling_type: Option<RopeScaling> = None;
        /// RoPE base frequency; 0 takes the model's.
        rope_freq_base: f32 = 0.0, range 0.0..INF;
        /// RoPE frequency scale; 0 takes the model's.
        rope_freq_scale: f32 = 0.0, range 0.0..INF;
        /// YaRN extrapolation mix; -1 takes the model's.
        yarn_ext_factor: f32 = -1.0, range -1.0..INF;
        /// YaRN magnitude scale; -1 takes the model's.
        yarn_attn_factor: f32 = -1.0, range -1.0..INF;
        /// YaRN low correction dimension; -1 takes the model's.
        yarn_beta_fast: f32 = -1.0, range -1.0..INF;
        /// YaRN high correction dimension; -1 takes the model's.
        yarn_beta_slow: f32 = -1.0, range -1.0..INF;
        /// YaRN original context; 0 takes the model's.
        yarn_orig_ctx: u32 = 0, unit "tokens";
        /// Attention mask; None takes the model's.
        attention_type: Option<AttentionType> = None;
        /// Do not let llama.cpp time itself.
        no_perf: bool = true;
        /// Keep the whole context of sliding-window layers, so that any prefix of a cached sequence can be reused; takes memory.
        swa_full: bool = false;

        /// Device that holds the model where `split_mode="none"`.
        main_gpu: u32 = 0, range 0.0..255.0;
        /// How the model is split over several devices.
        split_mode: SplitMode = SplitMode::Layer;
        /// Share of the model on each device, in proportion; None lets llama.cpp decide.
        tensor_split: Option<Vec<f32>> = None, range 0.0..INF;
        /// Map the model's file into memory instead of reading it.
        use_mmap: bool = true;
        /// Lock the model into memory.
        use_mlock: bool = false;
        /// Read the model past the page cache. Wins over `use_mmap` and `use_mlock`.
        use_direct_io: bool = false;
        /// Check the model's tensors while loading.
        check_tensors: bool = false;
        /// Names of the devices that may hold the model, in the order that `tensor_split` and `main_gpu` count them in. None means those of `rpc_servers` first, as "RPC0", "RPC1" and so on (or "host:port/0" for the first of one server), and then those that llama.cpp finds here.
        devices: Option<Vec<String>> = None;
        /// Servers, each as "host:port", whose devices may hold the model, too: those of workers (llama-batch rpc-worker) on other machines. Each is proved before the model is loaded. What is sent to them is neither encrypted nor authenticated.
        rpc_servers: Option<Endpoints> = None;
        /// Time for each of `rpc_servers` to prove itself before the model is loaded.
        rpc_timeout: f64 = 10.0, range 0.001..3600.0, unit "seconds";
    }
}

options! {
    /// Options of one request; the engine's own values stand in for those that it shares.
    RequestOptions {
        /// Tokens generated at most. 0 only reads the prompt.
        max_tokens: u32 = 256, range 0.0..2_147_483_647.0, unit "tokens", alias ["n_predict"];
        /// Largest number of tokens that a forward pass computes on trial for this request; 0 is none, None means as the engine.
        n_draft: Option<u32> = None, range 0.0..64.0, unit "tokens";
        /// Time for the whole request, from submission; None means no limit.
        timeout: Option<f64> = None, range 0.0..1e9, unit "seconds";
        /// Time for waiting in the queue; None means no limit.
        queue_timeout: Option<f64> = None, range 0.0..1e9, unit "seconds";
        /// Time in which a request that holds a slot makes no progress; None means no limit.
        stall_timeout: Option<f64> = Some(30.0), range 0.0..1e9, unit "seconds";
        /// Who goes first: the lower, the sooner it gets a slot, and the later it gives up its cells where those run short. Waiting raises it, see `priority_aging`. Between equal ones it is the turn of the scope that was served least (`fair_scope`), and in a scope of who came first.
        priority: i32 = 0, range -1_000_000.0..1_000_000.0;
        /// Whom this request is served with (as `session`): between scopes tokens are shared out fairly, so that who sends much keeps nobody waiting who sends little. None takes `cache_scope`.
        fair_scope: Option<Key> = None;
        /// Reuse the tokens of earlier requests where the prompt begins the same, and keep this one's; None means as the engine.
        cache_prompt: Option<bool> = None;
        /// Names a conversation (text, an integer, bytes, a UUID, or a tuple of them): its next request prefers the sequence that its last one left. Routes only; send the history each time.
        session: Option<Key> = None;
        /// Trust boundary (as `session`): only tokens of requests with an equal scope are reused. None is a pool of its own.
        cache_scope: Option<Key> = None;
        /// Text, or several texts, that end the answer where they appear in it, also over token borders.
        stop: Option<Texts> = None;
        /// Keep in the answer what `stop` or `stop_token_ids` ended it with.
        include_stop: bool = false, alias ["include_stop_str_in_output"];
        /// Tokens that end the answer.
        stop_token_ids: Option<Vec<u32>> = None, range 0.0..2_147_483_647.0;
        /// Tokens until which nothing but `max_tokens` and the context ends the answer.
        min_tokens: u32 = 0, range 0.0..2_147_483_647.0, unit "tokens";
        /// Go on where the model would end: tokens that end a generation are not drawn.
        ignore_eos: bool = false;
        /// Temperature; 0 always takes the likeliest token. None means as the engine, as for all that follow.
        temp: Option<f32> = None, range 0.0..1000.0, alias ["temperature"];
        /// Number of likeliest tokens that are drawn from; 0 means all.
        top_k: Option<u32> = None, unit "tokens";
        /// Share of probability that is drawn from; 1 means all of it.
        top_p: Option<f32> = None, range 0.0..1.0;
        /// Smallest probability that is drawn, as a share of the likeliest token's.
        min_p: Option<f32> = None, range 0.0..1.0;
        /// Share of probability that is drawn from, of the tokens whose information is closest to the entropy (locally typical sampling); 1 means all of it.
        typical_p: Option<f32> = None, range 0.0..1.0, alias ["typ_p"];
        /// Number of standard deviations below the largest logit that are drawn from; 0 means all.
        top_n_sigma: Option<f32> = None, range 0.0..1000.0;
        /// Probability with which all likely tokens but the least likely of them are left out (XTC); 0 is off.
        xtc_probability: Option<f32> = None, range 0.0..1.0;
        /// Probability from which on a token is likely for XTC; above 0.5 is off.
        xtc_threshold: Option<f32> = None, range 0.0..1.0;
        /// Distance by which the temperature goes up and down with the entropy of each row; 0 keeps it fixed.
        dynatemp_range: Option<f32> = None, range 0.0..1000.0;
        /// Exponent with which the temperature follows the entropy.
        dynatemp_exponent: Option<f32> = None, range 0.0..1000.0;
        /// Repetition penalty: logits of recent tokens are divided by it (multiplied where negative); 1 is off.
        penalty_repeat: Option<f32> = None, range 0.000_001..1000.0, alias ["repeat_penalty", "repetition_penalty"];
        /// Frequency penalty: taken off a logit for each recent occurrence; 0 is off.
        penalty_freq: Option<f32> = None, range -1000.0..1000.0, alias ["frequency_penalty"];
        /// Presence penalty: taken off the logit of any recent token; 0 is off.
        penalty_present: Option<f32> = None, range -1000.0..1000.0, alias ["presence_penalty"];
        /// Number of last tokens, prompt included, that penalties look at; -1 means all, 0 none.
        penalty_last_n: Option<i32> = None, range -1.0..2_147_483_647.0, unit "tokens", alias ["repeat_last_n"];
        /// DRY penalty: taken off the logits of tokens that would prolong a repetition, times a power of `dry_base`; 0 is off.
        dry_multiplier: Option<f32> = None, range 0.0..1000.0;
        /// Base of the DRY penalty: its power grows with each token of the repetition. Below 1 is off.
        dry_base: Option<f32> = None, range 0.0..1000.0;
        /// Length up to which a repetition costs nothing.
        dry_allowed_length: Option<u32> = None, range 0.0..2_147_483_647.0, unit "tokens";
        /// Number of last tokens, prompt included, in which DRY looks for repetitions; -1 means all, 0 none.
        dry_penalty_last_n: Option<i32> = None, range -1.0..2_147_483_647.0, unit "tokens";
        /// Version of Mirostat, 1 or 2, which then stands for all of the chain but the temperature; 0 is off.
        mirostat: Option<u32> = None, range 0.0..2.0;
        /// Surprise that Mirostat aims at.
        mirostat_tau: Option<f32> = None, range 0.0..1000.0, unit "bits";
        /// Share of its error that Mirostat corrects with each token.
        mirostat_eta: Option<f32> = None, range 0.0..1000.0;
        /// Texts at which DRY lets repetitions end, also where a token holds more than them; None means a line break, a colon, a double quote and an asterisk.
        dry_sequence_breakers: Option<Texts> = None;
        /// Links of the sampling chain, in order; those that are not named do nothing. None means "penalties", "dry", "top_n_sigma", "top_k", "typical_p", "top_p", "min_p", "xtc", "temperature", as llama.cpp has them.
        samplers: Option<SamplerOrder> = None;
        /// Added to the logits of tokens, each named by its id, or by a text that it is a part of; -inf or False bans.
        logit_bias: Option<LogitBias> = None;
        /// Tokens that are not drawn.
        banned_token_ids: Option<Vec<u32>> = None, range 0.0..2_147_483_647.0;
        /// Tokens that alone are drawn; what ends the answer must be among them, or `max_tokens` does.
        allowed_token_ids: Option<Vec<u32>> = None, range 0.0..2_147_483_647.0;
        /// Texts that the answer does not have, where the model spells them as the tokenizer does, with or without a space before.
        bad_words: Option<Texts> = None;
        /// Tell how likely each generated token was, and so many of the likeliest in its place; 0 tells the token's own only, None nothing.
        logprobs: Option<u32> = None, range 0.0..1000.0, unit "tokens", alias ["n_probs", "top_logprobs"];
        /// The same of each token of the prompt but the first. The whole prompt is then computed, whatever the cache has of it.
        prompt_logprobs: Option<u32> = None, range 0.0..1000.0, unit "tokens";
        /// Tell of `logprobs` what the sampling chain left, penalties and temperature included, instead of what the model gave.
        post_sampling_logprobs: bool = false, alias ["post_sampling_probs"];
        /// Answers to the prompt, which is computed once. Each has a seed of its own, the first one's is the request's.
        n: u32 = 1, range 1.0..128.0, unit "answers";
        /// Grammar that the answer keeps to, in llama.cpp's language (GBNF). Of `grammar`, `json_schema`, `regex` and `choice` a request has one.
        grammar: Option<String> = None;
        /// Rule of `grammar` that the whole answer matches.
        grammar_root: String = "root".into();
        /// JSON schema that the answer keeps to, which `Completion.parsed` then holds: a dict, JSON text, or a class of pydantic.
        json_schema: Option<JsonSchema> = None;
        /// Regular expression, in Rust's syntax, that the whole answer matches.
        regex: Option<String> = None;
        /// Texts of which the answer is one.
        choice: Option<Texts> = None;
        /// Texts from which on the grammar holds, in whichever of them comes first; what comes before is free. None means from the beginning.
        grammar_triggers: Option<Texts> = None;
        /// Callable that draws in the place of the chain: it gets the logits of one row as an array of numpy, with biases, bans, penalties and the grammar in them, and returns a token, or None to have the chain draw from what it left in the array. It runs on a thread of its own while others go on, and must not keep the array. `stall_timeout` is its limit.
        sampler: Option<SamplerCallable> = None;
        /// Seed of the request's draws; None draws one, which the completion reports.
        seed: Option<u64> = None;
    }
}

options! {
    /// Options of one request for embeddings.
    EmbedOptions {
        /// How the vectors of a text's tokens become one: "mean", "cls" (the first token's), "last", or "none" (they stay apart). "auto" takes the model's own way, the mean where it has none.
        pooling: Pooling = Pooling::Auto, alias ["pooling_type"];
        /// What a vector is divided by: "euclidean" (its length, 2), "taxicab" (the sum of its values without signs, 1), "max_abs" (its largest value, of which 32760 is made, 0), "none" (nothing, -1), or the number of another p-norm. True means "euclidean", False "none".
        normalize: Normalize = Normalize::EUCLIDEAN, range -1.0..1_000_000.0, alias ["embd_normalize"];
        /// Who goes first among requests for embeddings: the lower, the sooner. Waiting raises it, see `priority_aging`. Equal ones take turns, text by text, and scopes share tokens fairly (`fair_scope`).
        priority: i32 = 0, range -1_000_000.0..1_000_000.0;
        /// Whom this request is served with (text, an integer, bytes, a UUID, or a tuple of them); None is a scope of its own.
        fair_scope: Option<Key> = None;
        /// Time for the whole request, from submission; None means no limit.
        timeout: Option<f64> = None, range 0.0..1e9, unit "seconds";
        /// Time until its first text is computed; None means no limit.
        queue_timeout: Option<f64> = None, range 0.0..1e9, unit "seconds";
    }
}
