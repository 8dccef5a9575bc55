"""Seals of stored contents: AES-256-GCM with keys derived from a secret (HKDF, RFC 5869).

Contents of version 1, from before AES, are only opened: they are XORed with SHAKE-256 of key, nonce and chunk number,
and an HMAC covers them with their place."""

import hashlib
import hmac
import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_VERSION, _FIRST_VERSION = b"\x02", b"\x01"
_NONCE_BYTES, _FIRST_NONCE_BYTES = 12, 16
_TAG_BYTES = 32
_CHUNK_BYTES = 65_536


class Seal:
    """Encrypts and authenticates what is stored for one API key."""

    __slots__ = ("_cipher", "_drawn", "_mark_key")

    def __init__(self, api_key: str) -> None:
        """`api_key`: the whole key with its secret, which is not kept."""
        drawn = hmac.digest(b"fairlane", api_key.encode(), "sha256")
        self._drawn = drawn
        self._cipher = AESGCM(_derived(drawn, b"aes-256-gcm"))
        self._mark_key = _derived(drawn, b"mark")

    def close(self, content: bytes, place: str) -> bytes:
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return _VERSION + nonce + self._cipher.encrypt(nonce, content, place.encode())

    def open(self, kept: bytes, place: str) -> bytes | None:
        """Decrypt the content; None if it belongs to another key or place, or was changed."""
        if kept.startswith(_FIRST_VERSION):
            keys = {"content_key": _derived(self._drawn, b"content"), "tag_key": _derived(self._drawn, b"tag")}
            return _first_opened(kept, place, **keys)
        nonce, closed = kept[1 : 1 + _NONCE_BYTES], kept[1 + _NONCE_BYTES :]
        if not kept.startswith(_VERSION) or len(nonce) < _NONCE_BYTES:
            return None
        try:
            return self._cipher.decrypt(nonce, closed, place.encode())
        except InvalidTag:
            return None

    def mark(self, digest: bytes) -> str:
        """Return a keyed digest, which identifies a content but cannot confirm a guess without the key."""
        return hmac.digest(self._mark_key, digest, "sha256").hex()


def _derived(drawn: bytes, purpose: bytes) -> bytes:
    return hmac.digest(drawn, b"fairlane contents 1 " + purpose + b"\x01", "sha256")


def _first_opened(kept: bytes, place: str, *, content_key: bytes, tag_key: bytes) -> bytes | None:
    closed, tag, at = kept[:-_TAG_BYTES], kept[-_TAG_BYTES:], place.encode()
    right = hmac.digest(tag_key, len(at).to_bytes(8, "big") + at + closed, "sha256")
    if len(closed) <= _FIRST_NONCE_BYTES or not hmac.compare_digest(tag, right):
        return None
    nonce, hidden = closed[1 : 1 + _FIRST_NONCE_BYTES], closed[1 + _FIRST_NONCE_BYTES :]
    parts = []
    for number, start in enumerate(range(0, len(hidden), _CHUNK_BYTES)):
        chunk = hidden[start : start + _CHUNK_BYTES]
        stream = hashlib.shake_256(content_key + nonce + number.to_bytes(8, "big")).digest(len(chunk))
        parts.append((int.from_bytes(chunk, "big") ^ int.from_bytes(stream, "big")).to_bytes(len(chunk), "big"))
    return b"".join(parts)
