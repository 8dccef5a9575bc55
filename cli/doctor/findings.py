"""What a check of `fairlane doctor` gives back."""

from enum import StrEnum

import msgspec


class FindingState(StrEnum):
    """How it stands with one thing."""

    OK = "ok"
    WARN = "warn"
    """It works, and could fail or be slow later."""
    FAIL = "fail"
    """It does not work so."""


class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at."""

    check: str
    state: FindingState
    found: str
    """What is there, in a few words; no secret."""
    advice: str = ""
    """What to do about it; empty where all is well."""


def ok(check: str, found: str) -> Finding:
    """Nothing to do."""
    return Finding(check, FindingState.OK, found)


def warn(check: str, found: str, advice: str) -> Finding:
    """It works for now."""
    return Finding(check, FindingState.WARN, found, advice)


def fail(check: str, found: str, advice: str) -> Finding:
    """It does not work so."""
    return Finding(check, FindingState.FAIL, found, advice)
