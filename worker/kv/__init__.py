"""The paged KV cache: its memory, and the layout of a step's rows in it.

    cache.py       the device pool, the pinned host pool, and their sizes
    row_layout.py  a step's rows as arrays; the block tables in memory
    transfer.py    swaps: block copies between the two pools

Read `cache.py` first. Attention, models and the engine build on it; it imports only errors from the worker. The
planner (`scheduler.planner`) decides which blocks belong to which sequence.
"""
