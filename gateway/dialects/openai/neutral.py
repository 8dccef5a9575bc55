"""Fields of OpenAI's and vLLM's APIs that are not honoured, each with the values that ask for nothing.

Null and empty values ask for nothing in every field. Another value is an error, or is ignored in a hint."""

from collections.abc import Mapping


class HintValues(tuple[object, ...]):
    """The neutral values of a hint. Others are ignored, since they do not change what the answer means."""


def hint(*neutral: object) -> HintValues:
    """Return the values of a hint that ask for nothing."""
    return HintValues(neutral)


Neutral = Mapping[str, tuple[object, ...]]

_VLLM: Neutral = {
    "guided_decoding_backend": hint(),
    "guided_whitespace_pattern": hint(),
    "kv_transfer_params": hint(),
    "length_penalty": hint(1, 1.0),
    "logits_processors": (),
    "priority": hint(0),
    "request_id": hint(),
    "spaces_between_special_tokens": hint(True, False),
    "structural_tag": (),
    "use_beam_search": (False,),
    "vllm_xargs": hint(),
}
CACHE_HINTS: Neutral = {
    "prompt_cache_options": hint(),
    "prompt_cache_retention": hint("in_memory", "in-memory", "24h"),
}
CALLER_HINTS: Neutral = {"metadata": hint(), "prompt_cache_key": hint(), "safety_identifier": hint(), "user": hint()}
# SGLang's and llama.cpp's constraints of the output and choices of an adapter.
_OTHER_ENGINES: Neutral = {"ebnf": (), "grammar": (), "json_schema": (), "lora_path": (), "regex": ()}
NEUTRAL: Neutral = {**_VLLM, **_OTHER_ENGINES, **CACHE_HINTS, **CALLER_HINTS, "store": hint(False)}
NEUTRAL_CHAT: Neutral = {
    **NEUTRAL,
    "audio": (),
    "chat_template": (),
    "echo": (False,),
    "mm_processor_kwargs": hint(),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": hint(),
    "verbosity": hint("medium"),
    "web_search_options": (),
}
NEUTRAL_COMPLETION: Neutral = {
    **NEUTRAL,
    "parallel_tool_calls": (True, False),
    "tools": ([],),
}
