"""Models: packed rows in, logits of the rows that sample out. Every implementation of a model computes the same.

    interface.py    `Model`, `Packed`, `Output`
    reference.py    the reference: transformers' modules with our attention
    select.py       selects the fastest implementation that agrees with the reference
    fused.py        the Llama family in a dozen operators per layer
    native.py       the Llama family in one call of compiled code per step
    packing.py      packs a step's rows into tensors
    cuda_graphs.py  decode steps of any implementation, captured as CUDA graphs
    files.py        resolves a model's name in the settings to its files; its card and fingerprint
    gguf.py         converts a GGUF file, once, to a directory that transformers loads

Read `interface.py` first. `engine.build` calls `select.load_fastest`, `worker.own_engine` asks `files` for card and
fingerprint, the runner calls `Model.forward`. Transformers is imported inside functions, because `files.check_name`
runs before torch is available. Independent of jobs, leases and the store.
"""
