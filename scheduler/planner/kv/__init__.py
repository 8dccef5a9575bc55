"""KV blocks in integers: `blocks.py` who has which on the device, `host_slots.py` and `host_claims.py` the host pool,
`prefix_cache.py` which blocks hold which tokens and which goes first, `lane_floors.py` what a lane keeps.
"""
