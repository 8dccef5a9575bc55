"""Anthropic's Messages API on the wire: `POST /v1/messages` and `POST /v1/messages/count_tokens`.

    blocks.py       content blocks, as pydantic checks them
    wire.py         request bodies, field by field
    requests.py     a checked body as the `ChatRequest` that a chat becomes too
    rate_limits.py  the anthropic-ratelimit headers

Called by `api/`, `answers/` and `middleware/`. Knows no lane, budget or queue.
"""
