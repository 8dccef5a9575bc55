"""The operators' console: static files served at `/`, and signing in and out.

Its pages call the operators' API like any other client. Whoever signed in has a session
(`gateway.operators`), not the key.
"""
