"""The start of a link: both ends prove that they know the fleet's secret, before either learns anything else.

    listener → dialer   Challenge: a nonce
    dialer → listener   Hello: version, worker, its queue, gateway, nonce, proof
    listener → dialer   Welcome: version, proof; or Unwelcome: the reason, for an authenticated peer alone

Of two versions, both peers speak the older one; a peer that no longer understands it refuses the link.

A proof is HMAC-SHA256 with the secret over its direction and the messages so far. As in SCRAM (RFC 5802), each proof
covers the other peer's nonce, so that it cannot be replayed. Confidentiality requires TLS (`tls.py`)."""

import hmac
import secrets

import msgspec

from fairlane.scheduler.links.frames import VERSION

# A release understands the one before it: raise this with VERSION, one behind it.
OLDEST_VERSION = 1
NONCE_BYTES = 32
_encoder = msgspec.msgpack.Encoder()


class LinkRefused(Exception):
    """The peer is not of this fleet, not the expected gateway, or of a release that cannot be understood."""


class Challenge(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The listener's first message."""

    nonce: bytes


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The dialer's answer."""

    version: int
    worker_id: str
    # Of the only jobs that this worker has.
    queue: str
    gateway_id: str
    nonce: bytes
    proof: bytes


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The listener's answer to a proven dialer."""

    version: int
    proof: bytes


class Unwelcome(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Why a proven dialer is not served."""

    reason: str


def challenge() -> Challenge:
    """Return a new challenge."""
    return Challenge(secrets.token_bytes(NONCE_BYTES))


def hello(secret: bytes, asked: Challenge, worker_id: str, queue: str, gateway_id: str) -> Hello:
    """Return the dialer's answer to a challenge."""
    nonce = secrets.token_bytes(NONCE_BYTES)
    proof = _proof(secret, "dialer", asked.nonce, VERSION, worker_id, queue, gateway_id, nonce)
    return Hello(VERSION, worker_id, queue, gateway_id, nonce, proof)


def answer(secret: bytes, asked: Challenge, said: Hello, gateway_id: str) -> Welcome | Unwelcome:
    """Return the listener's answer to a dialer. Raises LinkRefused for one that does not know the secret."""
    said_of_itself = said.version, said.worker_id, said.queue, said.gateway_id, said.nonce
    proof = _proof(secret, "dialer", asked.nonce, *said_of_itself)
    if not hmac.compare_digest(proof, said.proof):
        raise LinkRefused("the dialer does not know the fleet's secret")
    if said.gateway_id != gateway_id:
        return Unwelcome(f"this is not gateway {said.gateway_id}")
    if said.version < OLDEST_VERSION:
        return Unwelcome(f"link version {said.version} is too old: this gateway needs {OLDEST_VERSION} or later")
    version = min(said.version, VERSION)
    return Welcome(version, _proof(secret, "listener", asked.nonce, version, said.nonce, gateway_id))


def check(secret: bytes, asked: Challenge, said: Hello, told: Welcome | Unwelcome) -> int:
    """Return the link's version by the listener's answer to this dialer. Raises LinkRefused."""
    if isinstance(told, Unwelcome):
        raise LinkRefused(told.reason)
    proof = _proof(secret, "listener", asked.nonce, told.version, said.nonce, said.gateway_id)
    if not hmac.compare_digest(proof, told.proof):
        raise LinkRefused("the listener does not know the fleet's secret")
    if told.version < OLDEST_VERSION:
        raise LinkRefused(f"link version {told.version} is too old: this worker needs {OLDEST_VERSION} or later")
    return told.version


def _proof(secret: bytes, *said: object) -> bytes:
    return hmac.digest(secret, _encoder.encode(said), "sha256")
