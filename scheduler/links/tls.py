"""Mutual TLS of links. Certificates are checked against the given authority alone; who the peer is, the handshake
proves, since gateways are dialled by addresses that no certificate names."""

import asyncio
import logging
import ssl
from pathlib import Path

from fairlane.common.settings_error import SettingsError
from fairlane.scheduler.protocol.settings import LinkTlsSettings

log = logging.getLogger(__name__)

# How often the files are looked at.
LOOK_S = 60.0


def listener_tls(settings: LinkTlsSettings) -> ssl.SSLContext | None:
    """Return the context of a gateway's listener; None without TLS. Raises SettingsError."""
    return _context(settings, ssl.PROTOCOL_TLS_SERVER)


def dialer_tls(settings: LinkTlsSettings) -> ssl.SSLContext | None:
    """Return the context of a worker's dialers; None without TLS. Raises SettingsError."""
    return _context(settings, ssl.PROTOCOL_TLS_CLIENT)


async def keep_fresh(context: ssl.SSLContext | None, settings: LinkTlsSettings) -> None:
    """Use renewed certificates for later links, until cancelled; return at once without TLS.

    The files may be replaced one by one: until they fit together, the context stays as it is. Authorities are added and
    never removed."""
    used = _written(settings)
    while context is not None:
        await asyncio.sleep(LOOK_S)
        found = _written(settings)
        if found == used:
            continue
        try:
            _context(settings, ssl.PROTOCOL_TLS_SERVER)
            _load(context, settings)
        except SettingsError as error:
            log.warning("the links' certificate is not renewed: %s", error)
        else:
            used = found
            log.info("the links' certificate is renewed")


def _written(settings: LinkTlsSettings) -> list[int]:
    files = (Path(name) for name in (settings.cert, settings.key, settings.ca))
    return [file.stat().st_mtime_ns if file.exists() else 0 for file in files]


def _context(settings: LinkTlsSettings, side: int) -> ssl.SSLContext | None:
    files = settings.cert, settings.key, settings.ca
    if not any(files):
        return None
    if not all(files):
        raise SettingsError("setting link_tls: needs cert, key and ca")
    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    _load(context, settings)
    return context


def _load(context: ssl.SSLContext, settings: LinkTlsSettings) -> None:
    try:
        context.load_cert_chain(settings.cert, settings.key)
        context.load_verify_locations(settings.ca)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"setting link_tls: {error.strerror or 'the files cannot be read'}") from None
