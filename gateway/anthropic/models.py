"""Models as Anthropic's SDKs list them, for callers that say which version of its API they speak."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from fairlane.gateway.fleet import ServedModel

VERSION_HEADER = b"anthropic-version"


def is_asked(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether the caller speaks Anthropic's API. `headers`: the ASGI scope's."""
    return any(name == VERSION_HEADER for name, _ in headers)


def shown(model: ServedModel) -> dict[str, Any]:
    """One model."""
    return {
        "id": model.name,
        "type": "model",
        "display_name": model.name,
        "created_at": datetime.fromtimestamp(model.text.card.created_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": model.context_length,
        "max_tokens": model.context_length,
    }


def page(models: Sequence[ServedModel]) -> dict[str, Any]:
    """All of them, on one page."""
    data = [shown(model) for model in models]
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return {"data": data, "has_more": False, "first_id": first, "last_id": last}
