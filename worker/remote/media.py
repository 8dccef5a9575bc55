"""Images and sounds at vLLM: how they stand in its prompts, which it is probed for, and how requests carry them.

A request has one token in the place of each item, its target. vLLM replaces it by the item's own tokens, and reports
the whole prompt, which is checked: the tokens that were measured and charged are those that it computes."""

import base64
import hashlib
import hmac
import logging
import math
import struct
import time
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from fairlane.scheduler.protocol import engine_priority
from fairlane.scheduler.protocol.media import DIGEST_BYTES, MediaForm, MediaKind, MediaSpan
from fairlane.scheduler.protocol.messages import Sampling
from fairlane.worker.remote.api import GenerationRequest, MediaItem, Piece, ProtocolViolation, Refused
from fairlane.worker.remote.http import UNKNOWN, BadStatus, Http, decode_chunk

log = logging.getLogger(__name__)

RENDER, TOKENIZE = "/v1/chat/completions/render", "/tokenize"
# Names of targets in known vocabularies. Most others are among the tokens that an item becomes.
NAMES: Mapping[MediaKind, Sequence[str]] = {
    "image": ("<image>", "<|image|>", "<|image_pad|>", "[IMG]", "<start_of_image>", "<IMG_CONTEXT>", "<|media_pad|>"),
    "audio": (
        "<audio>",
        "<|audio|>",
        "<|AUDIO|>",
        "[AUDIO]",
        "<|audio_pad|>",
        "<start_of_audio>",
        "<audio_soft_token>",
    ),
}
# Each is tried with a generation of one token.
MOST_CANDIDATES = 16
_TEXT = {"type": "text", "text": "A"}


class _Range(msgspec.Struct):
    offset: int
    length: int


_Ranges = dict[str, list[_Range]]


class _Features(msgspec.Struct):
    mm_placeholders: _Ranges = {}


class _Rendered(msgspec.Struct):
    token_ids: list[int]
    features: _Features | None = None

    @property
    def places(self) -> list[tuple[int, int]]:
        return _places(self.features.mm_placeholders if self.features is not None else None)


class _Tokens(msgspec.Struct):
    tokens: list[int]


class Expansion(msgspec.Struct):
    """The part of a reply that has the prompt as vLLM computes it."""

    prompt_token_ids: list[int] | None = None
    mm_placeholders: _Ranges | None = None


class Placing(NamedTuple):
    """How one kind stands in prompts, and the token that vLLM replaces by an item."""

    form: MediaForm
    target: int


Expand = Callable[[GenerationRequest, Mapping[MediaKind, int]], Awaitable[Expansion]]
_expansion = msgspec.json.Decoder(Expansion)


class _NotServed(Exception):
    """The model takes this kind, but not in a way in which a gateway could place it."""


# Requests.


def fields(request: GenerationRequest, targets: Mapping[MediaKind, int]) -> dict[str, Any]:
    """Return the fields of a request's body that carry its media. Raises Refused for a kind without a target."""
    token_ids, parts, at = list[int](), [], 0
    for item in request.media:
        span = item.span
        if span.kind not in targets:
            raise Refused(f"the engine takes no {span.kind}")
        token_ids += [*request.token_ids[at : span.offset], targets[span.kind]]
        at = span.offset + span.length
        url, key = _data_url(span.kind, item.data), _cache_key(request.cache_salt, span)
        parts.append({"type": f"{span.kind}_url", "url": url, "uuid": key})
    token_ids += request.token_ids[at:]
    return {"token_ids": token_ids, "content_parts": parts, "return_token_ids": True}


def check(request: GenerationRequest, found: Expansion) -> list[int]:
    """Return the prompt as vLLM computes it. Raises ProtocolViolation if it is not the request's."""
    ids, places = found.prompt_token_ids or [], [(item.span.offset, item.span.length) for item in request.media]
    is_alike = len(ids) == len(request.token_ids) and _places(found.mm_placeholders) == places
    if not (is_alike and _without(ids, places) == _without(request.token_ids, places)):
        raise ProtocolViolation("the engine reads the media as other tokens than were measured")
    return ids


def checking(request: GenerationRequest, read: Callable[[bytes], Piece]) -> Callable[[bytes], Piece]:
    """Return `read` with a check of the first chunk, which has the prompt."""
    is_due = bool(request.media)

    def checked(line: bytes) -> Piece:
        nonlocal is_due
        piece = read(line)
        if is_due:
            check(request, decode_chunk(_expansion, line))
            is_due = False
        return piece

    return checked


async def measure(http: Http, model: str | None, kind: MediaKind, data: bytes) -> int:
    """Return the number of tokens of an item, 0 if vLLM cannot read it. No model computes anything for this."""
    try:
        places = (await _render(http, model, [_part(kind, data), _TEXT])).places
    except Refused:
        return 0
    return places[0][1] if len(places) == 1 else 0


def _places(ranges: _Ranges | None) -> list[tuple[int, int]]:
    return sorted((one.offset, one.length) for each in (ranges or {}).values() for one in each)


def _without(token_ids: Sequence[int], places: Sequence[tuple[int, int]]) -> list[int]:
    kept, at = list[int](), 0
    for offset, length in places:
        kept += token_ids[at:offset]
        at = offset + length
    return [*kept, *token_ids[at:]]


def _cache_key(salt: str, span: MediaSpan) -> str:
    # vLLM's caches of processed and of encoded items have it as their key: tenants must not share them.
    return hmac.new(salt.encode(), f"{span.kind} ".encode() + span.digest, hashlib.sha256).hexdigest()


def _data_url(kind: MediaKind, data: bytes) -> str:
    # vLLM reads the format from the content.
    return f"data:{'image/png' if kind == 'image' else 'audio/wav'};base64,{base64.b64encode(data).decode()}"


def _part(kind: MediaKind, data: bytes) -> dict[str, Any]:
    return {"type": f"{kind}_url", f"{kind}_url": {"url": _data_url(kind, data)}}


async def _render(http: Http, model: str | None, content: Sequence[Mapping[str, Any]]) -> _Rendered:
    message = {"role": "user", "content": content}
    return await http.answer(RENDER, {"model": model, "messages": [message], "mm_payload": "none"}, _Rendered)


# The probe.


async def find(http: Http, model: str | None, expand: Expand) -> dict[MediaKind, Placing]:
    """Return the kinds that a model takes. Raises EngineUnavailable."""
    found: dict[MediaKind, Placing] = {}
    samples: Mapping[MediaKind, bytes] = {"image": _png(), "audio": _wav()}
    for kind, sample in samples.items():
        why = ""
        try:
            found[kind] = await _placing(http, model, kind, sample, expand)
        except Refused:  # by a model that takes text alone
            continue
        except (_NotServed, ProtocolViolation) as error:
            why = str(error)
        except BadStatus as error:
            why = "" if error.status in UNKNOWN else str(error)
        if why:
            log.warning("the model's %s input is not served: %s", kind, why)
    return found


async def _placing(http: Http, model: str | None, kind: MediaKind, sample: bytes, expand: Expand) -> Placing:
    item = _part(kind, sample)
    leading = await _render(http, model, [item, _TEXT])
    trailing, plain = await _render(http, model, [_TEXT, item]), await _render(http, model, [_TEXT])
    try:
        twice = (await _render(http, model, [item, item, _TEXT])).token_ids
    except Refused:  # one item at most in a prompt
        twice = None
    form = form_of(plain.token_ids, leading, trailing, twice)
    named = [(await http.answer(TOKENIZE, _spelt(model, name), _Tokens)).tokens for name in NAMES[kind]]
    known = [tokens[0] for tokens in named if len(tokens) == 1]
    offset, length = leading.places[0]
    inside = dict.fromkeys(leading.token_ids[offset : offset + length])
    candidates = dict.fromkeys([*(token for token in known if token in inside), *inside, *known])
    for target in [*candidates][:MOST_CANDIDATES]:
        if await _becomes(kind, sample, target, leading, expand):
            return Placing(form, target)
    raise _NotServed("no token that stands for an item was found")


async def _becomes(kind: MediaKind, sample: bytes, target: int, rendered: _Rendered, expand: Expand) -> bool:
    """Return whether vLLM puts the item's tokens in the place of this one.

    Each try has another cache key: vLLM believes to have cached an item whose request has failed."""
    (offset, length), trial = rendered.places[0], f"trial-{kind}-{target}-{time.time_ns()}"
    span = MediaSpan(kind, bytes(DIGEST_BYTES), offset, length)
    request = GenerationRequest(
        request_id=trial,
        token_ids=rendered.token_ids,
        max_tokens=1,
        sampling=Sampling(temperature=0.0),
        priority=engine_priority.encode(0, 0.0, guaranteed=True),
        cache_salt=trial,
        media=[MediaItem(span, sample)],
    )
    try:
        return check(request, await expand(request, {kind: target})) == rendered.token_ids
    except (BadStatus, Refused, ProtocolViolation):
        return False


def form_of(plain: list[int], leading: _Rendered, trailing: _Rendered, twice: list[int] | None) -> MediaForm:
    """Derive a form from the prompts of a text, of an item and a text, of a text and an item, and of two items and a
    text. Raises _NotServed."""
    if not (len(leading.places) == len(trailing.places) == 1):
        raise _NotServed("an item is not one range of its prompt")
    ids, (offset, length) = leading.token_ids, leading.places[0]
    head = next((at for at, token in enumerate(plain[:offset]) if token != ids[at]), min(offset, len(plain)))
    until = len(ids) - (len(plain) - head)
    # The first token of the text may differ, because some tokenizers mark words by what precedes them.
    if until < offset + length or ids[until + 1 :] != plain[head + 1 :]:
        raise _NotServed("the chat template changes the text next to an item")
    item, text = ids[head:until], ids[until:]
    if twice is not None and twice != [*ids[:head], *item, *item, *text]:
        raise _NotServed("the chat template shows two items in another way than one")
    start = trailing.places[0][0] - (offset - head)
    follows = start > head and trailing.token_ids == [*plain[:start], *item, *plain[start:]]
    return MediaForm(before=tuple(ids[head:offset]), after=tuple(ids[offset + length : until]), leads=not follows)


def _spelt(model: str | None, name: str) -> dict[str, Any]:
    return {"model": model, "prompt": name, "add_special_tokens": False}


def _png(width: int = 96, height: int = 64) -> bytes:
    rows = b"".join(
        b"\0" + b"".join(bytes((x * 255 // width, y * 255 // height, 128)) for x in range(width)) for y in range(height)
    )
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )


def _wav(rate: int = 16_000) -> bytes:
    tone = [int(8_000 * math.sin(2 * math.pi * 440 * at / rate)) for at in range(rate)]
    samples = struct.pack(f"<{rate}h", *tone)
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16)
    body = b"WAVE" + form + struct.pack("<4sI", b"data", len(samples)) + samples
    return struct.pack("<4sI", b"RIFF", len(body)) + body
