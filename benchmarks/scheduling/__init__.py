"""The scheduler's proof: `lines` measures it, `policies` are what it is compared with, `traces` what arrives.

`floods` and `isolation` measure the same on a whole server, over HTTP."""
