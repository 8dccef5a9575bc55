"""What an output reader makes of a text, all its deltas put together."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from fairlane.gateway.dialects.openai.tools import Tool
from fairlane.gateway.dialects.tools.deltas import OutputDelta, OutputReader

WEATHER = Tool(
    name="weather",
    description="Tells the weather",
    parameters={
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer", "minimum": 1, "maximum": 9},
            "places": {"type": "array", "items": {"$ref": "#/$defs/place"}, "maxItems": 2},
        },
        "required": ["city", "days"],
        "additionalProperties": False,
        "$defs": {"place": {"enum": ["Köln", "Rom"]}},
    },
)
TIME = Tool(name="time", parameters={"type": "object", "properties": {}, "additionalProperties": False})
TOOLS = (WEATHER, TIME)


class Read(NamedTuple):
    """All that was said."""

    content: str
    reasoning: str
    calls: list[tuple[str, str]]
    """Names, and the JSON text of the arguments."""


def read(reader: OutputReader, text: str, cuts: Sequence[int] = (), *, is_cut: bool = False) -> Read:
    """Push a text in pieces, and put together what comes. `is_cut`: its end is that of a limit."""
    places = [0, *sorted(cuts), len(text)]
    deltas = [reader.push(text[start:end]) for start, end in pairwise(places)]
    begun = reader.calls
    deltas.append(reader.end(is_cut=is_cut))
    return put_together(deltas, max(begun, reader.calls) if is_cut else reader.calls)


def put_together(deltas: Sequence[OutputDelta], calls: int) -> Read:
    """As a client does: by the index of each call, whose first delta has its id and name."""
    names: list[str] = []
    arguments: list[str] = []
    ids: set[str] = set()
    for delta in deltas:
        for call in delta.calls:
            assert (call.id is None) == (call.name is None) == (call.index < len(names))
            if call.name is not None and call.id is not None:
                assert call.index == len(names)
                ids.add(call.id)
                names.append(call.name)
                arguments.append("")
            arguments[call.index] += call.arguments
    assert len(ids) == len(names) == calls
    content = "".join(delta.content for delta in deltas)
    reasoning = "".join(delta.reasoning for delta in deltas)
    return Read(content, reasoning, list(zip(names, arguments, strict=True)))
