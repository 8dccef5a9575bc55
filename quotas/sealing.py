"""Contents that only the bearer of an API key can read, though others keep them.

The keys are derived from the API key (HKDF, RFC 5869), of which the store has a hash alone. The cipher is a stream of
SHAKE-256 over key, nonce and counter, then HMAC-SHA256 over what it gave: Python has both, where the usual AES-GCM
would need one more dependency for a few kilobytes a request.
"""

import hashlib
import hmac
import secrets
from collections.abc import Iterator

_VERSION = b"\x01"
_NONCE_BYTES = 16
_TAG_BYTES = 32
_CHUNK_BYTES = 65_536
_INFO = b"fairlane contents 1 "


class Seal:
    """Closes and opens what is kept for one API key."""

    __slots__ = ("_content_key", "_mark_key", "_tag_key")

    def __init__(self, api_key: str) -> None:
        """`api_key`: whole, with its secret; it is not kept."""
        drawn = hmac.digest(b"fairlane", api_key.encode(), "sha256")
        self._content_key, self._tag_key, self._mark_key = (
            hmac.digest(drawn, _INFO + purpose + b"\x01", "sha256") for purpose in (b"content", b"tag", b"mark")
        )

    def close(self, content: bytes, place: str) -> bytes:
        """What may be kept of it, at that place only."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        closed = _VERSION + nonce + self._streamed(content, nonce)
        return closed + self._tag(closed, place)

    def open(self, kept: bytes, place: str) -> bytes | None:
        """The content; None where it is another's, of another place, or was changed."""
        closed, tag = kept[:-_TAG_BYTES], kept[-_TAG_BYTES:]
        is_ours = closed.startswith(_VERSION) and len(closed) > _NONCE_BYTES
        if not is_ours or not hmac.compare_digest(tag, self._tag(closed, place)):
            return None
        nonce, hidden = closed[1 : 1 + _NONCE_BYTES], closed[1 + _NONCE_BYTES :]
        return self._streamed(hidden, nonce)

    def mark(self, digest: bytes) -> str:
        """By which a content is known again, and cannot be guessed at without the key."""
        return hmac.digest(self._mark_key, digest, "sha256").hex()

    def _streamed(self, content: bytes, nonce: bytes) -> bytes:
        return b"".join(self._chunks(content, nonce))

    def _chunks(self, content: bytes, nonce: bytes) -> Iterator[bytes]:
        for number, start in enumerate(range(0, len(content), _CHUNK_BYTES)):
            chunk = content[start : start + _CHUNK_BYTES]
            stream = hashlib.shake_256(self._content_key + nonce + number.to_bytes(8, "big")).digest(len(chunk))
            yield (int.from_bytes(chunk, "big") ^ int.from_bytes(stream, "big")).to_bytes(len(chunk), "big")

    def _tag(self, closed: bytes, place: str) -> bytes:
        at = place.encode()
        return hmac.digest(self._tag_key, len(at).to_bytes(8, "big") + at + closed, "sha256")

    def __repr__(self) -> str:
        return "Seal()"
