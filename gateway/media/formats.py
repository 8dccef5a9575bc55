"""The formats of media, by their first bytes, and the pixels of images, by their headers. Nothing is decoded."""

import re
import struct
from collections.abc import Callable
from typing import Literal, NamedTuple

from fairlane.gateway.media.refusal import MediaRefused

Kind = Literal["image", "audio"]
Size = tuple[int, int]
# Segments before the pixels of a JPEG or GIF. Metadata of 20 MiB is 320 segments of a JPEG.
_MAX_SEGMENTS = 10_000
# Bytes between two segments of a JPEG, which decoders skip.
_MAX_JUNK = 1_024
_JPEG_MARKER = re.compile(rb"\xff[^\x00\xff]")
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# Markers without a length: TEM, RST0 to RST7 and SOI.
_JPEG_BARE = frozenset({0x01, *range(0xD0, 0xD9)})
_JPEG_SCAN, _JPEG_END = 0xDA, 0xD9


def _png(data: bytes) -> Size:
    length, name, width, height = struct.unpack_from(">I4sII", data, 8)
    if (length, name) != (13, b"IHDR"):
        raise ValueError
    return width, height


def _jpeg(data: bytes) -> Size:
    """Return the largest size of all frames before the first scan: decoders differ in which one they use."""
    width = height = at = 0
    for _ in range(_MAX_SEGMENTS):
        found = _JPEG_MARKER.search(data, at, at + _MAX_JUNK)
        if found is None:
            break
        at, marker = found.end(), data[found.end() - 1]
        if marker == _JPEG_SCAN:
            return width, height
        if marker == _JPEG_END:
            break
        if marker in _JPEG_BARE:
            continue
        (length,) = struct.unpack_from(">H", data, at)
        if length < 2:
            break
        if marker in _JPEG_FRAMES:
            rows, columns = struct.unpack_from(">HH", data, at + 3)
            width, height = max(width, columns), max(height, rows)
        at += length
    raise ValueError


def _gif(data: bytes) -> Size:
    """Return the size of the screen, extended to its first frame as decoders do."""
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    at = 13 + (3 << (flags & 7) + 1 if flags & 0x80 else 0)
    is_extension = False
    for _ in range(_MAX_SEGMENTS):
        block = data[at]
        if is_extension:
            at += 1 + block
            is_extension = block > 0
        elif block == 0x21:
            at += 2
            is_extension = True
        elif block == 0x2C:
            left, top, columns, rows = struct.unpack_from("<HHHH", data, at + 1)
            return max(width, left + columns), max(height, top + rows)
        else:
            break
    raise ValueError


def _webp(data: bytes) -> Size:
    match data[12:16]:
        case b"VP8X":
            low, high, last = struct.unpack_from("<HHH", data, 24)
            return 1 + (low | (high & 0xFF) << 16), 1 + (high >> 8 | last << 8)
        case b"VP8L":
            mark, bits = struct.unpack_from("<BI", data, 20)
            if mark == 0x2F:
                return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
        case b"VP8 ":
            mark, width, height = struct.unpack_from("<3sHH", data, 23)
            if mark == b"\x9d\x01\x2a":
                return width & 0x3FFF, height & 0x3FFF
    raise ValueError


class _Format(NamedTuple):
    start: re.Pattern[bytes]
    kind: Kind
    mime: str
    size: Callable[[bytes], Size] | None = None


_FORMATS = (
    _Format(re.compile(rb"\x89PNG\r\n\x1a\n"), "image", "image/png", _png),
    _Format(re.compile(rb"\xff\xd8\xff"), "image", "image/jpeg", _jpeg),
    _Format(re.compile(rb"RIFF....WEBP", re.DOTALL), "image", "image/webp", _webp),
    _Format(re.compile(rb"GIF8[79]a"), "image", "image/gif", _gif),
    _Format(re.compile(rb"RIFF....WAVE", re.DOTALL), "audio", "audio/wav"),
    # A tag, or the header of a frame of layer III with a valid bit rate.
    _Format(re.compile(rb"ID3|\xff[\xe2\xe3\xf2\xf3\xfa\xfb][\x00-\xef]"), "audio", "audio/mpeg"),
    _Format(re.compile(rb"fLaC"), "audio", "audio/flac"),
    _Format(re.compile(rb"OggS"), "audio", "audio/ogg"),
)
_NAMES = {"image": "a PNG, JPEG, WebP or GIF image", "audio": "a WAV, MP3, FLAC or Ogg sound"}


def format_of(data: bytes, kind: Kind | None, max_pixels: int) -> tuple[Kind, str]:
    """Return the kind and media type of `data`, which must be of `kind` if one is given. Raises MediaRefused."""
    for each in _FORMATS:
        if kind in (None, each.kind) and each.start.match(data):
            if each.size is not None:
                _check_size(each.size, data, max_pixels)
            return each.kind, each.mime
    raise MediaRefused(f"must be {_NAMES[kind] if kind else ' or '.join(_NAMES.values())}.")


def _check_size(size: Callable[[bytes], Size], data: bytes, max_pixels: int) -> None:
    try:
        width, height = size(data)
    except (ValueError, IndexError, struct.error):
        width = height = 0
    if not width or not height:
        raise MediaRefused("is not a complete image: its header has no size.")
    if width * height > max_pixels:
        raise MediaRefused(f"has {width} x {height} pixels; at most {max_pixels} are supported.")
