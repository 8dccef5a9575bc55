"""A reader of event streams by the HTML standard alone (section 9.2.6, "Interpreting an event stream")."""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """What a browser would dispatch."""

    name: str
    """Empty: none was given."""
    data: str


def read_events(content: bytes) -> list[ServerEvent]:
    """The events of a whole stream; one that no blank line ends is discarded. Raises UnicodeDecodeError."""
    events, name, data = [], "", list[str]()
    for line in re.split("\r\n|\r|\n", content.decode("utf-8").removeprefix("\ufeff"))[:-1]:
        if not line:
            if data:
                events.append(ServerEvent(name, "\n".join(data)))
            name, data = "", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            name = value
        elif field == "data":
            data.append(value)
    return events
