"""JSON views of objects: TypedDicts that are filled by the names of their fields."""

from typing import TypeVar, cast

T = TypeVar("T")


def view_of(kind: type[T], source: object, **computed: object) -> T:
    """Return a TypedDict of this kind: each field is `computed`, or else the attribute of `source` with its name."""
    fields = {name: computed[name] if name in computed else getattr(source, name) for name in kind.__annotations__}
    return cast("T", fields)
