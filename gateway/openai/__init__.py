"""OpenAI's words on the wire.

    wire.py         request bodies field by field, as pydantic checks them
    fields.py       what those are made of
    tools.py        tools, the choice of them, and calls: on the wire and checked
    requests.py     what a checked body becomes
    responses.py    chunks, and what is made of them: a builder for each shape of answers
    rate_limits.py  the x-ratelimit headers

Called by `api/` and `requests/`. Knows no lane, budget or queue.
"""
