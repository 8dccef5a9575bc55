"""The `fairlane` command: `main.py` finds the subcommand and imports only what that one needs.

`serve.py` runs everything on one machine, with `embedded_store.py`; `client.py` is the way to a gateway's admin API for
`tenants.py`, `keys.py`, `quotas.py`, `usage.py` and `workers.py`; `simulate.py` plays a trace. Nothing imports this
package.
"""
