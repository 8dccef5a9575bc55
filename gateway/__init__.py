"""The HTTP gateway: authenticates and admits requests, reserves their budget, enqueues jobs and streams the output.

    http/            connections, their limits, request bodies, responses, SSE
    identity/        callers identified by a token, or acting for a tenant
    middleware/      authentication, request ids, idempotency keys
    api/             the tenants' endpoints
    openai/          OpenAI's request and response formats
    anthropic/       Anthropic's request and response formats
    text/            tokenizers, and chat templates in a sandbox
    tools/           tool calls: formats, parsers, grammars
    requests/        the life of a request: prepare, admit, submit, stream, settle
    records/         the outcome of each request and the reason for it
    ledger/          retention and export of the ledger
    traces/          recorded request traces, and simulations that replay them
    admin/ console/  the operators' API and web console
    operators/       authentication and roles of operators
    erasure/         erasure of a deleted tenant's data
    figures/         statistics of all gateways, live and over a month
    openapi/ observability/

Open `app.py` first: every route on one screen; then `api/generate.py`, which serves generation requests, and
`runtime.py`, which builds all parts of one process. `python -m fairlane.gateway` runs it. Never imports torch or the
worker."""
