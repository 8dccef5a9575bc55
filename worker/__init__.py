"""The worker: takes jobs from a model's queue, computes their tokens, and sends them to the jobs' gateways.

    kv/               the paged KV cache
    engine/           one step: plan, forward pass, sampling
    remote/           adapters that run the steps on an external server: vLLM, SGLang, any OpenAI API
    model/            transformers' models, and faster implementations that are verified against them
    embedding/        embedding models
    attention/        paged attention by device
    shards/           the queue as its shards: free capacity divided over them, calls and reports to each
    media/            images and sounds of jobs, fetched from their gateways, and measured for them
    native/           C++ kernels for CPUs
    vllm/             a plugin that applies our lanes inside vLLM's own scheduler
    __main__.py       the process: settings are checked (`config.py`) before torch is imported
    runtime.py        builds, opens and closes every part
    own_engine.py     opens an engine in this process: a language model or an embedder
    server.py         the event loop's tasks: take, control, renew, and the entries in the registry
    lifecycle.py      the phases of the process: serving, draining, leaving, failed
    leases.py         the leases held, and when to ask the queue for more
    engine_thread.py  the one thread that touches the engine
    reports.py        the engine thread's reports to the loop, and the publications in them
    accounts.py       each job's consumption: its share of the steps' time, and KV block milliseconds
    block_reports.py  the owners of the KV blocks, for operators who watch
    outlet.py         tokens to the gateways, over links, and progress to the store
    engine_jobs.py    the jobs in the engine, as gateways start, grant and cancel them
    output_stream.py  one lease's output, until its gateway has the end
    heartbeat.py      load and speed for the registry, learned costs for the simulator
    telemetry.py      metrics, and the measured and expected cost of preemptions
    traces.py         spans of the jobs that the worker holds
    job_log.py        log lines about one job, with its request's id
    errors.py         errors that prevent a worker from serving
    directory_lock.py a lock, so that one process compiles or converts for all

Read `server.py` first. `fairlane worker` starts it; otherwise only benchmarks and tests call in. The worker reaches a
gateway through the store and over a link (`scheduler.links`): neither imports the other.
"""
