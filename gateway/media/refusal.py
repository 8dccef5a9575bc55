"""The reason why media are not read."""


class MediaRefused(Exception):
    """Media that are not read. The message continues a sentence that begins with the name of the caller's field. It
    contains no content, URL, host or address."""


def too_large(max_bytes: int) -> MediaRefused:
    """Return the refusal of media above the bound of `gateway.max_media_bytes`."""
    return MediaRefused(f"is larger than {max_bytes} bytes.")
