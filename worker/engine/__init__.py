"""One step on the device: `engine.py` first; `runner.py` turns lists into tensors and back, `kv_cache.py` holds the
pools.
"""
