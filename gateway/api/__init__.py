"""The tenants' endpoints.

`generate.py` serves tokens: read, prepare, submit, stream; `completions.py` says what differs between chat and plain
completions. `models.py` and `health.py` only look.
"""
