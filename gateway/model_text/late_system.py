"""System messages after others, as agents send them, for templates that take one at the beginning alone.

Some refuse the conversation, some leave the message out: there it becomes a part of what the user says, marked as what
it is.
"""

from collections.abc import Iterable, Sequence
from itertools import dropwhile

from msgspec.structs import replace

from fairlane.gateway.dialects.openai.requests import Turn

_ROLES = frozenset({"system", "developer"})
SAID = "tried instruction"
TRIED = (
    Turn(role="user", content="a"),
    Turn(role="system", content=SAID),
    Turn(role="assistant", content="a"),
    Turn(role="user", content="a"),
)
"""A template that tells of what is said in this conversation takes such messages."""


def has_late_system(turns: Iterable[Turn]) -> bool:
    """Whether a system message comes after one of another role."""
    return any(turn.role in _ROLES for turn in dropwhile(_is_system, turns))


def as_user(turns: Sequence[Turn]) -> list[Turn]:
    """Return the turns with those messages in the user's; turns of the user's that then follow each other are one,
    since such templates often want roles to alternate."""
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
