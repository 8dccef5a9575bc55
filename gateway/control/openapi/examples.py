"""Example request bodies by operation, for readers of the document and for tools that send examples.

A test validates each against its schema."""

from collections.abc import Mapping
from typing import Any

_MODEL = "SmolLM2-135M-Instruct"
_CONVERSATION = [{"role": "user", "content": "What is the capital of France?"}]
_QUESTION = "What is the capital of France?"
_DOCUMENTS = ["Paris is the capital of France.", "Berlin is a city."]
_RANKING = {"model": _MODEL, "query": _QUESTION, "documents": _DOCUMENTS}
_PAIRS = {"model": _MODEL, "text_1": _QUESTION, "text_2": _DOCUMENTS}
_LIMITS = {"requests_per_minute": 60, "tokens_per_day": 1_000_000}

BODIES: Mapping[str, Mapping[str, Any]] = {
    "change_key": {"name": "billing", "expires_at": None},
    "change_tenant": {"weight": 2.0, "limits": {"tokens_per_minute": 20_000}},
    "create_chat_completion": {"model": _MODEL, "messages": _CONVERSATION, "max_tokens": 32},
    "create_completion": {"model": _MODEL, "prompt": "The capital of France is", "max_tokens": 8},
    "create_batch": {
        "input_file_id": "file-2f1c09ab5d",
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    },
    "create_message": {"model": _MODEL, "max_tokens": 32, "messages": _CONVERSATION},
    "create_message_batch": {
        "requests": [{"custom_id": "a", "params": {"model": _MODEL, "max_tokens": 32, "messages": _CONVERSATION}}]
    },
    "create_conversation": {"items": _CONVERSATION, "metadata": {"topic": "geography"}},
    "change_conversation": {"metadata": {"topic": "capitals"}},
    "create_conversation_items": {"items": _CONVERSATION},
    "count_message_tokens": {"model": _MODEL, "messages": _CONVERSATION},
    "create_response": {"model": _MODEL, "input": "What is the capital of France?", "max_output_tokens": 32},
    "count_response_input_tokens": {"model": _MODEL, "input": "What is the capital of France?"},
    "compact_response": {
        "model": _MODEL,
        "input": [*_CONVERSATION, {"role": "assistant", "content": "The capital of France is Paris."}],
    },
    "create_embeddings": {"model": _MODEL, "input": "The capital of France is Paris."},
    "pool": {"model": _MODEL, "input": "The capital of France is Paris."},
    "rerank": _RANKING,
    "rerank_unversioned": _RANKING,
    "rerank_v2": _RANKING,
    "score": _PAIRS,
    "score_unversioned": _PAIRS,
    "create_key": {"name": "production", "scopes": {"lanes": ["latency"]}},
    "create_own_key": {"name": "billing", "scopes": {"models": [_MODEL], "endpoints": ["/v1/chat/completions"]}},
    "rotate_own_key": {"overlap_s": 3_600},
    "create_token": {"name": "on-call", "role": "operator", "expires_at": "2030-01-31T00:00:00Z"},
    "create_tenant": {"id": "acme", "name": "Acme", "timezone": "Europe/Berlin", "limits": _LIMITS},
    "detokenize": {"model": _MODEL, "tokens": [504, 3575, 282, 4649, 314, 7042, 30]},
    "explain": {"prompt_tokens": 200, "max_output_tokens": 100, "lane": "latency"},
    "change_quota": {"limits": {"tokens_per_day": 2_000_000}},
    "replace_quota": {"limits": _LIMITS},
    "replace_prices": {
        "prices": [
            {"model": _MODEL, "lane": "latency", "input": 150, "cached_input": 75, "output": 600},
            {"input": 50, "output": 200},
        ]
    },
    "rotate_key": {"overlap_s": 3_600},
    "simulate": {"trace": "recorded-20270115T080000123456-5f0c2a91.trace", "workers": 4, "loads": [1.0, 2.0]},
    "tokenize": {"model": _MODEL, "messages": _CONVERSATION},
}
