"""The tenants' endpoints.

    generate.py      one request that produces tokens: read, prepare, submit, stream; open it first
    completions.py   what differs between chat and plain completions
    models.py        GET /v1/models
    health.py        /healthz, /readyz, /metrics

The application wraps each in the tenant middleware. They answer in OpenAI's words (`openai/`) and leave every
decision to `requests/`.
"""
