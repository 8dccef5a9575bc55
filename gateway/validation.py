"""Checking a JSON body against a pydantic model: any fault is a 400 that names the field, in our words."""

from collections.abc import Mapping
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from gateway.bodies import Neutral
from gateway.errors import ApiError, invalid
from gateway.json_body import read_object, shown_name

_RULES = {
    "dict_type": "must be an object",
    "extra_forbidden": "is not a field that this API knows",
    "list_type": "must be a list",
    "missing": "is required",
    "none_required": "is not supported yet",
    "model_type": "must be an object",
    "string_too_long": "must have at most {max_length} characters",
    "string_too_short": "must not be empty",
    "too_long": "must have at most {max_length} items",
    "too_short": "must not be empty",
}
"""Pydantic's words for a broken rule, where ours are plainer."""

Body = TypeVar("Body", bound=BaseModel)


def checked(kind: type[Body], neutral: Neutral, body: bytes, *, token_ids: int = 0) -> Body:
    """The model that a body holds. `neutral`: fields that are not served yet, with the values that ask for nothing;
    `token_ids`: how many it may hold.

    Raises ApiError naming the field at fault.
    """
    return checked_fields(kind, neutral, read_object(body, token_ids=token_ids))


def checked_fields(kind: type[Body], neutral: Neutral, fields: Mapping[str, object]) -> Body:
    """The model that parsed fields hold: as `checked`."""
    given = dict(fields)
    for name in sorted(neutral.keys() & given.keys()):
        _refuse_unless_neutral(name, given.pop(name), neutral[name])
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        refused = _first(error)  # raised below, so that no traceback chains to what quotes the body
    try:
        raise refused
    finally:
        del refused  # it has this frame in its traceback, and with it the fields, until the next collection otherwise


def _refuse_unless_neutral(name: str, value: object, neutral: tuple[object, ...]) -> None:
    if value is not None and not any(type(value) is type(known) and value == known for known in neutral):
        raise invalid(name, f"`{name}` is not supported yet.")


def _first(error: ValidationError) -> ApiError:
    """The first of a body's errors, in our words; a field that is wrong goes before one that is missing."""
    first = min(error.errors(include_url=False, include_input=False), key=lambda found: found["type"] == "missing")
    param = ".".join(f"[{step}]" if isinstance(step, int) else shown_name(step) for step in first["loc"])
    known = _RULES.get(first["type"])
    rule = first["msg"].replace("Input should", "must", 1) if known is None else known.format(**first.get("ctx", {}))
    return invalid(param or None, f"`{param}` {rule}.")
