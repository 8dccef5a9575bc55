"""The result of a check of `fairlane doctor`."""

from enum import StrEnum

import msgspec


class FindingState(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    # Works now, but may fail or be slow later.
    WARN = "warn"
    # Does not work.
    FAIL = "fail"


class Finding(msgspec.Struct, frozen=True):
    """The result of one check."""

    check: str
    state: FindingState
    # What was found, in a few words; no secret.
    found: str
    # What to do; empty if nothing is wrong.
    advice: str = ""


def ok(check: str, found: str) -> Finding:
    """Return a finding without a problem."""
    return Finding(check, FindingState.OK, found)


def warn(check: str, found: str, advice: str) -> Finding:
    """Return a finding that works for now."""
    return Finding(check, FindingState.WARN, found, advice)


def fail(check: str, found: str, advice: str) -> Finding:
    """Return a finding that does not work."""
    return Finding(check, FindingState.FAIL, found, advice)
