"""Who operates this installation, and what each may do.

    operator.py       a named operator and a role; the roles
    operators.py      who makes a call: by the admin key, a token or a session; open it first
    admin_key.py      the one key that the settings name or `serve` made; wrong guesses are slowed down
    admin_tokens.py   named tokens with a role, made and revoked by owners
    single_sign_on.py users of an identity provider, by OpenID Connect; settings.py, how the settings state it
    sessions.py       browsers that are signed in: cookies, and what another site may not send

The admin API and the console call in. Tenants and their keys are elsewhere: `gateway.auth`. All of it is in the store,
so that each gateway knows the same:

| key | type | holds |
| --- | --- | --- |
| `fl:admin-key` | string | salt and keyed hash of the key that was made, where the settings name none |
| `fl:{operators}:tokens` | hash | id → an encoded AdminToken, with a keyed hash of its secret; MOST_TOKENS at most |
| `fl:{operators}:revision` | string | grows whenever somebody's rights end: who watches is asked again |
| `fl:sign-in:<D>` | string | a sign-in whose state has this digest was completed; goes after twenty minutes |
| `fl:session:<D>` | string | an encoded Session; D: digest of its id, which no store has; goes after eight hours |
| `fl:sessions:<D>` | sorted set | an operator's newest sessions, by when they began; D: digest of the operator's name |
| `fl:sign-ins:<D>` | string | how often an operator has signed in within this minute |
"""
