"""The seal of contents that releases before AES-256-GCM have stored; only opened, never written.

The content is XORed with SHAKE-256 of key, nonce and chunk number; an HMAC covers it with its place."""

import hashlib
import hmac

VERSION = b"\x01"
_NONCE_BYTES = 16
_TAG_BYTES = 32
_CHUNK_BYTES = 65_536


def opened(kept: bytes, place: str, *, content_key: bytes, tag_key: bytes) -> bytes | None:
    """Decrypt the content; None if it belongs to another key or place, or was changed."""
    closed, tag, at = kept[:-_TAG_BYTES], kept[-_TAG_BYTES:], place.encode()
    right = hmac.digest(tag_key, len(at).to_bytes(8, "big") + at + closed, "sha256")
    if len(closed) <= _NONCE_BYTES or not hmac.compare_digest(tag, right):
        return None
    nonce, hidden = closed[1 : 1 + _NONCE_BYTES], closed[1 + _NONCE_BYTES :]
    parts = []
    for number, start in enumerate(range(0, len(hidden), _CHUNK_BYTES)):
        chunk = hidden[start : start + _CHUNK_BYTES]
        stream = hashlib.shake_256(content_key + nonce + number.to_bytes(8, "big")).digest(len(chunk))
        parts.append((int.from_bytes(chunk, "big") ^ int.from_bytes(stream, "big")).to_bytes(len(chunk), "big"))
    return b"".join(parts)
