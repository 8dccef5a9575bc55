"""Validation of fields that operators set; each error names its field."""

import math
from collections.abc import Collection, Mapping
from datetime import datetime

LONGEST_TEXT = 200
LONGEST_LIST = 1_000


class FieldError(ValueError):
    """A document's `field` is unknown or out of range."""

    def __init__(self, field: str, rule: str) -> None:
        super().__init__(f"{field}: {rule}")
        self.field = field
        self.rule = rule


def document(value: object, name: str, known: Collection[str]) -> dict[str, object]:
    """Check a JSON object for unknown fields. `name` is the field that holds it; empty for the whole body."""
    if not isinstance(value, Mapping):
        raise FieldError(name or "body", "must be an object")
    for field in value:
        if field not in known:
            raise FieldError(f"{name}.{str(field)[:64]}" if name else str(field)[:64], "no such field")
    return dict(value)


def text(value: object, name: str) -> str:
    """Check a printable text of bounded length."""
    if not isinstance(value, str) or not value.isprintable() or len(value) > LONGEST_TEXT:
        raise FieldError(name, f"must be printable text of at most {LONGEST_TEXT} characters")
    return value


def one_of(value: object, name: str, choices: Collection[str]) -> str:
    """Check a value against a closed set."""
    if not isinstance(value, str) or value not in choices:
        raise FieldError(name, f"must be one of {', '.join(choices)}")
    return value


def number(value: object, name: str, low: float, high: float) -> float:
    """Check a finite number against a range, both ends included."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise FieldError(name, f"must be a number from {low:g} to {high:g}")
    return float(value)


def texts(value: object, name: str, choices: Collection[str] = ()) -> tuple[str, ...]:
    """Check a list of texts, optionally from a closed set, and remove duplicates."""
    if not isinstance(value, list | tuple) or len(value) > LONGEST_LIST:
        raise FieldError(name, f"must be a list of at most {LONGEST_LIST} texts")
    found = [one_of(item, name, choices) if choices else text(item, name) for item in value]
    return tuple(dict.fromkeys(found))


def names(value: object, name: str) -> dict[str, str]:
    """Check an object that maps texts to texts, none of them empty."""
    if not isinstance(value, Mapping) or len(value) > LONGEST_LIST:
        raise FieldError(name, f"must be an object of at most {LONGEST_LIST} texts")
    found = {text(each, name): text(to, name) for each, to in value.items()}
    if "" in found or "" in found.values():
        raise FieldError(name, "must not hold an empty name")
    return found


def moment(value: object, name: str) -> float:
    """Parse epoch seconds, or an ISO 8601 time with a zone."""
    if isinstance(value, str):
        try:
            parsed = datetime.fromisoformat(value)
        except ValueError:
            parsed = None
        if parsed is not None and parsed.tzinfo is not None and parsed.timestamp() >= 0:
            return parsed.timestamp()
    elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and 0 < value < 1e11:
        return float(value)
    raise FieldError(name, "must be seconds since 1970, or a time such as 2027-01-31T00:00:00Z")
