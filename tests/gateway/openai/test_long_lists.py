"""Lists in bodies: of a long one no more than the first wrong item is looked at.

The list of all that is wrong is made in one go, during which no other thread runs: 0.1 s for a body of 190 KB.
"""

from collections.abc import Iterator
from typing import Any, get_args

import pytest
from pydantic import BaseModel, ValidationError

from fairlane.gateway.control.admin import routes as admin
from fairlane.gateway.control.openapi.calls import TENANT_API
from fairlane.gateway.dialects.openai.response_body import ResponseBody
from fairlane.gateway.dialects.openai.response_items import GivenItem
from fairlane.gateway.dialects.openai.response_tools import AnyTool, ToolChoiceBody

DECLARED = {"json_schema_input_schema", "serialization"}
"""Parts of a model's schema by which no input is checked."""


def kinds() -> Iterator[type[BaseModel]]:
    """Everything that a caller's JSON is checked against."""
    shapes = [row.body for row in TENANT_API] + [operation.input for operation in admin.OPERATIONS if operation.input]
    for shape in (*shapes, GivenItem, AnyTool, ToolChoiceBody):
        for kind in get_args(shape) or (shape,):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield kind


def unending(schema: Any, path: str) -> Iterator[str]:
    """The places of lists that are checked beyond their first wrong item, which may have a thousand faults itself."""
    if isinstance(schema, dict):
        if schema.get("type") == "list" and not schema.get("fail_fast"):
            yield path
        for name, inner in schema.items():
            if name not in DECLARED:
                yield from unending(inner, f"{path}.{name}")
    elif isinstance(schema, list | tuple):
        for inner in schema:
            yield from unending(inner, path)


KINDS = {kind.__name__: kind for kind in kinds()}


@pytest.mark.parametrize("name", sorted(KINDS))
def test_the_check_of_every_list_ends_at_its_first_wrong_item(name: str) -> None:
    assert [*unending(KINDS[name].__pydantic_core_schema__, name)] == []


def test_a_long_list_of_wrong_items_is_one_error() -> None:
    with pytest.raises(ValidationError) as wrong:
        ResponseBody.model_validate({"model": "m", "input": "a", "include": ["x"] * 1_000})

    assert wrong.value.error_count() == 1
