"""Engines that are servers elsewhere: vLLM and what else takes token ids and streams them back.

    api.py      what is asked of a server, and what comes back: the same for every kind
    http.py     requests, server-sent events and the words for faults, of every kind
    vllm.py     vLLM's token-in-token-out interface
    lark.py     a job's grammar in the form that vLLM takes
    sglang.py   SGLang's `/generate`
    openai.py   `/v1/completions` of any server, as openai_wire.py speaks it; retokenise.py where it says text alone
    streams.py  the requests that are open there, on an event loop of their own thread
    runner.py   a step's rows out of those streams: what the planner plans, and what has arrived
    open.py     finds out what the server is, and makes engine and model card of it

The planner of our own engine decides here too: which sequences are in the server's hands, who yields to whom, and what
a step may hold. A sequence that gets a row has a stream; one that is preempted, paused or forgotten has none. Nothing
beyond what the planner asked for is ever told to anybody. Open `runner.py` first. No torch.
"""
