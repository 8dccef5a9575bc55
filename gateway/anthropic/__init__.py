"""Anthropic's words on the wire: `POST /v1/messages`, `POST /v1/messages/count_tokens`, and its list of models.

    blocks.py       what messages are made of, as pydantic checks them
    wire.py         request bodies field by field
    requests.py     what a checked body becomes: the same `ChatRequest` as a chat's
    models.py       models as its SDKs list them
    rate_limits.py  the anthropic-ratelimit headers

Called by `api/`, `answers/` and `middleware/`. Knows no lane, budget or queue. How an answer is told stands with the
other answers, in what form an error is with the other errors.
"""
