"""The global queue of one model: which worker gets which job, and what becomes of jobs whose holder is lost.

`memory_queue.py` states the rules and serves the simulator; `redis_queue.py` with `lua/` does the same in the store,
and a state machine sends both the same calls. `take_order.py` is the order of one `take`, `promises.py` the book of
what gateways have promised, `keys.py` the legend. Gateways put, cancel and grant; workers take, publish and renew.
"""
