"""Anthropic's wire format: `POST /v1/messages` and `POST /v1/messages/count_tokens`.

    blocks.py          content blocks, validated by pydantic
    request_bodies.py  request bodies, field by field
    requests.py        converts a valid body to the same `ChatRequest` as a chat's
    rate_limits.py     the anthropic-ratelimit headers

Called by `api/`, `answers/` and `middleware/`. Independent of lanes, budgets and queues.
"""
