"""Attention over the paged KV cache: each backend writes a step's keys and values, then attends to them.

    base.py            the interface: `AttentionBackend`, and the `Metadata` of one step
    gather.py          `sdpa`, the reference: gathers the blocks, then runs torch's scaled dot product attention
    cpu.py             `cpu`: the C++ kernel of `worker.native`
    triton.py          `triton`: launches the GPU kernels
    triton_kernels.py  the GPU kernels; imported only if Triton is installed
    backends.py        all backends by name, the check that each must pass, and the custom operator

Read `base.py` first. The runner asks a backend to prepare each step's rows, the models in `worker.model` call it in
each layer, and `worker.model.select` asks `fastest_backends` which may be used. A backend knows the cache and a step's
rows; it never imports a model, the runner or anything of the server.
"""
