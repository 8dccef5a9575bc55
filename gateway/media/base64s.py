"""Media that a request contains: `data:` URLs and plain base64."""

import binascii

from fairlane.gateway.media.refusal import MediaRefused, too_large

_SCHEME = "data:"
# From the scheme to the data: a media type and its parameters.
_MAX_HEAD = 256
# Characters decoded at once: decoding holds the GIL.
_STEP = 64 * 1024
_URL_SAFE = bytes.maketrans(b"-_", b"+/")
_WHITESPACE = b" \t\r\n"


def is_data_url(text: str) -> bool:
    """Return whether a URL contains its data."""
    return text[: len(_SCHEME)].lower() == _SCHEME


def start_of_data(url: str) -> int:
    """Return where the data of a `data:` URL begins. Its media type does not count. Raises MediaRefused."""
    comma = url.find(",", 0, _MAX_HEAD)
    if comma < 0 or not url[:comma].lower().rstrip().endswith(";base64"):
        raise MediaRefused("must be `data:<type>;base64,<data>` if it is a `data:` URL.")
    return comma + 1


def most_decoded_bytes(text: str, start: int) -> int:
    """Return an upper bound of what `decode` returns."""
    return (len(text) - start + 3) // 4 * 3


def decode(text: str, start: int, max_bytes: int) -> bytes:
    """Decode strict base64 from `start` on, of either alphabet; whitespace and a missing end are tolerated.

    Raises MediaRefused."""
    decoded, rest = bytearray(), b""
    try:
        for at in range(start, len(text), _STEP):
            rest += text[at : at + _STEP].encode("ascii").translate(_URL_SAFE, _WHITESPACE)
            whole = max(len(rest) - 1, 0) // 4 * 4  # leaves the last characters, which may be padding
            if b"=" in rest[:whole]:
                raise ValueError
            decoded += binascii.a2b_base64(rest[:whole], strict_mode=True)
            if len(decoded) > max_bytes:
                raise too_large(max_bytes)
            rest = rest[whole:]
        decoded += binascii.a2b_base64(rest + b"=" * (-len(rest) % 4), strict_mode=True)
    except ValueError:
        raise MediaRefused("is not valid base64.") from None
    if len(decoded) > max_bytes:
        raise too_large(max_bytes)
    return bytes(decoded)
