"""The HTTP gateway: authenticates and admits requests, reserves their budget, enqueues jobs and streams the output.

Layers, highest first; each imports only those below it:

    __main__, server, app, runtime/   composition of the process
    control/       the control plane: admin API, console, OpenAPI, upkeep
    api/           the tenants' endpoints
    batches/       files of requests, run line by line
    middleware/    tenant, request id, idempotency
    pipeline/      one request: prepare, admit, submit, stream, settle, recover
    answers/       responses, streamed or whole, in each dialect
    insight/       request records, fleet metrics, request traces, telemetry
    request/       one request's state
    fleet.py       the known models and workers
    model_text/    tokenizers, and chat templates in a sandbox
    dialects/      OpenAI's and Anthropic's formats, tool calls, grammars
    identity/      API keys, tokens of identity providers
    media/         images and sounds of requests: decoded, or fetched from allowed hosts
    websocket/     connections whose messages are requests
    http/          connections, limits, bodies, SSE
    errors.py      all API errors

Open `app.py` first: every route on one screen. Then `api/generate.py`, which serves generation, and
`runtime/resources.py`. `python -m fairlane.gateway` runs it. Never imports torch or the worker.
"""
