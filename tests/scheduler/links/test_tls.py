"""Links over mutual TLS: certificates of the fleet's authority are accepted, all others are not."""

import asyncio
import datetime
import os
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fairlane.common.settings_error import SettingsError
from fairlane.scheduler.links import tls
from fairlane.scheduler.links.frames import Open, Opened
from fairlane.scheduler.links.tls import dialer_tls, listener_tls
from fairlane.scheduler.protocol.settings import LinkTlsSettings
from tests.scheduler.links.test_links import dialling, listening, until

pytestmark = pytest.mark.anyio


class Authority:
    """Signs certificates into a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder, self.key = folder, ec.generate_private_key(ec.SECP256R1())
        self.cert = self._signed(folder.name, self.key, is_ca=True)
        (folder / "ca.pem").write_bytes(self.cert.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str) -> LinkTlsSettings:
        key = ec.generate_private_key(ec.SECP256R1())
        cert, private = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        cert.write_bytes(self._signed(name, key, is_ca=False).public_bytes(serialization.Encoding.PEM))
        pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        private.write_bytes(key.private_bytes(pem, pkcs8, serialization.NoEncryption()))
        return LinkTlsSettings(cert=str(cert), key=str(private), ca=str(self.folder / "ca.pem"))

    def _signed(self, name: str, key: ec.EllipticCurvePrivateKey, *, is_ca: bool) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        issuer = subject if is_ca else self.cert.subject
        built = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        )
        return built.sign(self.key, hashes.SHA256())


async def test_a_link_runs_over_mutual_tls(tmp_path: Path) -> None:
    fleet = Authority(tmp_path / "fleet")
    ours, theirs = fleet.issue("gateway"), fleet.issue("worker")
    async with (
        listening(tls=listener_tls(ours)) as (_, gateway, address),
        dialling(address, tls=dialer_tls(theirs)) as (dialer, worker),
    ):
        await until(worker, lambda: worker.opened)
        dialer.send([Open(1, "job", 7)])
        await until(worker, lambda: worker.messages)

    assert (gateway.messages, worker.messages) == ([Open(1, "job", 7)], [Opened(1, 64, ((1, 2),))])


async def test_a_certificate_of_another_authority_opens_no_link(tmp_path: Path) -> None:
    fleet, other = Authority(tmp_path / "fleet"), Authority(tmp_path / "other")
    stranger = other.issue("worker")
    posing = LinkTlsSettings(cert=stranger.cert, key=stranger.key, ca=fleet.issue("worker").ca)
    async with (
        listening(tls=listener_tls(fleet.issue("gateway"))) as (opened, _, address),
        dialling(address, tls=dialer_tls(posing)) as (_, first),
        dialling(address) as (_, plain),
        dialling(address, tls=dialer_tls(fleet.issue("good"))) as (_, good),
    ):
        await until(good, lambda: good.opened)

    assert (first.opened, plain.opened, opened.refused) == (0, 0, 0)


async def test_a_renewed_certificate_is_used_for_later_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "LOOK_S", 0.01)
    fleet, later = Authority(tmp_path / "fleet"), Authority(tmp_path / "later")
    ours, renewed = fleet.issue("gateway"), later.issue("renewed")
    context = listener_tls(ours)
    renewing = asyncio.create_task(tls.keep_fresh(context, ours))
    async with listening(tls=context) as (_, _, address), dialling(address, tls=dialer_tls(renewed)) as (_, worker):
        for new, old in ((renewed.cert, ours.cert), (renewed.key, ours.key), (renewed.ca, ours.ca)):
            os.replace(new, old)
        await until(worker, lambda: worker.opened)
    renewing.cancel()


def test_settings_of_which_a_part_is_missing_or_unreadable_are_refused(tmp_path: Path) -> None:
    whole = Authority(tmp_path / "fleet").issue("gateway")
    with pytest.raises(SettingsError, match="needs cert, key and ca"):
        listener_tls(LinkTlsSettings(cert=whole.cert, key=whole.key))
    with pytest.raises(SettingsError, match="link_tls"):
        dialer_tls(LinkTlsSettings(cert=whole.cert, key=whole.ca, ca=whole.ca))
    assert listener_tls(LinkTlsSettings()) is None
