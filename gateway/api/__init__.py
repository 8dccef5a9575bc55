"""The tenants' endpoints.

    generate.py      one request that produces tokens: read, prepare, submit, stream; open it first
    completions.py   what differs between chat and plain completions
    messages.py      what is Anthropic's: messages, and the count of their tokens
    responses.py     the Responses API
    embeddings.py    what is embedders': a vector for each input
    recording.py     what generation tells the records of requests
    requests.py      GET /v1/requests/{id}: what became of one, and why
    models.py        GET /v1/models
    tokenize.py      POST /tokenize and /detokenize: what a card alone answers
    health.py        /healthz, /readyz, /version, /metrics

The application wraps each in the tenant middleware. They answer in OpenAI's words (`openai/`) or in Anthropic's
(`anthropic/`), and leave every decision to `requests/`.
"""
