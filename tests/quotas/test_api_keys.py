"""API keys: their form, who they are, and how they end."""

import hmac
import string

import anyio
import pytest
import redis.asyncio
from hypothesis import given
from hypothesis import strategies as st

from quotas import api_keys
from quotas.api_keys import ApiKey, KeyNotFound, KeyStore, Scopes, public_id
from quotas.fields import FieldError
from quotas.limits import Limits
from quotas.redis_store import RedisQuotaStore
from quotas.store import AccessDenied
from quotas.tenants import Tenant, TenantStore
from tests.quotas.house import ask

pytestmark = pytest.mark.anyio
FAR = "2059-01-31T00:00:00Z"


@pytest.fixture
def keys(store: redis.asyncio.Redis) -> KeyStore:
    return KeyStore(store)


@pytest.fixture
async def acme(store: redis.asyncio.Redis) -> Tenant:
    return await TenantStore(store).create({"id": "acme"})


async def expire(store: redis.asyncio.Redis, key: ApiKey) -> None:
    """Let the moment come at which the key expires."""
    await store.hset(f"fl:quota:{{acme}}:key:{key.id}", "expires_ms", "1")


async def test_a_new_key_is_found_by_its_secret(keys: KeyStore, acme: Tenant) -> None:
    new = await keys.create(acme, {"name": "ci"})

    identity = await keys.lookup(new.secret)

    assert identity is not None
    assert (identity.tenant, identity.key) == (acme, new.key)
    assert (new.key.name, new.key.tenant, new.key.state) == ("ci", "acme", "active")


async def test_a_key_has_the_form_that_is_promised(keys: KeyStore, acme: Tenant) -> None:
    new = await keys.create(acme, {})

    prefix, identifier, secret = new.secret.split("-")

    assert (prefix, identifier, len(identifier)) == ("fl", new.key.id, 16)
    assert len(secret) == 43 + 6
    assert set(secret) <= set(string.ascii_letters + string.digits)
    assert public_id(new.secret) == new.key.id


def test_a_secret_has_256_random_bits() -> None:
    assert 62**42 < 2**256 < 62**43
    made = {api_keys._random_secret("a" * 16) for _ in range(1000)}
    assert len(made) == 1000


@given(st.text(max_size=100))
def test_what_is_no_key_has_no_public_id(text: str) -> None:
    assert public_id(text) is None


@pytest.mark.parametrize("change", ["fl-", "Bearer ", " ", "sk-"])
async def test_a_key_with_something_around_it_is_none(keys: KeyStore, acme: Tenant, change: str) -> None:
    new = await keys.create(acme, {})

    assert public_id(change + new.secret) is None
    assert public_id(new.secret + change) is None
    assert public_id(new.secret + "\n") is None


async def test_every_single_typing_error_is_rejected_without_asking_the_store(
    acme: Tenant, store: redis.asyncio.Redis
) -> None:
    new = await KeyStore(store).create(acme, {})
    asks_nobody = KeyStore(redis.asyncio.Redis(unix_socket_path="/nonexistent"))

    for position in range(3, len(new.secret)):
        right = new.secret[position]
        for wrong in "aZ7":
            typed = new.secret[:position] + wrong + new.secret[position + 1 :]
            if wrong != right:
                assert await asks_nobody.lookup(typed) is None


async def test_a_well_formed_key_that_was_never_made_is_unknown(keys: KeyStore, acme: Tenant) -> None:
    invented = api_keys._random_secret(api_keys._random_id())

    assert public_id(invented) is not None
    assert await keys.lookup(invented) is None


async def test_the_right_id_with_another_secret_is_unknown(keys: KeyStore, acme: Tenant) -> None:
    new = await keys.create(acme, {})

    assert await keys.lookup(api_keys._random_secret(new.key.id)) is None


async def test_hashes_are_compared_in_constant_time(
    keys: KeyStore, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = await keys.create(acme, {})
    compared: list[tuple[object, object]] = []

    def compare(left: str, right: str) -> bool:
        compared.append((left, right))
        return hmac.compare_digest(left, right)

    monkeypatch.setattr("quotas.api_keys.hmac", _Hmac(compare))
    await keys.lookup(api_keys._random_secret(new.key.id))

    assert [len(str(left)) for left, _ in compared] == [6, 64]  # the checksum, then the hash


class _Hmac:
    """The module, its comparison watched."""

    digest = staticmethod(hmac.digest)

    def __init__(self, compare: object) -> None:
        self.compare_digest = compare


async def test_no_secret_is_stored_or_shown(keys: KeyStore, acme: Tenant, store: redis.asyncio.Redis) -> None:
    new = await keys.create(acme, {"name": "ci"})
    secret = new.secret.split("-")[2]

    assert secret not in repr(new) + repr(new.key)
    for key in await store.keys():
        assert secret.encode() not in (await store.dump(key) or b"")
    assert new.secret not in repr(await store.hgetall(f"fl:apikey:{new.key.id}"))


async def test_every_gateway_hashes_alike_from_the_first_key_on(store: redis.asyncio.Redis, acme: Tenant) -> None:
    gateways = [KeyStore(store) for _ in range(8)]
    made: list[str] = []

    async def create(keys: KeyStore) -> None:
        made.append((await keys.create(acme, {})).secret)

    async with anyio.create_task_group() as group:
        for keys in gateways:
            group.start_soon(create, keys)

    for secret in made:
        assert await KeyStore(store).lookup(secret) is not None


async def test_a_key_keeps_its_limits_and_scopes(keys: KeyStore, acme: Tenant) -> None:
    new = await keys.create(
        acme,
        {
            "name": "ci",
            "expires_at": FAR,
            "limits": {"tokens_per_day": 7},
            "scopes": {"models": ["smol"], "lanes": ["latency"], "cidrs": ["10.0.0.0/8"], "endpoints": None},
        },
    )

    found = await keys.get(acme, new.key.id)

    assert found == new.key
    assert found.limits == Limits(tokens_per_day=7)
    assert found.scopes == Scopes(models=("smol",), lanes=("latency",), cidrs=("10.0.0.0/8",))
    assert found.expires_at == 2_811_196_800


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"name": 1}, "name"),
        ({"expires_at": "tomorrow"}, "expires_at"),
        ({"expires_at": "2059-01-31T00:00:00"}, "expires_at"),
        ({"expires_at": True}, "expires_at"),
        ({"expires_at": float("nan")}, "expires_at"),
        ({"expires_at": 1e300}, "expires_at"),
        ({"expires_at": 1_000_000_000}, "expires_at"),
        ({"limits": {"tokens_per_day": -1}}, "limits.tokens_per_day"),
        ({"limits": [1]}, "limits"),
        ({"scopes": {"models": "smol"}}, "scopes.models"),
        ({"scopes": {"lanes": ["batch"]}}, "scopes.lanes"),
        ({"scopes": {"cidrs": ["10.0.0.1/8"]}}, "scopes.cidrs"),
        ({"scopes": {"cidrs": ["home"]}}, "scopes.cidrs"),
        ({"scopes": {"admin": True}}, "scopes.admin"),
        ({"scopes": 5}, "scopes"),
        ({"secret": "mine"}, "secret"),
    ],
)
async def test_a_bad_field_is_refused_by_name(
    keys: KeyStore, acme: Tenant, document: dict[str, object], field: str
) -> None:
    with pytest.raises(FieldError) as caught:
        await keys.create(acme, document)

    assert caught.value.field == field
    assert await keys.list(acme) == []


async def test_an_expired_key_is_unknown_and_reserves_nothing(
    keys: KeyStore, acme: Tenant, store: redis.asyncio.Redis
) -> None:
    new = await keys.create(acme, {"expires_at": FAR})
    assert await keys.lookup(new.secret) is not None

    await expire(store, new.key)

    assert await keys.lookup(new.secret) is None
    with pytest.raises(AccessDenied, match="expired"):
        await RedisQuotaStore(store).reserve(ask(key_id=new.key.id))


async def test_a_revoked_key_fails_everywhere_at_once(keys: KeyStore, acme: Tenant, store: redis.asyncio.Redis) -> None:
    new = await keys.create(acme, {})

    revoked = await keys.revoke(acme, new.key.id)

    assert revoked.state == "revoked"
    assert await KeyStore(store).lookup(new.secret) is None
    with pytest.raises(AccessDenied, match="revoked"):
        await RedisQuotaStore(store).reserve(ask(key_id=new.key.id))
    assert await keys.revoke(acme, new.key.id) == revoked


async def test_a_suspended_tenants_key_is_recognised_and_says_so(
    keys: KeyStore, acme: Tenant, store: redis.asyncio.Redis
) -> None:
    new = await keys.create(acme, {})
    await TenantStore(store).suspend("acme")

    identity = await keys.lookup(new.secret)

    assert identity is not None
    assert identity.tenant.state == "suspended"


async def test_while_a_rotation_overlaps_both_keys_work(
    keys: KeyStore, acme: Tenant, store: redis.asyncio.Redis
) -> None:
    old = await keys.create(acme, {"name": "ci", "limits": {"tokens_per_day": 9}, "scopes": {"models": ["smol"]}})

    new = await keys.rotate(acme, old.key.id, 3600)
    both = [await keys.lookup(key.secret) is not None for key in (old, new)]
    ends = await keys.get(acme, old.key.id)
    await expire(store, old.key)

    assert both == [True, True]
    assert ends is not None
    assert ends.expires_at == pytest.approx(new.key.created_at + 3600)
    assert (new.key.name, new.key.limits, new.key.scopes) == ("ci", old.key.limits, old.key.scopes)
    assert new.key.id != old.key.id
    assert [await keys.lookup(key.secret) is not None for key in (old, new)] == [False, True]


async def test_a_rotation_without_overlap_ends_the_old_key_at_once(keys: KeyStore, acme: Tenant) -> None:
    old = await keys.create(acme, {})

    new = await keys.rotate(acme, old.key.id)

    assert await keys.lookup(old.secret) is None
    assert await keys.lookup(new.secret) is not None


async def test_a_rotation_never_makes_a_key_live_longer(keys: KeyStore, acme: Tenant) -> None:
    now_ms = await keys._database.now_ms()
    soon = now_ms / 1e3 + 60
    old = await keys.create(acme, {"expires_at": soon})

    new = await keys.rotate(acme, old.key.id, 3600)

    ends = await keys.get(acme, old.key.id)
    assert ends is not None
    assert ends.expires_at == pytest.approx(soon, abs=0.001)
    assert new.key.expires_at == pytest.approx(soon, abs=0.001)


@pytest.mark.parametrize("overlap_s", [-1, True, "1h", float("nan"), 10**9, None])
async def test_an_overlap_that_can_not_be_one_is_refused(keys: KeyStore, acme: Tenant, overlap_s: object) -> None:
    old = await keys.create(acme, {})

    with pytest.raises(FieldError, match="overlap_s"):
        await keys.rotate(acme, old.key.id, overlap_s)

    assert len(await keys.list(acme)) == 1


async def test_a_key_that_ended_can_not_be_rotated(keys: KeyStore, acme: Tenant, store: redis.asyncio.Redis) -> None:
    revoked = await keys.create(acme, {})
    await keys.revoke(acme, revoked.key.id)
    expired = await keys.create(acme, {"expires_at": FAR})
    await expire(store, expired.key)

    for key_id in (revoked.key.id, expired.key.id, "never"):
        with pytest.raises(KeyNotFound):
            await keys.rotate(acme, key_id)


async def test_keys_are_listed_by_creation_page_by_page(keys: KeyStore, acme: Tenant) -> None:
    made = [(await keys.create(acme, {"name": f"k{n}"})).key.id for n in range(5)]
    await keys.revoke(acme, made[1])

    first = await keys.list(acme, limit=3)
    second = await keys.list(acme, limit=3, after=first[-1].id)

    assert {key.id for key in first + second} == set(made)
    assert [key.created_at for key in first + second] == sorted(key.created_at for key in first + second)
    assert (len(first), len(second)) == (3, 2)
    assert sum(key.state == "revoked" for key in first + second) == 1
    assert await keys.list(acme, after="never") == []


async def test_another_tenants_keys_can_not_be_reached(
    keys: KeyStore, acme: Tenant, store: redis.asyncio.Redis
) -> None:
    other = await TenantStore(store).create({"id": "other"})
    theirs = await keys.create(other, {})

    assert await keys.get(acme, theirs.key.id) is None
    with pytest.raises(KeyNotFound):
        await keys.revoke(acme, theirs.key.id)
    assert await keys.lookup(theirs.secret) is not None


async def test_a_deleted_tenant_gets_no_key(keys: KeyStore, acme: Tenant, store: redis.asyncio.Redis) -> None:
    await TenantStore(store).delete("acme")

    with pytest.raises(KeyNotFound):
        await keys.create(acme, {})


def test_scopes_allow_all_that_they_do_not_name() -> None:
    everything = Scopes.parse(None)

    assert everything.allows("models", "any")
    assert everything.allows("endpoints", "/v1/models")
    assert everything.allows_address("not an address")


def test_a_scope_allows_only_what_it_names() -> None:
    scopes = Scopes.parse({"models": ["a", "b", "a"], "lanes": [], "endpoints": ["/v1/models"]})

    assert scopes.models == ("a", "b")
    assert scopes.allows("models", "b")
    assert not scopes.allows("models", "c")
    assert not scopes.allows("lanes", "latency")
    assert not scopes.allows("endpoints", "/v1/chat/completions")


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        ("10.1.2.3", True),
        ("::ffff:10.1.2.3", True),
        ("11.0.0.1", False),
        ("2001:db8::5", True),
        ("2001:db9::5", False),
        ("10.1.2", False),
        ("", False),
    ],
)
def test_a_network_scope_looks_at_the_callers_address(address: str, allowed: bool) -> None:
    scopes = Scopes.parse({"cidrs": ["10.0.0.0/8", "2001:db8::/32"]})

    assert scopes.allows_address(address) is allowed
