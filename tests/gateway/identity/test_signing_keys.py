"""An issuer's keys: rotated, unknown, away, wrong; and how rarely the issuer is asked."""

import asyncio
import gzip
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from fairlane.gateway.errors import ApiError
from fairlane.gateway.identity import signing_keys
from fairlane.gateway.identity.settings import Algorithm
from fairlane.gateway.identity.signing_keys import (
    MOST_BYTES,
    MOST_KEYS,
    UNKNOWN_EVERY_S,
    AnswerRefused,
    SigningKeys,
    decode_keys,
    fits,
)
from tests.support.gateway.issuer import RSA_KEY, Issuer, issuing, jwk

pytestmark = pytest.mark.anyio

OTHER_KEY = rsa.generate_private_key(65537, 2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())


class HandClock:
    """Time as a test tells it."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    async with issuing() as opened:
        yield opened


async def code(keys: SigningKeys, kid: str) -> str:
    try:
        await keys.of(kid, "RS256")
    except ApiError as error:
        return error.code
    return "known"


async def test_a_known_key_asks_nobody(issuer: Issuer) -> None:
    keys = SigningKeys(issuer.section(), clock=HandClock())
    assert await code(keys, "one") == "known"
    issuer.status = 500

    assert [await code(keys, "one") for _ in range(3)] == ["known"] * 3
    assert issuer.asked == 1


async def test_a_rotated_key_is_found_and_the_old_one_is_refused(issuer: Issuer) -> None:
    clock = HandClock()
    keys = SigningKeys(issuer.section(), clock=clock)
    assert await code(keys, "one") == "known"
    issuer.keys = [jwk(OTHER_KEY, "two")]
    clock.now_s += UNKNOWN_EVERY_S

    assert await code(keys, "two") == "known"
    assert await code(keys, "one") == "unknown_signing_key"


async def test_unknown_keys_are_looked_for_at_most_once_a_minute(issuer: Issuer) -> None:
    clock = HandClock()
    keys = SigningKeys(issuer.section(), clock=clock)
    clock.now_s = 1_000.0
    assert await code(keys, "invented") == "unknown_signing_key"
    for seconds in range(1, int(UNKNOWN_EVERY_S)):
        clock.now_s = 1_000.0 + seconds
        assert await code(keys, f"invented-{seconds}") == "issuer_unavailable"
    assert issuer.asked == 1

    clock.now_s += 1
    assert await code(keys, "invented") == "unknown_signing_key"
    assert issuer.asked == 2


async def test_a_key_that_is_new_while_no_fetch_may_be_made_is_to_be_tried_again(issuer: Issuer) -> None:
    clock = HandClock()
    keys = SigningKeys(issuer.section(), clock=clock)
    assert await code(keys, "invented") == "unknown_signing_key"
    clock.now_s += 20

    with pytest.raises(ApiError) as refused:
        await keys.of("new", "RS256")

    assert (refused.value.code, refused.value.status) == ("issuer_unavailable", 503)
    assert refused.value.retry_after_s == pytest.approx(UNKNOWN_EVERY_S - 20)


async def test_who_asks_at_the_same_time_shares_one_fetch_and_may_leave(issuer: Issuer) -> None:
    keys = SigningKeys(issuer.section(), clock=HandClock())
    gone, *others = [asyncio.create_task(code(keys, "one")) for _ in range(20)]
    await asyncio.sleep(0)

    gone.cancel()

    assert await asyncio.gather(*others) == ["known"] * 19
    assert issuer.asked == 1


async def test_an_issuer_that_is_away_keeps_its_keys_until_they_are_stale(
    issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    clock = HandClock()
    keys = SigningKeys(issuer.section(stale_s=3_600.0), clock=clock)
    assert await code(keys, "one") == "known"
    issuer.status = 503

    for _ in range(3):
        clock.now_s += 600
        assert await code(keys, "one") == "known"
        assert await code(keys, "two") == "issuer_unavailable"
    assert caplog.text.count("cannot be read") == 1

    clock.now_s += 3_600
    assert await code(keys, "one") == "issuer_unavailable"
    issuer.status = 200
    clock.now_s += UNKNOWN_EVERY_S
    assert await code(keys, "one") == "known"


async def test_an_issuer_that_was_never_heard_is_unavailable(issuer: Issuer) -> None:
    issuer.status = 500

    assert await code(SigningKeys(issuer.section(), clock=HandClock()), "one") == "issuer_unavailable"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"keys": {}}',
        b'{"keys": []}',
        b'{"keys": [null, 7, {"kid": 1}]}',
        b"[" * 10_000,
        b" " * (MOST_BYTES + 1),
        json.dumps({"keys": [{"kid": str(kid)} for kid in range(MOST_KEYS + 1)]}).encode(),
        json.dumps({"keys": [{"kid": "one", "kty": "RSA", "n": "!", "e": "AQAB"}]}).encode(),
        json.dumps({"keys": [{"kid": "one", "kty": "oct", "k": "c2VjcmV0", "alg": "HS256"}]}).encode(),
    ],
)
async def test_what_is_no_usable_key_set_leaves_the_keys_as_they_were(issuer: Issuer, body: bytes) -> None:
    clock = HandClock()
    keys = SigningKeys(issuer.section(), clock=clock)
    assert await code(keys, "one") == "known"
    issuer.body = body
    clock.now_s += UNKNOWN_EVERY_S

    assert await code(keys, "two") == "issuer_unavailable"
    assert await code(keys, "one") == "known"


async def test_what_is_packed_is_not_unpacked(issuer: Issuer) -> None:
    issuer.body = gzip.compress(json.dumps({"keys": issuer.keys}).encode())
    issuer.headers = ["content-encoding: gzip"]

    assert await code(SigningKeys(issuer.section(), clock=HandClock()), "one") == "issuer_unavailable"


async def test_a_redirection_is_not_followed(issuer: Issuer) -> None:
    issuer.status = 302

    assert await code(SigningKeys(issuer.section(), clock=HandClock()), "one") == "issuer_unavailable"
    assert issuer.asked == 1


async def test_a_silent_issuer_holds_nobody_for_long(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signing_keys, "FETCH_TIMEOUT_S", 0.2)
    issuer.silent = True

    assert await code(SigningKeys(issuer.section(), clock=HandClock()), "one") == "issuer_unavailable"


async def test_keys_are_read_again_without_a_request(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signing_keys, "FIRST_RETRY_S", 0.01)
    issuer.status = 500
    keys = SigningKeys(issuer.section())
    running = asyncio.create_task(keys.run())
    async with asyncio.timeout(20):
        while issuer.asked < 2:  # noqa: ASYNC110 - polled: the issuer has no event of its own
            await asyncio.sleep(0.005)
        issuer.status = 200
        while await code(keys, "one") != "known":  # noqa: ASYNC110 - the same
            await asyncio.sleep(0.005)
    running.cancel()


def fitting(key: dict[str, Any], algorithm: Algorithm = "RS256") -> bool:
    return fits(key, algorithm)


def test_a_key_serves_the_algorithms_of_its_kind_alone() -> None:
    published = jwk(RSA_KEY, "one")

    assert fitting(published)
    assert fitting(published, "PS512")
    assert not fitting(published, "ES256")
    assert not fitting({**published, "alg": "RS512"})
    assert not fitting({**published, "use": "enc"})
    assert not fitting({**published, "key_ops": ["encrypt"]})
    assert not fitting({**published, "d": "its private half"})
    assert fitting(jwk(EC_KEY, "two"), "ES256")
    assert not fitting(jwk(EC_KEY, "two"), "ES384")
    assert not fitting({"kty": "oct", "k": "c2VjcmV0"})


def test_a_key_that_can_be_forged_is_passed_over() -> None:
    weak = rsa.generate_private_key(65537, 1024)  # noqa: S505 - to be refused
    both = json.dumps({"keys": [jwk(weak, "weak"), jwk(RSA_KEY, "one")]}).encode()

    assert list(decode_keys(both, ("RS256",))) == [("one", "RS256")]
    with pytest.raises(AnswerRefused):
        decode_keys(json.dumps({"keys": [jwk(weak, "weak")]}).encode(), ("RS256",))


def test_of_two_keys_of_one_id_the_first_counts() -> None:
    both = json.dumps({"keys": [jwk(RSA_KEY, "one"), jwk(EC_KEY, "one"), jwk(OTHER_KEY, "one")]}).encode()

    found = decode_keys(both, ("RS256", "ES256"))

    assert set(found) == {("one", "RS256"), ("one", "ES256")}
    assert found["one", "RS256"].key.public_numbers() == RSA_KEY.public_key().public_numbers()


async def test_what_is_logged_of_a_failure_holds_nothing_of_the_answer(
    issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    issuer.body = b'{"keys": [{"kid": "telling", "kty": "RSA", "n": "telling", "e": "AQAB"}]}'

    assert await code(SigningKeys(issuer.section(), clock=HandClock()), "one") == "issuer_unavailable"
    assert "telling" not in caplog.text
