"""Callers without a key of ours: tokens of companies' identity providers, and tenants that a gateway in front names.

    settings.py      the issuers whose tokens are taken: all that decides about one is stated there, nothing in a token
    signing_keys.py  an issuer's public keys: fetched beside requests, kept while the issuer is away
    tokens.py        what a token has to be; what of its claims becomes the tenant and the group
    credentials.py   what one request brings of all this, and the refusal of a second, different identity

The gateway's auth calls in, and asks the delegated keys of quotas for the one under which such a caller is counted.
Open `tokens.py` first. Never imports an endpoint, and logs nothing of a token.
"""
