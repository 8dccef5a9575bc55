"""Media in conversations: what a request gives, and the marks that stand for it in the texts of turns.

Which model reads a conversation is not known while it is parsed. Then the marks are replaced: by what the model reads
in place of media, or by the tokens of those that its engine takes. No caller can guess a mark."""

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fairlane.common.redacted import Redacted
from fairlane.gateway.media.base64s import is_data_url
from fairlane.gateway.media.reader import MediaItem, MediaSource
from fairlane.scheduler.protocol.media import MEDIA_IDS, MediaForm, MediaKind, MediaSpan, media_id

_KEY_BYTES = 16
# How a mark says on which of its sides the parts of a message are joined by a line break.
_SIDES = "nlrb"
_MEDIA = ("image", "audio", "video", "document", "screenshot", "file")


def omitted(kind: str) -> str:
    """Return what a model reads in place of something other than text."""
    noun = next((medium for medium in _MEDIA if medium in kind), "content")
    return f"[{noun} omitted: this model reads text only]"


class Medium(Redacted, frozen=True, kw_only=True):
    """A part of a message that is not text."""

    # The request's field that has it.
    param: str
    # As the client names it.
    type: str
    # None: of a kind that no model here reads.
    source: MediaSource | None
    # Of what a model or a tool said: a model that does not read it is told that it is omitted.
    may_omit: bool

    @property
    def kind(self) -> MediaKind | None:
        return None if self.source is None else self.source.kind


def source_of(kind: MediaKind, given: object, param: str) -> MediaSource | None:
    """Return what a part gives of an image or sound: a URL, or base64; None if it gives neither."""
    match given:
        case str(text) | {"url": str(text)}:
            return MediaSource(text, param, kind, is_base64="://" not in text[:16] and not is_data_url(text))
        case {"data": str(text)}:
            return MediaSource(text, param, kind, is_base64=not is_data_url(text))
    return None


@dataclass(frozen=True, slots=True)
class Mark:
    """The place of a medium in a text."""

    key: str
    index: int

    def text(self, *, breaks_before: bool, breaks_after: bool) -> str:
        return f"{self.key}{self.index}{_SIDES[breaks_before + 2 * breaks_after]}"


def joined(parts: Sequence[str | Mark]) -> str:
    """Join the parts of a message by line breaks, which belong to the marks beside them."""
    texts = list[str]()
    for place, part in enumerate(parts):
        is_after_mark = place > 0 and isinstance(parts[place - 1], Mark)
        if isinstance(part, Mark):
            is_before_text = place + 1 < len(parts) and not isinstance(parts[place + 1], Mark)
            texts.append(part.text(breaks_before=place > 0, breaks_after=is_before_text))
        else:
            texts += [part] if place == 0 or is_after_mark else ["\n", part]
    return "".join(texts)


class ReadMedium(Redacted, frozen=True):
    """A medium that was read and measured."""

    item: MediaItem
    # That its engine makes of it.
    tokens: int

    @property
    def digest(self) -> bytes:
        return bytes.fromhex(self.item.sha256)


class Media(Redacted, frozen=True, kw_only=True, weakref=True):
    """The media of one conversation. Workers can fetch what was read while this object lives."""

    key: str = ""
    given: tuple[Medium, ...] = ()
    # Of each of `given`, once it is read; None for those that are omitted.
    read: tuple[ReadMedium | None, ...] = ()

    def omitted_from(self, text: str, indices: Sequence[int]) -> str:
        """Return a text with words in place of some media."""

        def words(mark: re.Match[str]) -> str:
            index, side = int(mark[1]), _SIDES.index(mark[2])
            if index not in indices:
                return mark[0]
            return "\n" * (side & 1) + omitted(self.given[index].type) + "\n" * (side >> 1)

        return self._marks.sub(words, text)

    def leading(self, text: str, forms: dict[MediaKind, MediaForm]) -> str:
        """Return a text with the media before it that a model only reads there."""
        first = list[Mark]()

        def take(mark: re.Match[str]) -> str:
            index, side = int(mark[1]), mark[2]
            kind = self.given[index].kind
            if kind is None or not forms[kind].leads:
                return mark[0]
            first.append(Mark(self.key, index))
            return "\n" if side == "b" else ""

        rest = self._marks.sub(take, text)
        return "".join([each.text(breaks_before=False, breaks_after=False) for each in first]) + rest

    def pieces(self, text: str) -> Iterator[tuple[str, ReadMedium | None]]:
        """Yield the text before each medium, and the medium; at last the rest."""
        start = 0
        for mark in self._marks.finditer(text):
            yield text[start : mark.start()], self.read[int(mark[1])]
            start = mark.end()
        yield text[start:], None

    def ids(self) -> Mapping[bytes, int]:
        """Return the token id that stands for each item, by its digest. Items never share one."""
        ids = dict[bytes, int]()
        for digest in dict.fromkeys(each.digest for each in self.read if each is not None):
            token_id = media_id(digest)
            while token_id in ids.values():  # a caller can find digests that begin alike
                token_id = MEDIA_IDS + (token_id + 1) % MEDIA_IDS
            ids[digest] = token_id
        return ids

    def spans(self, prompt: Sequence[int]) -> tuple[MediaSpan, ...]:
        """Return where the media stand in a prompt. In it they are runs of ids outside the vocabulary."""
        ids = self.ids()
        of_id = {ids[each.digest]: each for each in self.read if each is not None}
        spans, place = list[MediaSpan](), 0
        while place < len(prompt):
            if prompt[place] < MEDIA_IDS:
                place += 1
                continue
            found = of_id[prompt[place]]
            spans.append(MediaSpan(found.item.kind, found.digest, place, found.tokens))
            place += found.tokens
        return tuple(spans)

    @property
    def _marks(self) -> re.Pattern[str]:
        return re.compile(f"{self.key}([0-9]+)([{_SIDES}])")


NO_MEDIA = Media()


@dataclass(slots=True)
class MediaFound:
    """The media found while a body is read."""

    key: str = ""
    given: list[Medium] = field(default_factory=list)

    def mark(self, medium: Medium) -> Mark:
        """Add a medium, and return what stands for it."""
        self.key = self.key or secrets.token_hex(_KEY_BYTES)
        self.given.append(medium)
        return Mark(self.key, len(self.given) - 1)

    @property
    def media(self) -> Media:
        return Media(key=self.key, given=tuple(self.given)) if self.given else NO_MEDIA
