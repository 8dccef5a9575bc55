"""KV blocks in integers; the bytes are the worker's. `blocks.py` first: tables, references, the host pool's slots.

    blocks.py         device blocks and host slots, free, held or shared; what `allocate` and `swap_out` do
    holders.py        which tables hold each block, and how many blocks each set of tables has in common
    prefix_cache.py   which blocks hold which tokens, and which of them is evicted first
    prefix_reuse.py   what a sequence takes from that cache, and what it leaves there
    host_claims.py    host slots that are promised: to exact work, and to paused work by its tenant's share
    block_map.py      whose each block is now, for people to look at
    lane_floors.py    blocks that a lane keeps against the lanes above

The planner alone calls in. Every call keeps the accounting consistent, and `BlockPool.check_integrity` proves it in
tests. Never imports tensors, times or anything of the queue.
"""
