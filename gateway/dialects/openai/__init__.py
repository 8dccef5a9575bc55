"""OpenAI's wire format.

    request_bodies.py   the fields of every request body, validated by pydantic
    field_types.py      field types that bodies share
    tools.py            tools, tool choice and calls: on the wire and validated
    requests.py         the requests that bodies become, and their common fields
    chat_requests.py    converts the body of a chat
    rendering.py        how a conversation becomes a prompt: the effort, and fields for chat templates
    structures.py       response formats and guided decoding
    response_body.py    the body of the Responses API, and its request
    response_tools.py   its tools and tool choice
    response_items.py   items of its conversations, and their turns
    compaction.py       compaction of a conversation
    neutral.py          unsupported fields, and their values without effect
    rate_limits.py      the x-ratelimit headers

Called by `api/`, `answers/` and `pipeline/`. Independent of lanes, budgets and queues.
"""
