"""Parameters out of range are refused where a thing is built, in one line that names the value and the rule."""

import math


def require(name: str, value: float, low: float, high: float = math.inf) -> None:
    """Refuse a value that is not between two others, both included; NaN is never. Raises ValueError."""
    if not low <= value <= high:
        raise ValueError(f"{name} must be between {low} and {high}, not {value}")
