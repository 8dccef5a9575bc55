"""The result of a check of `fairlane doctor`."""

from typing import Literal

import msgspec


class Finding(msgspec.Struct, frozen=True):
    """The result of one check."""

    check: str
    # `warn`: it works now, but may fail or be slow later.
    state: Literal["ok", "warn", "fail"]
    # What was found, in a few words; no secret.
    found: str
    # What to do; empty if nothing is wrong.
    advice: str = ""


def ok(check: str, found: str) -> Finding:
    """Return a finding without a problem."""
    return Finding(check, "ok", found)


def warn(check: str, found: str, advice: str) -> Finding:
    """Return a finding that works for now."""
    return Finding(check, "warn", found, advice)


def fail(check: str, found: str, advice: str) -> Finding:
    """Return a finding that does not work."""
    return Finding(check, "fail", found, advice)
