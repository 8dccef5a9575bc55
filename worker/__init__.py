"""The worker: takes jobs from a model's queue, has their tokens computed, publishes them.

    engine/           one step: plan, pack rows, forward pass, sampling, block copies
    remote/           the same steps by a server elsewhere: vLLM
    model/            transformers' models, and faster forms that prove equal to them
    embedding/        models that make vectors of texts
    attention/        paged attention by device
    native/           C++ kernels for CPUs
    vllm/             our lanes inside vLLM's own scheduler, loaded there
    __main__.py       the process: settings are checked (`config.py`) before torch is imported
    runtime.py        builds, opens and closes every part
    server.py         the event loop's tasks: take, control, publish, renew, heartbeat, drain
    leases.py         the leases held, and when to ask the queue for more
    engine_thread.py  the one thread that touches the engine
    reports.py        what that thread tells the loop, and the publications it means
    accounts.py       what each job took: its share of the steps' time, and KV blocks times time
    block_reports.py  whose the KV blocks are, for operators who watch
    publisher.py      publications to the store, merged and repeated
    heartbeat.py      load and speed for the registry, learnt costs for the simulator
    telemetry.py      metrics, and what preemptions cost against what was expected
    traces.py         spans of the jobs in hand
    job_log.py        log lines about one job, with its request's id
    directory_lock.py what is compiled or converted once is made by one process

Open `server.py` first. `fairlane worker` starts it; nothing else calls in but benchmarks and tests. The gateway is
reached through the store alone: the two never import each other.
"""
