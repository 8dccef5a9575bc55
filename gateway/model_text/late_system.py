"""System messages after others, which agents send, for templates that only support one at the beginning.

Some templates reject such a conversation, some drop the message. Here it becomes a marked part of a user message."""

from collections.abc import Iterable, Iterator
from itertools import dropwhile

from fairlane.gateway.dialects.openai.requests import Turn, merge_turns

_ROLES = frozenset({"system", "developer"})
PROBE_TEXT = "tried instruction"
# A template that shows PROBE_TEXT in this conversation supports late system messages.
PROBE = (
    Turn(role="user", content="a"),
    Turn(role="system", content=PROBE_TEXT),
    Turn(role="assistant", content="a"),
    Turn(role="user", content="a"),
)


def has_late_system(turns: Iterable[Turn]) -> bool:
    """Return whether a system message follows one of another role."""
    return any(turn.role in _ROLES for turn in dropwhile(_is_system, turns))


def as_user(turns: Iterable[Turn]) -> list[Turn]:
    """Return the turns with late system messages as user turns; adjacent user turns are merged, since such templates
    often require alternating roles."""
    return merge_turns(_with_late_as_user(turns), lambda group, turn: group[-1].role == turn.role == "user")


def _with_late_as_user(turns: Iterable[Turn]) -> Iterator[Turn]:
    is_late = False
    for turn in turns:
        is_late = is_late or not _is_system(turn)
        if is_late and _is_system(turn):
            turn = Turn(role="user", content=f"<system>\n{turn.content or ''}\n</system>")
        yield turn


def _is_system(turn: Turn) -> bool:
    return turn.role in _ROLES
