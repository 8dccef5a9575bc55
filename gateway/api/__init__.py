"""Endpoints of the tenants' port.

    generate.py      generation requests: read, prepare, submit, stream; open it first
    completions.py   chat completions and plain completions
    messages.py      Anthropic's messages, and the count of their tokens
    responses.py     the Responses API; response_socket.py: the same on a WebSocket
    embeddings.py    a vector for each input
    scores.py        scores of pairs of texts, and rankings of documents
    recording.py     writes request records for generation
    requests.py      GET /v1/requests/{id}: the outcome of one request, and the reason for it
    models.py        GET /v1/models
    tokenize.py      POST /tokenize and /detokenize, which need only the model's card
    health.py        /healthz, /readyz, /version, /metrics

The application wraps each in the tenant middleware. They respond in OpenAI's format (`openai/`) or in Anthropic's
(`anthropic/`), and leave every decision to `pipeline/`."""
