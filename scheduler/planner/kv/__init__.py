"""KV block accounting in integers; the worker holds the bytes. Start with `blocks.py`: tables, references, host slots.

    blocks.py         device blocks and host slots: free, held or shared; `allocate` and `swap_out`
    holders.py        which tables hold each block, and how many blocks each set of tables shares
    prefix_cache.py   which blocks hold which tokens, and their eviction order
    prefix_reuse.py   what a sequence takes from the cache, and what it adds to it
    host_claims.py    reserved host slots: for exact work, and for paused work by its tenant's share
    block_map.py      the owner of each block, for display
    lane_floors.py    blocks that a lane keeps from the lanes above

Only the planner calls it. Every call keeps the accounting consistent, which `BlockPool.check_integrity` verifies in
tests. Independent of tensors and time; never imports the queue."""
