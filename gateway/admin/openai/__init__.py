"""OpenAI's administration API over the same tenants, keys and limits, for tools that speak it.

`routes.py` lists the routes and serves them, `usage.py` answers usage by day, `shapes.py` has the objects as OpenAI
spells them. A project is a tenant, a service account's key is an API key.
"""
