"""JSON views of objects: TypedDicts with described properties, filled by the names of their fields."""

from typing import Any, TypeVar, cast

from pydantic import Field
from pydantic.fields import FieldInfo

View = TypeVar("View")


def about(text: str) -> FieldInfo:
    """Return the description, in the OpenAPI document, of the property that it annotates."""
    return cast(FieldInfo, Field(description=text))


def view_of(shape: type[View], source: object, **others: object) -> View:
    """Return a TypedDict of the source's attributes with the same names, tuples as lists; `others` adds or replaces
    some.

    Optional properties that neither has are left out."""
    optional = cast(Any, shape).__optional_keys__
    found = {
        name: others[name] if name in others else getattr(source, name)
        for name in shape.__annotations__
        if name not in optional or name in others or hasattr(source, name)
    }
    return cast(View, {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()})
