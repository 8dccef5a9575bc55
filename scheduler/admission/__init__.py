"""May this request be promised its deadline? `decide.py` first; gateways and the simulator call in.

A gateway knows what it let in (`open_requests.py`), hears what others did (`hearsay.py`), tests the demand
(`demand.py`), and says how long a wait may be (`eta.py`).
"""
