"""Building responses, streamed or whole: one module per shape.

    chunks.py    pieces of a request's output: text, log-probabilities, progress comments
    builder.py   the builder that all shapes share: start here
    message.py   one choice as an assistant message: content, reasoning, calls
    calls.py    the calls of chats' answers
    choices.py   OpenAI's chat and plain completions
    messages.py  Anthropic's messages
    embeddings.py  OpenAI's embeddings
    scores.py   vLLM's scores, and rankings of documents
    responses.py OpenAI's responses, whole and as numbered events
    response_output.py  their output items, one after the other

`gateway.api.generate` creates the builder that its endpoint's `Kind` names; `gateway.pipeline.stream` feeds it. This
package never imports Starlette and never calls a store."""
