"""The operators' API.

`routes.py` lists the routes; `router.py` runs one: auth, input, audit, ETag, errors. One file for each kind of
thing (tenants, keys, usage, fleet, explain); `inputs.py` and `views.py` are what is read and answered.
"""
