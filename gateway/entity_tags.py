"""Entity tags against lost updates: what a change is made of must still be what its author saw (RFC 9110, 13.1.1)."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from gateway.errors import ApiError, invalid

IF_MATCH = "if-match"
_TAG = r'(?:W/)?"[\x21\x23-\x7e]*"'
_TAGS = re.compile(rf"{_TAG}(?:[ \t]*,[ \t]*{_TAG})*")
_LONGEST = 1_000


@dataclass(frozen=True, slots=True)
class IfMatch:
    """What the caller takes the thing for; None: anything."""

    tags: frozenset[str] | None = None

    def check(self, tag: str) -> None:
        """Pass a thing with this tag. Raises ApiError `precondition_failed`."""
        if self.tags is not None and tag not in self.tags:
            message = "It has been changed since: read it again, and send `If-Match` with its new `ETag`."
            raise ApiError(message, "precondition_failed", IF_MATCH)


def if_match(headers: Iterable[tuple[bytes, bytes]]) -> IfMatch:
    """What `If-Match` asks for. A weak tag matches nothing. Raises ApiError where it holds no tags."""
    given = [value.decode("latin-1").strip() for name, value in headers if name == IF_MATCH.encode()]
    if not given or given == ["*"]:
        return IfMatch()
    text = ", ".join(given)
    if len(text) > _LONGEST or not _TAGS.fullmatch(text):
        raise invalid(IF_MATCH, '`If-Match` must be `*`, or tags as `ETag` gave them: "7".')
    return IfMatch(frozenset(re.findall(_TAG, text)))


def of_version(version: int) -> str:
    """The tag of what is counted by versions."""
    return f'"{version}"'
