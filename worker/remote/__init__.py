"""External engines: vLLM, SGLang, and other servers that take token ids and stream tokens back.

    api.py      requests to a server and its replies, the same for every kind of server
    http.py     requests, server-sent events and error classes, for every kind
    vllm.py     vLLM's token-in-token-out interface
    media.py    images and sounds at vLLM: the probe, requests, measuring
    lark.py     a job's grammar in the form that vLLM accepts
    sglang.py   SGLang's `/generate`
    openai.py   `/v1/completions` of any server; openai_wire.py has the protocol, retokenise.py serves text-only ones
    pooling.py  models that embed or score, at a server of any kind
    streams.py  the open requests, on the event loop of a separate thread
    monitor.py  checks whether the server is up and unchanged
    runner.py   the `StepRunner`: turns the streams' tokens into step results
    open.py     queries the server, and creates the engine and the model card

The planner of our own engine also decides which sequences run at the server, which sequences yield, and the limits
of a step. A sequence with a row has a stream; one that is preempted, paused or forgotten has none. Tokens that the
planner did not request are never sent. Read `runner.py` first. No torch.
"""
