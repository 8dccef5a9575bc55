"""What a token has to be: each that is not is refused with its code, and nothing of it is told or logged."""

import hashlib
import hmac
import json
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlane.gateway.errors import ApiError
from fairlane.gateway.identity.tokens import LONGEST_TOKEN, Tokens, delegation_of
from fairlane.quotas.limits import Limits
from tests.support.gateway.issuer import ISSUER, RSA_KEY, Issuer, claims, encoded, issuing, jwk, token

pytestmark = pytest.mark.anyio

OTHER_KEY = rsa.generate_private_key(65537, 2048)
PUBLIC_PEM = RSA_KEY.public_key().public_bytes(
    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
)


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    async with issuing() as opened:
        yield opened


@pytest.fixture
def tokens(issuer: Issuer) -> Tokens:
    return Tokens([issuer.section()])


async def refused(tokens: Tokens, given: str) -> str:
    with pytest.raises(ApiError) as found:
        await tokens.delegation(given)
    assert found.value.__cause__ is None
    return found.value.code


def with_header(**header: object) -> str:
    """Signed by the right key over the header that it has."""
    return token(header=header)


def signed_as_hs256() -> str:
    """The public key, which everybody knows, as the secret."""
    body = f"{encoded({'alg': 'HS256', 'kid': 'one', 'typ': 'JWT'})}.{encoded(claims())}"
    return f"{body}.{encoded(hmac.digest(PUBLIC_PEM, body.encode(), hashlib.sha256))}"


def unsigned(**header: object) -> str:
    return f"{encoded({'alg': 'none', 'kid': 'one', **header})}.{encoded(claims())}."


def tampered() -> str:
    head, _, signature = token().split(".")
    return f"{head}.{encoded(claims(org='beta-org'))}.{signature}"


def now() -> int:
    return int(time.time())


DEEP = b"[" * 4_000 + b"]" * 4_000


def deep_beside_the_issuer() -> str:
    whole = json.dumps(claims()).encode()[:-1] + b', "x": ' + DEEP[3_000:5_000] + b"}"
    return f"{encoded({'alg': 'RS256', 'kid': 'one'})}.{encoded(whole)}.x"


REFUSED: dict[str, tuple[Any, str]] = {
    "forged with another key": (lambda: token(OTHER_KEY), "invalid_token"),
    "changed claims": (tampered, "invalid_token"),
    "no signature": (lambda: token().rpartition(".")[0] + ".", "invalid_token"),
    "alg none": (unsigned, "invalid_token"),
    "alg None": (lambda: unsigned(alg="None"), "invalid_token"),
    "no alg": (lambda: f"{encoded({'kid': 'one'})}.{encoded(claims())}.", "invalid_token"),
    "alg of no text": (lambda: unsigned(alg=["RS256"]), "invalid_token"),
    "HS256 with the public key": (signed_as_hs256, "invalid_token"),
    "an algorithm that is not listed": (lambda: token(algorithm="RS512"), "invalid_token"),
    "another algorithm of the same key": (lambda: token(algorithm="PS256"), "invalid_token"),
    "an algorithm of another kind of key": (lambda: unsigned(alg="ES256"), "unknown_signing_key"),
    "jku": (lambda: with_header(jku="https://evil.example/keys"), "invalid_token"),
    "x5u": (lambda: with_header(x5u="https://evil.example/chain"), "invalid_token"),
    "jwk": (lambda: token(OTHER_KEY, header={"jwk": jwk(OTHER_KEY, "one")}), "invalid_token"),
    "x5c": (lambda: with_header(x5c=["MII"]), "invalid_token"),
    "crit": (lambda: with_header(crit=["exp"]), "invalid_token"),
    "a token made to end a session": (lambda: with_header(typ="logout+jwt"), "invalid_token"),
    "typ of no text": (lambda: with_header(typ=["JWT"]), "invalid_token"),
    "unknown kid": (lambda: token(kid="two"), "unknown_signing_key"),
    "no kid": (lambda: token(kid=None), "invalid_token"),
    "endless kid": (lambda: token(kid="k" * 1_000), "invalid_token"),
    "expired": (lambda: token(exp=now() - 60), "token_expired"),
    "expired by more than the skew": (lambda: token(exp=now() - 32), "token_expired"),
    "not yet valid": (lambda: token(nbf=now() + 60), "token_not_yet_valid"),
    "issued in the future": (lambda: token(iat=now() + 60), "token_not_yet_valid"),
    "no end": (lambda: token(exp=None), "invalid_token"),
    "an end that is no number": (lambda: token(exp=float("inf")), "invalid_token"),
    "an end that is a text": (lambda: token(exp="tomorrow"), "invalid_token"),
    "another audience": (lambda: token(aud="payroll"), "wrong_audience"),
    "an audience of part of the name": (lambda: token(aud="fair"), "wrong_audience"),
    "no audience": (lambda: token(aud=None), "invalid_token"),
    "another issuer": (lambda: token(iss="https://evil.example/"), "invalid_token"),
    "nearly the issuer": (lambda: token(iss=ISSUER.rstrip("/")), "invalid_token"),
    "no issuer": (lambda: token(iss=None), "invalid_token"),
    "an issuer that is a list": (lambda: token(iss=[ISSUER]), "invalid_token"),
    "a subject that is no text": (lambda: token(sub={"a": 1}), "invalid_token"),
    "a tenant that is not listed": (lambda: token(org="beta-org"), "tenant_not_allowed"),
    "a tenant by its id": (lambda: token(org="acme"), "tenant_not_allowed"),
    "no tenant": (lambda: token(org=None), "tenant_not_allowed"),
    "a tenant that is an object": (lambda: token(org={"acme-org": 1}), "tenant_not_allowed"),
    "huge": (lambda: token(filler="x" * LONGEST_TOKEN), "invalid_token"),
    "huge header": (lambda: with_header(filler="x" * 3_000), "invalid_token"),
    "deep header": (lambda: f"{encoded(DEEP[:600] + DEEP[-600:])}.{encoded(claims())}.x", "invalid_token"),
    "deep claims": (lambda: f"{encoded({'alg': 'RS256', 'kid': 'one'})}.{encoded(DEEP)}.x", "invalid_token"),
    "deep claims beside the issuer": (deep_beside_the_issuer, "invalid_token"),
    "five parts": (lambda: token() + ".x.y", "invalid_token"),
    "no JSON": (lambda: "a.b.c", "invalid_token"),
    "dots alone": (lambda: "..", "invalid_token"),
    "a header that is a list": (lambda: f"{encoded([])}.{encoded(claims())}.x", "invalid_token"),
    "claims that are a list": (lambda: f"{encoded({'alg': 'RS256', 'kid': 'one'})}.{encoded([])}.x", "invalid_token"),
}


async def test_a_token_that_is_not_yet_valid_says_when_it_will_be(tokens: Tokens) -> None:
    with pytest.raises(ApiError) as found:
        await tokens.delegation(token(nbf=int(time.time()) + 95))

    assert found.value.code == "token_not_yet_valid"
    assert found.value.retry_after_s == pytest.approx(65, abs=5)


@pytest.mark.parametrize("case", REFUSED)
async def test_what_is_no_valid_token_is_refused_with_its_code_and_never_logged(
    case: str, tokens: Tokens, issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    make, code = REFUSED[case]
    given = make()

    assert await refused(tokens, given) == code
    parts = [part for part in given.split(".") if len(part) > 8]
    assert not any(part in caplog.text for part in [*parts, "acme-org", "evil.example"])
    assert issuer.asked <= 1


async def test_a_valid_token_is_of_the_tenant_that_its_claim_is_listed_for(tokens: Tokens) -> None:
    found = await tokens.delegation(token())

    assert (found.tenant, found.via, found.limits) == ("acme", "issuer:login", Limits())


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [
        (RSA_KEY, "RS256"),
        (RSA_KEY, "PS384"),
        (ec.generate_private_key(ec.SECP256R1()), "ES256"),
        (ec.generate_private_key(ec.SECP521R1()), "ES512"),
        (ed25519.Ed25519PrivateKey.generate(), "EdDSA"),
    ],
)
async def test_every_kind_of_key_is_taken_that_the_settings_list(issuer: Issuer, key: Any, algorithm: str) -> None:
    issuer.keys = [jwk(key, "one")]

    found = await Tokens([issuer.section(algorithms=[algorithm])]).delegation(token(key, algorithm=algorithm))

    assert found.tenant == "acme"


@pytest.mark.parametrize("changed", [{"exp": -20}, {"nbf": 20}, {"iat": 20}])
async def test_clocks_may_be_apart_by_the_skew_that_is_set(tokens: Tokens, changed: dict[str, int]) -> None:
    moved: dict[str, Any] = {name: now() + by for name, by in changed.items()}

    assert (await tokens.delegation(token(**moved))).tenant == "acme"


async def test_without_skew_a_token_ends_on_the_second(issuer: Issuer) -> None:
    assert await refused(Tokens([issuer.section(leeway_s=0.0)]), token(exp=now() - 1)) == "token_expired"


async def test_a_token_of_one_issuer_never_passes_for_anothers(issuer: Issuer) -> None:
    """Both publish a key of the same id."""
    async with issuing() as other:
        other.keys = [jwk(OTHER_KEY, "one")]
        section = other.section(name="other", issuer="https://other.example/", tenants={"acme-org": "beta"})
        both = Tokens([issuer.section(), section])

        assert (await both.delegation(token(OTHER_KEY, iss="https://other.example/"))).tenant == "beta"
        assert await refused(both, token(OTHER_KEY)) == "invalid_token"
        assert await refused(both, token(iss="https://other.example/")) == "invalid_token"


async def test_the_first_listed_group_that_a_token_has_is_its_own(issuer: Issuer) -> None:
    groups = [
        {"group": "interns", "limits": {"tokens_per_minute": 10}},
        {"group": "research", "limits": {"tokens_per_minute": 99}, "scopes": {"models": ["tiny"]}},
    ]
    tokens = Tokens([issuer.section(groups=groups, groups_claim=["realm", "roles"])])

    both = await tokens.delegation(token(realm={"roles": ["research", "interns", 7]}))
    one = await tokens.delegation(token(realm={"roles": "research"}))

    assert (both.via, both.limits) == ("issuer:login/interns", Limits(tokens_per_minute=10))
    assert (one.via, one.scopes.models) == ("issuer:login/research", ("tiny",))
    assert both.key_id != one.key_id
    for none in ({"realm": {"roles": ["Research"]}}, {"realm": "research"}, {}):
        assert await refused(tokens, token(**none)) == "tenant_not_allowed"


def test_a_token_of_two_tenants_is_of_none() -> None:
    section = Issuer("https://login.example.com/keys").section(tenants={"a": "acme", "b": "beta", "also-a": "acme"})

    assert delegation_of({"org": ["a", "also-a", "other"]}, section).tenant == "acme"
    with pytest.raises(ApiError):
        delegation_of({"org": ["a", "b"]}, section)


@settings(deadline=None)
@given(st.text(alphabet=st.characters(codec="ascii", exclude_characters="."), max_size=80), st.integers(0, 4))
async def test_no_text_that_looks_like_a_token_breaks_anything(text: str, dots: int) -> None:
    section = Issuer("https://login.example.com/keys").section()
    for given_token in (
        text + "." * dots,
        ".".join([text] * (dots + 1)),
        f"{encoded(text)}.{encoded({'iss': text})}.{text}",
    ):
        assert await refused(Tokens([section]), given_token) == "invalid_token"
