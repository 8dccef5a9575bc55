"""Models: packed rows in, logits of the rows that sample out. Every form of a model computes the same.

    interface.py    `Model`, `Packed`, `Output`; the reference: transformers' modules with our attention in them
    select.py       which form serves: the fastest that proves equal to the reference
    fused.py        the Llama family in a dozen operators per layer
    cuda_graphs.py  decode steps of any of them, captured as CUDA graphs
    files.py        a model's files by the name in the settings; its card and fingerprint
    gguf.py         a GGUF file converted, once, to what transformers loads

Open `interface.py` first. `engine.build` calls `select.load_fastest`, `engine.open` asks `files` for card and
fingerprint, the runner calls `Model.forward`. The form in C++ is `worker.native.model`. Transformers is imported inside
functions: `files.check_name` runs before torch is there. Nothing here knows jobs, leases or the store.
"""
