"""The engine: continuous batching over a paged KV cache on torch.

    engine/     one step: plan, rows, forward pass, sampling, copies
    model/      transformers' models, and faster forms that prove equal to them
    attention/  paged attention by device
    native/     C++ for CPUs

`runtime.py` builds a process, `server.py` takes jobs and publishes tokens, `engine_thread.py` is the one thread that
touches the engine. `python -m fairlane.worker` runs it. Never imports the gateway.
"""
