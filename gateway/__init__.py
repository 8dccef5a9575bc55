"""The HTTP face: authenticates, reserves, admits, queues and streams back.

    http/            connections, their limits, bodies, answers, SSE
    identity/        callers by a token, or in the name of a tenant
    middleware/      who asks, under which id, once for each idempotency key
    api/             the tenants' endpoints
    openai/          OpenAI's words for requests, chunks and limits
    anthropic/       Anthropic's words for the same
    text/            text to tokens and back, chat templates in a sandbox
    tools/           how models call tools: formats, readers, grammars
    requests/        a request on its way: prepare, admit, submit, stream, settle
    records/         what became of each request and why, for those who ask later
    ledger/          how long the ledger is kept, and its export
    traces/          what requests asked for, recorded, and simulations of it
    admin/ console/  what operators call and see
    operators/       who they are, and what each may do
    erasure/         what is erased with a deleted tenant
    figures/         what all gateways count, now and over a month
    openapi/ observability/

Open `app.py` first: every route on one screen; then `api/generate.py`, which serves tokens, and `runtime.py`, which
holds all that one process has. `python -m fairlane.gateway` runs it. Never imports torch, nor the worker.
"""
