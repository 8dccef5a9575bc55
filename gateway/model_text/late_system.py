"""System messages after others, which agents send, for templates that only support one at the beginning.

Some templates reject such a conversation, some drop the message. Here it becomes a marked part of a user message."""

from collections.abc import Iterable, Sequence
from itertools import dropwhile

from msgspec.structs import replace

from fairlane.gateway.dialects.openai.requests import Turn

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


def as_user(turns: Sequence[Turn]) -> list[Turn]:
    """Return the turns with late system messages as user turns; adjacent user turns are merged, since such templates
    often require alternating roles."""
    groups: list[list[Turn]] = []
    for turn in turns:
        before = groups[-1][-1] if groups else None
        if _is_system(turn) and before is not None and not _is_system(before):
            turn = Turn(role="user", content=f"<system>\n{turn.content or ''}\n</system>")
        if before is not None and before.role == turn.role == "user":
            groups[-1].append(turn)
        else:
            groups.append([turn])
    return [group[0] if len(group) == 1 else _as_one(group) for group in groups]


def _as_one(group: Sequence[Turn]) -> Turn:
    return replace(group[-1], content="\n".join([turn.content or "" for turn in group]))


def _is_system(turn: Turn) -> bool:
    return turn.role in _ROLES
