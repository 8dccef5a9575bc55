"""Keys to callers: what is refused, what is remembered, and the operators' own key."""

import asyncio
import tracemalloc
from dataclasses import dataclass, field
from typing import Any

import pytest

from fairlane.gateway.errors import ApiError
from fairlane.gateway.identity.auth import MEMORY_S, Authenticator, check
from fairlane.gateway.identity.credentials import CredentialReader, bearer
from fairlane.quotas.api_keys import ApiKey, Identity, Scopes
from fairlane.quotas.tenants import Tenant
from fairlane.store.errors import StoreUnavailable

pytestmark = pytest.mark.anyio


def scope(key: str = "fl-good", *, path: str = "/v1/models", client: str = "10.0.0.7") -> dict[str, Any]:
    return {"headers": [(b"authorization", f"Bearer {key}".encode())], "path": path, "client": (client, 1)}


@dataclass
class HandKeys:
    """The keys that a test says there are, and how often they were asked for."""

    known: dict[str, Identity] = field(default_factory=dict)
    asked: int = 0
    fails: bool = False

    async def lookup(self, full_key: str) -> Identity | None:
        self.asked += 1
        await asyncio.sleep(0)
        if self.fails:
            raise StoreUnavailable("away")
        return self.known.get(full_key)


def identity(scopes: Scopes | None = None, **tenant: Any) -> Identity:
    key = ApiKey(id="public", tenant="acme", created_at=0.0, scopes=scopes or Scopes())
    return Identity(Tenant(id="acme", root="acme", **tenant), key)


async def refusal(authenticator: Authenticator, asked: dict[str, Any]) -> str:
    with pytest.raises(ApiError) as refused:
        check(await authenticator.identify(asked), asked)
    return refused.value.code


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"authorization", b"")],
        [(b"authorization", b"Bearer")],
        [(b"authorization", b"Bearer ")],
        [(b"authorization", b"Basic fl-good")],
        [(b"authorization", b"fl-good")],
        [(b"authorization", b"Bearer fl-good"), (b"authorization", b"Bearer fl-good")],
        [(b"authorization", b"Bearer fl-g\xfcd")],
        [(b"authorization", b"Bearer " + b"x" * 1_000)],
    ],
)
async def test_what_is_no_bearer_key_is_refused_without_asking_the_store(headers: list[tuple[bytes, bytes]]) -> None:
    keys = HandKeys({"fl-good": identity()})

    assert await refusal(Authenticator(keys), {**scope(), "headers": headers}) == "invalid_api_key"
    assert keys.asked == 0


@pytest.mark.parametrize(
    "headers",
    [
        [(b"x-api-key", b"")],
        [(b"x-api-key", b"fl-good"), (b"x-api-key", b"fl-good")],
        [(b"x-api-key", b"fl-g\xfcd")],
        [(b"x-api-key", b"x" * 1_000)],
        [(b"x-api-key", b"fl-good"), (b"authorization", b"Basic fl-good")],
        [(b"api-key", b"fl-good"), (b"api-key", b"fl-good")],
        [(b"api-key", b"fl-good"), (b"x-api-key", b"fl-other")],
    ],
)
async def test_what_is_no_key_of_anthropics_or_azures_is_refused_too(headers: list[tuple[bytes, bytes]]) -> None:
    keys = HandKeys({"fl-good": identity()})

    assert await refusal(Authenticator(keys), {**scope(), "headers": headers}) == "invalid_api_key"
    assert keys.asked == 0


async def test_anthropics_and_azures_headers_hold_a_key_where_there_is_no_other() -> None:
    def secret(*headers: tuple[bytes, bytes]) -> str:
        return CredentialReader().read({"headers": headers}).secret

    assert secret((b"x-api-key", b" fl-good ")) == "fl-good"
    assert secret((b"api-key", b" fl-good ")) == "fl-good"
    assert secret((b"api-key", b"fl-good"), (b"x-api-key", b"fl-good")) == "fl-good"
    assert secret((b"api-key", b"azures"), (b"authorization", b"Bearer fl-good")) == "fl-good"
    assert secret((b"x-api-key", b"sk-ant-theirs"), (b"authorization", b"Bearer fl-good")) == "fl-good"
    with pytest.raises(ApiError):
        bearer([(b"x-api-key", b"fl-good")])


async def test_the_scheme_is_read_in_any_case() -> None:
    assert bearer([(b"authorization", b"bearer  fl-good ")]) == "fl-good"


async def test_a_key_is_remembered_for_less_than_half_a_second_and_then_asked_for_again() -> None:
    keys, now = HandKeys({"fl-good": identity()}), [0.0]
    authenticator = Authenticator(keys, clock=lambda: now[0])
    for now[0] in (0.0, MEMORY_S / 2):
        assert (await authenticator.identify(scope())).tenant_id == "acme"
    assert keys.asked == 1

    keys.known.clear()
    now[0] = 0.5

    assert await refusal(authenticator, scope()) == "invalid_api_key"
    assert keys.asked == 2


async def test_what_was_asked_before_a_change_is_neither_remembered_nor_shared() -> None:
    keys = HandKeys({"fl-good": identity()})
    authenticator = Authenticator(keys)
    before = asyncio.create_task(authenticator.identify(scope()))
    await asyncio.sleep(0)

    authenticator.forget()
    keys.known["fl-good"] = identity(state="suspended")
    after = asyncio.create_task(authenticator.identify(scope()))

    await before
    assert (await after).identity.tenant.state == "suspended"
    assert (await authenticator.identify(scope())).identity.tenant.state == "suspended"
    assert keys.asked == 2


async def test_callers_of_one_moment_share_one_question() -> None:
    keys = HandKeys({"fl-good": identity()})
    authenticator = Authenticator(keys)
    gone, *others = [asyncio.create_task(authenticator.identify(scope())) for _ in range(5)]
    await asyncio.sleep(0)

    gone.cancel()

    assert {(await caller).tenant_id for caller in others} == {"acme"}
    assert keys.asked == 1


async def test_a_store_that_fails_is_every_waiting_callers_trouble_and_asked_again_by_the_next() -> None:
    keys = HandKeys({"fl-good": identity()}, fails=True)
    authenticator = Authenticator(keys)
    answers = await asyncio.gather(*(authenticator.identify(scope()) for _ in range(3)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [StoreUnavailable] * 3

    keys.fails = False

    assert (await authenticator.identify(scope())).tenant_id == "acme"


async def test_a_key_that_does_not_work_is_asked_for_each_time() -> None:
    keys = HandKeys()
    authenticator = Authenticator(keys)
    assert await refusal(authenticator, scope()) == "invalid_api_key"

    keys.known["fl-good"] = identity()

    assert (await authenticator.identify(scope())).key_id == "public"


async def test_a_suspended_tenant_is_told_so() -> None:
    keys = HandKeys({"fl-good": identity(state="suspended")})

    assert await refusal(Authenticator(keys), scope()) == "tenant_suspended"


@pytest.mark.parametrize(
    ("scopes", "asked", "code"),
    [
        (Scopes(cidrs=("10.0.0.0/8",)), scope(), None),
        (Scopes(cidrs=("192.168.0.0/16",)), scope(), "address_not_allowed"),
        (Scopes(endpoints=("/v1/models",)), scope(), None),
        (Scopes(endpoints=("/v1",)), scope(), None),
        (Scopes(endpoints=("/v1/models",)), scope(path="/v1/models/org/name"), None),
        (Scopes(endpoints=("/v1/models",)), scope(path="/v1/modelsx"), "endpoint_not_allowed"),
        (Scopes(endpoints=("/v1/models",)), scope(path="/v1/chat/completions"), "endpoint_not_allowed"),
    ],
)
async def test_a_keys_scopes_bound_where_from_and_what_for(
    scopes: Scopes, asked: dict[str, Any], code: str | None
) -> None:
    authenticator = Authenticator(HandKeys({"fl-good": identity(scopes)}))

    if code is None:
        check(await authenticator.identify(asked), asked)
    else:
        assert await refusal(authenticator, asked) == code


@pytest.mark.parametrize("second", ["sk-other", "sk-ant-theirs"])
async def test_of_several_keys_of_other_software_none_is_overlooked(second: str) -> None:
    headers = [(b"authorization", b"Bearer fl-good"), (b"x-api-key", b"sk-imported"), (b"x-api-key", second.encode())]
    keys = HandKeys({"fl-good": identity(), "sk-imported": identity()})

    assert await refusal(Authenticator(keys), {**scope(), "headers": headers}) == "identity_conflict"
    assert await refusal(Authenticator(keys), {**scope(), "headers": headers[:2]}) == "identity_conflict"
    assert (await Authenticator(keys).identify({**scope(), "headers": [headers[0], headers[2]]})).tenant_id == "acme"


async def test_a_path_of_many_parts_takes_no_more_memory_than_itself() -> None:
    asked = scope(path="/v1/models" + "/a" * 15_000)
    authenticator = Authenticator(HandKeys({"fl-good": identity(Scopes(endpoints=("/v1/files", "/v1/models")))}))
    caller = await authenticator.identify(asked)

    tracemalloc.start()
    try:
        check(caller, asked)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak_bytes < 1_000_000
