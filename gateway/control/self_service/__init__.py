"""What a tenant sees and manages of its own with its keys, by the tenant API; the portal is a page of these calls.

account.py   `/v1/me`, `/v1/usage`, and the list `/v1/requests`
keys.py      `/v1/keys`: a key makes, rotates and revokes keys that may do no more than itself
    scopes.py    compares the scopes of two keys"""
