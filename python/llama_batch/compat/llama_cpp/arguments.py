"""What becomes of llama-cpp-python's arguments."""

from __future__ import annotations

from llama_batch.compat.arguments import free, honoured, refused, table

RANDOM_SEED = 0xFFFFFFFF
"""llama.cpp's seed that stands for a random one."""

_KV = "one of 0 (f32), 1 (f16), 2 (q4_0), 3 (q4_1), 6 (q5_0), 7 (q5_1), 8 (q8_0), 20 (iq4_nl), 30 (bf16)"
_LORA = "merge the adapter into the model with llama.cpp's `llama-export-lora`, and load the result"

LLAMA = table(
    honoured("model_path", "a path, or a URI: `hf:owner/repo:quant`, `pypi:`, `ollama:`, `sim:`"),
    honoured("n_gpu_layers", becomes="n_gpu_layers"),
    honoured("split_mode", "0 (none), 1 (layer), 2 (row)"),
    honoured("main_gpu", becomes="main_gpu"),
    honoured("tensor_split", becomes="tensor_split"),
    refused("vocab_only", "load the whole model (it is mapped, not read), and use `tokenize`", False),
    honoured("use_mmap", becomes="use_mmap"),
    honoured("use_mlock", becomes="use_mlock"),
    refused("kv_overrides", "change the file with gguf's `gguf-set-metadata`", None),
    honoured("seed", "0, -1 and 4294967295 draw a random seed for each call"),
    honoured("n_ctx", "what all calls under way share; one alone may use all of it", becomes="n_ctx"),
    honoured("n_batch", becomes="n_batch"),
    honoured("n_ubatch", becomes="n_ubatch"),
    honoured("n_threads", "None takes one for each physical core", becomes="n_threads"),
    honoured("n_threads_batch", "None takes as many as `n_threads`", becomes="n_threads_batch"),
    honoured("rope_scaling_type", "-1 (the model's), 0 (none), 1 (linear), 2 (yarn), 3 (longrope)"),
    refused("pooling_type", "`pooling=` of `Engine.embed`, where the engine has it", -1),
    honoured("attention_type", "-1 (the model's), 0 (causal), 1 (non-causal)"),
    honoured("rope_freq_base", becomes="rope_freq_base"),
    honoured("rope_freq_scale", becomes="rope_freq_scale"),
    honoured("yarn_ext_factor", becomes="yarn_ext_factor"),
    honoured("yarn_attn_factor", "the default takes the model's"),
    honoured("yarn_beta_fast", "the default takes the model's"),
    honoured("yarn_beta_slow", "the default takes the model's"),
    honoured("yarn_orig_ctx", becomes="yarn_orig_ctx"),
    free("logits_all", "`logprobs` are to be had without it"),
    free("embedding", "where the engine makes embeddings, it does so beside completions"),
    honoured("offload_kqv", becomes="offload_kqv"),
    honoured("flash_attn", "True is on, False off"),
    honoured("op_offload", becomes="op_offload"),
    honoured("swa_full", becomes="swa_full"),
    honoured("no_perf", becomes="no_perf"),
    honoured("last_n_tokens_size", "`penalty_last_n`", becomes="penalty_last_n"),
    refused("lora_base", _LORA, None),
    refused("lora_scale", _LORA, 1.0),
    refused("lora_path", _LORA, None),
    refused("numa", "start Python under `numactl`", False),
    honoured("chat_format", "names of `llama_batch.compat.llama_cpp.CHAT_FORMATS`; None takes the model's template"),
    refused("chat_handler", "`chat_format=`, or `chat_template=` of `Engine.chat`; images are not supported", None),
    refused("draft_model", "leave it out: several calls at once share each forward pass", None),
    refused("tokenizer", "leave it out: the GGUF file holds the model's own", None),
    honoured("type_k", _KV),
    honoured("type_v", _KV),
    refused("spm_infill", "a prompt of token ids in the order that the model wants, without `suffix`", False),
    free("verbose", 'llama.cpp\'s messages go to `logging.getLogger("llama_batch")`'),
)

FROM_PRETRAINED = table(
    honoured("repo_id", "a repository of Hugging Face"),
    honoured("filename", "a file's name or a pattern, which one model matches"),
    refused("additional_files", "leave it out: all parts of a split model are fetched", None, []),
    refused("local_dir", "set `HF_HUB_CACHE`; the file stays in the cache of Hugging Face", None),
    refused("local_dir_use_symlinks", "leave it out", "auto"),
    refused("cache_dir", "set `HF_HUB_CACHE`", None),
    honoured("kwargs", "arguments of `Llama`"),
)

_SAMPLING = (
    honoured("temperature", becomes="temp"),
    honoured("top_p", becomes="top_p"),
    honoured("min_p", becomes="min_p"),
    honoured("typical_p", becomes="typical_p"),
    honoured("top_k", "0 and less mean all"),
    honoured("frequency_penalty", becomes="penalty_freq"),
    honoured("presence_penalty", becomes="penalty_present"),
    honoured("repeat_penalty", becomes="penalty_repeat"),
    honoured("seed", "None takes the seed of `Llama`; -1 and 4294967295 draw a random one"),
    refused("tfs_z", "`min_p` or `top_n_sigma`: llama.cpp has no tail-free sampling any more", 1.0),
    honoured("mirostat_mode", becomes="mirostat"),
    honoured("mirostat_tau", becomes="mirostat_tau"),
    honoured("mirostat_eta", becomes="mirostat_eta"),
    honoured("max_tokens", "None, 0 and less mean as many as the context holds"),
    honoured("stop"),
    honoured("stream"),
    honoured("model", "the name of the model in the answer"),
    refused("logits_processor", "`sampler=` of `Engine.generate`", None, []),
    honoured("grammar", "a `LlamaGrammar`"),
    honoured("logit_bias", "by token ids"),
)

COMPLETION = table(
    honoured("prompt", "text, or token ids"),
    honoured("suffix", "fills in the middle where the model has tokens for it, else is put behind the answer"),
    honoured("logprobs", "without `logits_all`", becomes="logprobs"),
    honoured("echo", "not with both `stream` and `logprobs`"),
    refused("stopping_criteria", "`stop=`, or leave the loop over `stream=True`", None, []),
    *_SAMPLING,
)

CHAT = table(
    honoured("messages", "text only"),
    honoured("functions", "as `tools`"),
    honoured("function_call", "as `tool_choice`"),
    honoured("tools", "any model: where its template knows none, it is told of them in words"),
    honoured("tool_choice"),
    honoured("response_format", 'of type "text", "json_object" (with a `schema`, too) or "json_schema"'),
    honoured("logprobs", "without `logits_all`"),
    honoured("top_logprobs"),
    *_SAMPLING,
)

METHODS = {
    "eval": "`create_completion` with token ids as `prompt`",
    "sample": "`sampler=` of `Engine.generate`",
    "generate": "`create_completion(prompt=tokens, stream=True)`",
    "save_state": "leave it out: prefixes are cached; `Engine.save_session` writes one to a file",
    "load_state": "leave it out: prefixes are cached; `Engine.load_session` reads one from a file",
    "set_cache": "leave it out: prefixes are cached; `prompt_cache_ram_mb=` and `prompt_cache_dir=` say how much",
    "ctx": "`engine`, the `llama_batch.Engine` beneath",
    "pooling_type": "`pooling=` of `Engine.embed`",
    "input_ids": "`logprobs=`",
    "scores": "`logprobs=`",
    "eval_tokens": "`usage` of an answer",
    "eval_logits": "`logprobs=`",
}
"""What `Llama` has there and not here, and what to use instead."""
