"""Example bodies by operation, for readers of the document and for tools that send examples.

A test validates each against its schema."""

from collections.abc import Mapping
from typing import Any

_MODEL = "SmolLM2-135M-Instruct"
_CONVERSATION = [{"role": "user", "content": "What is the capital of France?"}]
_DETAILS = dict.fromkeys(
    ("reasoning_tokens", "audio_tokens", "accepted_prediction_tokens", "rejected_prediction_tokens"), 0
)
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
    "count_message_tokens": {"model": _MODEL, "messages": _CONVERSATION},
    "create_response": {"model": _MODEL, "input": "What is the capital of France?", "max_output_tokens": 32},
    "compact_response": {
        "model": _MODEL,
        "input": [*_CONVERSATION, {"role": "assistant", "content": "The capital of France is Paris."}],
    },
    "create_embeddings": {"model": _MODEL, "input": "The capital of France is Paris."},
    "create_key": {"name": "production", "scopes": {"lanes": ["latency"]}},
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
# Successful responses.
ANSWERS: Mapping[str, Mapping[str, Any]] = {
    "create_chat_completion": {
        "id": "chatcmpl-8dd0b1c2",
        "object": "chat.completion",
        "created": 1_800_000_000,
        "model": _MODEL,
        "service_tier": "default",
        "system_fingerprint": "fp_2f1c09ab5d",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "The capital of France is Paris.", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 37,
            "completion_tokens": 8,
            "total_tokens": 45,
            "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
            "completion_tokens_details": _DETAILS,
        },
    },
    "create_completion": {
        "id": "cmpl-8dd0b1c2",
        "object": "text_completion",
        "created": 1_800_000_000,
        "model": _MODEL,
        "service_tier": "default",
        "system_fingerprint": "fp_2f1c09ab5d",
        "choices": [{"index": 0, "text": " Paris.", "logprobs": None, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": 5,
            "completion_tokens": 3,
            "total_tokens": 8,
            "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
            "completion_tokens_details": _DETAILS,
        },
    },
    "list_models": {
        "object": "list",
        "data": [
            {
                "id": _MODEL,
                "object": "model",
                "created": 1_800_000_000,
                "owned_by": "fairlane",
                "context_length": 8192,
                "max_model_len": 8192,
                "exact": True,
            }
        ],
    },
    "list_open_batches": {
        "data": [
            {
                "id": "batch_2f1c09ab5d7e4a60b1c2d3e4",
                "tenant": "acme",
                "key": "8dd0b1c2",
                "endpoint": "/v1/chat/completions",
                "status": "in_progress",
                "created_at": 1_800_000_000,
                "window_ends_at": 1_800_086_400,
                "total": 5_000,
                "completed": 1_240,
                "failed": 3,
                "enqueued_tokens": 412_600,
                "gateway": "gateway-7f9c-1a2b3c4d",
            }
        ],
        "has_more": False,
        "last_id": "001800086400:batch_2f1c09ab5d7e4a60b1c2d3e4",
    },
    "tokenize": {"count": 3, "max_model_len": 8192, "tokens": [504, 3575, 30]},
}
# An error response.
ERROR: Mapping[str, Any] = {
    "error": {
        "message": "The limit tokens_per_minute of this tenant refuses the request.",
        "type": "rate_limit_error",
        "param": None,
        "code": "rate_limit_exceeded",
        "limit": {
            "name": "tokens_per_minute",
            "scope": "tenant",
            "limit": 20_000,
            "used": 19_800,
            "reserved": 150,
            "requested": 400,
            "resets_at": 1_800_000_060.0,
        },
    }
}
