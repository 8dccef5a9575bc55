"""Unsupported fields of OpenAI's and vLLM's APIs, each with the values other than null that have no effect."""

from collections.abc import Mapping

Neutral = Mapping[str, tuple[object, ...]]

_VLLM: Neutral = {
    "add_special_tokens": (),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "guided_decoding_backend": (),
    "guided_whitespace_pattern": (),
    "include_stop_str_in_output": (False,),
    "kv_transfer_params": (),
    "length_penalty": (1, 1.0),
    "logits_processors": (),
    "priority": (0,),
    "prompt_logprobs": (),
    "request_id": (),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "structural_tag": (),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "vllm_xargs": ({},),
}
NEUTRAL: Neutral = {**_VLLM, "store": (False,)}
CACHE_HINTS: Neutral = {
    "prompt_cache_options": (),
    "prompt_cache_retention": ("in_memory", "in-memory", "24h"),
}
NEUTRAL_CHAT: Neutral = {
    **NEUTRAL,
    **CACHE_HINTS,
    "add_generation_prompt": (True,),
    "audio": (),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "include_reasoning": (True,),
    "mm_processor_kwargs": ({},),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "verbosity": ("medium",),
    "web_search_options": (),
}
NEUTRAL_COMPLETION: Neutral = {
    **NEUTRAL,
    "parallel_tool_calls": (True, False),
    "suffix": ("",),
    "tools": ([],),
}
