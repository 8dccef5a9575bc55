"""Structs whose representation shows no contents of requests."""

import msgspec


class Redacted(msgspec.Struct, frozen=True):
    """A struct that logs, tracebacks and errors show by its name alone."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"
