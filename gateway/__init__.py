"""The HTTP gateway: authenticates, reserves, admits, queues and streams back.

Layers, highest first; each imports only those below it:

    __main__, server, app, runtime/   compose the process
    control/       what operators call and see: admin API, console, OpenAPI, upkeep
    api/           the tenants' endpoints
    batches/       files of requests, run line by line
    middleware/    tenant, request id, idempotency
    pipeline/      one request: prepare, admit, submit, stream, settle, recover
    answers/       responses, streamed or whole, in each dialect
    insight/       request records, fleet metrics, request traces, telemetry
    request/       one request's state
    fleet.py       the models and workers there are
    model_text/    text to tokens and back, chat templates in a sandbox
    dialects/      OpenAI's and Anthropic's formats, tool calls, grammars
    identity/      API keys, tokens of identity providers
    http/          connections, limits, bodies, SSE
    errors.py      every error that a client can see

Open `app.py` first: every route on one screen. Then `api/generate.py`, which serves tokens, and `runtime/resources.py`.
`python -m fairlane.gateway` runs it. Never imports torch, nor the worker.
"""
