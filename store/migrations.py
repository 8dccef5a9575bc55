"""Steps that convert the data of a store, by the schema that they lead to.

A step gets the store's URL. It runs while gateways of its own release serve, which read both forms, and may be
interrupted and repeated. It uses no other module of ours than `store`: later releases must not change what it does."""

from collections.abc import Awaitable, Callable

Step = Callable[[str], Awaitable[None]]
# Schema 1 is the first: what all states of the development branch since 9a40b931 have written.
STEPS: dict[int, Step] = {}
