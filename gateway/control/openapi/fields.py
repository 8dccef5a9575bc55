"""The treatment of every field of a request: honoured, ignored as a hint, or refused by name.

It is read from the bodies' classes and from the tables of fields that are not honoured."""

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, WrapValidator
from pydantic.fields import FieldInfo

from fairlane.gateway.dialects.openai.field_types import or_ignored
from fairlane.gateway.dialects.openai.neutral import HintValues, Neutral

Treatment = Literal["honoured", "hint", "refused"]


def treatments(body: type[BaseModel], neutral: Neutral) -> Mapping[str, Treatment]:
    """Return the treatment of each field of a body, by name. `neutral`: fields that its class does not declare."""
    declared = {field.alias or name: _declared(field) for name, field in body.model_fields.items()}
    others: dict[str, Treatment] = {
        name: "hint" if isinstance(values, HintValues) else "refused" for name, values in neutral.items()
    }
    return {**declared, **others}


def _declared(field: FieldInfo) -> Treatment:
    if field.annotation is not type(None):
        return "honoured"
    is_hint = any(isinstance(each, WrapValidator) and each.func is or_ignored for each in field.metadata)
    return "hint" if is_hint else "refused"
