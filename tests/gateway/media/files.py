"""The headers of small media files, as encoders write them."""

import struct
import zlib


def png(width: int = 2, height: int = 3) -> bytes:
    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    rows = zlib.compress(b"\0" * 64)
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def segment(marker: int, body: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", 2 + len(body)) + body


def frame(width: int, height: int, marker: int = 0xC0) -> bytes:
    return segment(marker, struct.pack(">BHHB", 8, height, width, 1) + b"\x01\x11\x00")


SCAN = segment(0xDA, b"\x01\x01\x00\x00\x3f\x00") + b"\x12\x34\xff\xd9"


def jpeg(width: int = 2, height: int = 3, before: bytes = b"") -> bytes:
    exif = segment(0xE1, b"Exif\0\0" + b"\xff\xc0\0\x11\x08\xff\xff\xff\xff" * 9)  # a thumbnail's header
    return b"\xff\xd8" + exif + before + frame(width, height, 0xC2) + segment(0xC4, b"\0" * 20) + SCAN


def gif(width: int = 2, height: int = 3, first: tuple[int, int, int, int] = (0, 0, 2, 3)) -> bytes:
    screen = struct.pack("<HHBBB", width, height, 0x80, 0, 0) + b"\0" * 6
    loops = b"\x21\xff\x0bNETSCAPE2.0\x03\x01\x00\x00\x00"
    return b"GIF89a" + screen + loops + b"\x2c" + struct.pack("<HHHHB", *first, 0) + b"\x02\x02\x4c\x01\x00\x3b"


def riff(form: bytes, chunk: bytes, body: bytes) -> bytes:
    inner = form + chunk + struct.pack("<I", len(body)) + body
    return b"RIFF" + struct.pack("<I", len(inner)) + inner


def webp_lossy(width: int = 2, height: int = 3) -> bytes:
    return riff(b"WEBP", b"VP8 ", b"\x30\x01\x00\x9d\x01\x2a" + struct.pack("<HH", width, height) + b"\0" * 8)


def webp_lossless(width: int = 2, height: int = 3) -> bytes:
    return riff(b"WEBP", b"VP8L", b"\x2f" + struct.pack("<I", width - 1 | height - 1 << 14) + b"\0" * 8)


def webp_extended(width: int = 2, height: int = 3) -> bytes:
    sides = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return riff(b"WEBP", b"VP8X", b"\x10\0\0\0" + sides)


WAV = riff(b"WAVE", b"fmt ", b"\x01\0\x01\0" + b"\0" * 12)
MP3 = b"\xff\xfb\x90\x64" + b"\0" * 100
TAGGED_MP3 = b"ID3\x04\0\0\0\0\0\0" + MP3
FLAC = b"fLaC\0\0\0\x22" + b"\0" * 34
OGG = b"OggS\0\x02" + b"\0" * 22
