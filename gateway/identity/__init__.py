"""Callers without an API key of ours: tokens of identity providers, and tenants named by a gateway in front.

    settings.py      the accepted issuers: everything about an issuer is configured, nothing is read from a token
    signing_keys.py  an issuer's public keys: fetched in the background, kept while the issuer is unavailable
    tokens.py        verification of tokens, and the mapping of claims to tenant and group
    credentials.py   all credentials of one request; rejects a second, different identity

`gateway.auth` calls in, and resolves such a caller to a delegated key of quotas. Open `tokens.py` first. Never imports
an endpoint, and logs no part of a token."""
