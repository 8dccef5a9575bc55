"""Callers: API keys, tokens of identity providers, and tenants named by a gateway in front.

    auth.py          the caller of a request, with a short-lived cache; open it first
    credentials.py   all credentials of one request; rejects a second, different identity
    tokens.py        verification of tokens, and the mapping of claims to tenant and group
    signing_keys.py  an issuer's public keys: fetched in the background, kept while the issuer is unavailable
    settings.py      the accepted issuers: everything about an issuer is configured, nothing is read from a token

Never imports an endpoint, and logs no part of a token."""
