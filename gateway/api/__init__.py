"""The tenants' endpoints.

    generate.py      one request that produces tokens: read, prepare, submit, stream; open it first
    completions.py   what differs between chat and plain completions
    messages.py      what is Anthropic's: messages, and the count of their tokens
    models.py        GET /v1/models
    health.py        /healthz, /readyz, /metrics

The application wraps each in the tenant middleware. They answer in OpenAI's words (`openai/`) or in Anthropic's
(`anthropic/`), and leave every decision to `requests/`.
"""
