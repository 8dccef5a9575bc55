"""OpenAI's words on the wire.

    wire.py         request bodies field by field, as pydantic checks them
    fields.py       what those are made of
    tools.py        tools, the choice of them, and calls: on the wire and checked
    requests.py     what a checked body becomes
    structures.py   what form an answer shall have
    response_body.py   the body of the Responses API, and the request that it becomes
    response_tools.py  its tools, and the choice of them
    response_items.py  items of its conversations, and the turns that they come to
    compaction.py   a conversation made short; sealed_summary.py: how its client carries that
    neutral.py      fields that are not served yet, and the values that ask for nothing
    rate_limits.py  the x-ratelimit headers

Called by `api/`, `answers/` and `pipeline/`. Knows no lane, budget or queue.
"""
