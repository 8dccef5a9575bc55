"""How an answer is told, streamed or whole: one file a shape.

    chunks.py    what a request's tokens bring: text, log-probabilities, the word that nothing comes
    builder.py   one answer in the making, whatever its shape: open it first
    message.py   what one choice says as an assistant: content, reasoning, calls
    choices.py   OpenAI's chat and plain completions
    messages.py  Anthropic's messages
    embeddings.py  OpenAI's embeddings
    responses.py OpenAI's responses, whole and as numbered events
    response_output.py  their output items, one after the other

`gateway.api.generate` makes the builder that its endpoint's `Kind` names; `gateway.requests.stream` tells it. Never
imports Starlette nor asks a store.
"""
