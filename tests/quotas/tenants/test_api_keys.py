"""API keys: their form, who they are, and how they end."""

import dataclasses
import hashlib
import hmac
import string
from unittest.mock import AsyncMock

import anyio
import pytest
import redis.asyncio
from hypothesis import given
from hypothesis import strategies as st

from fairlane.quotas import api_keys
from fairlane.quotas.api_keys import ApiKey, KeyExists, KeyNotFound, KeyStore, Scopes, public_id
from fairlane.quotas.audit import Note
from fairlane.quotas.erasure import DeletedTenant, TenantErasure
from fairlane.quotas.field_checks import FieldError
from fairlane.quotas.limits import Limits
from fairlane.quotas.tenants import Tenant, TenantStore, VersionConflict
from tests.support.store.watched import ForwardingRedis

pytestmark = pytest.mark.anyio
FAR = "2059-01-31T00:00:00Z"


@pytest.fixture
def keys(store: redis.asyncio.Redis) -> KeyStore:
    return KeyStore(store)


@pytest.fixture
async def acme(store: redis.asyncio.Redis) -> Tenant:
    return await TenantStore(store).create({"id": "acme"})


async def test_a_new_key_is_found_by_its_secret(keys: KeyStore, acme: Tenant) -> None:
    new = await keys.create(acme, {"name": "ci"})

    identity = await keys.lookup(new.secret)

    assert identity is not None
    assert identity.key.last_used_at is not None
    assert (identity.tenant, dataclasses.replace(identity.key, last_used_at=None)) == (acme, new.key)
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

    monkeypatch.setattr("fairlane.quotas.api_keys.hmac", _Hmac(compare))
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


async def test_a_page_of_keys_is_read_in_two_calls(
    keys: KeyStore, acme: Tenant, store: redis.asyncio.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(12):
        await keys.create(acme, {})
    expected = await keys.list(acme)  # the store knows the script from here on
    client, sent = ForwardingRedis(store), list[object]()
    send = client.execute_command

    async def count(*command: object, **options: object) -> object:
        sent.append(command[0])
        return await send(*command, **options)

    monkeypatch.setattr(client, "execute_command", count)

    assert await KeyStore(client).list(acme) == expected
    assert sent == ["ZRANGE", "EVALSHA"]


async def test_a_page_of_keys_is_read_where_scripts_are_refused(
    keys: KeyStore, acme: Tenant, store: redis.asyncio.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {(await keys.create(acme, {})).key.id for _ in range(3)}
    monkeypatch.setattr(store, "evalsha", AsyncMock(side_effect=redis.exceptions.TryAgainError("TRYAGAIN")))

    assert {key.id for key in await keys.list(acme)} == made


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


OTHERS = "sk-made-by-other-software"


def sha256(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


async def test_a_key_of_other_software_goes_on_working(
    keys: KeyStore, acme: Tenant, store: redis.asyncio.Redis
) -> None:
    adopted = await keys.adopt(acme, sha256(OTHERS), {"name": "search", "scopes": {"models": ["tiny"]}})

    found = await keys.lookup(OTHERS)

    assert found is not None
    assert (found.tenant.id, found.key.id, found.key.scopes.models) == ("acme", adopted.id, ("tiny",))
    assert await keys.lookup(sha256(OTHERS)) is None
    assert await keys.lookup(f"sk-{sha256(OTHERS)}") is None
    kept = [name async for name in store.scan_iter()]
    assert not any(sha256(OTHERS).encode() in name for name in kept)


async def test_a_key_of_other_software_is_adopted_once_and_ends_as_any(keys: KeyStore, acme: Tenant) -> None:
    adopted = await keys.adopt(acme, sha256(OTHERS), {})
    await keys.revoke(acme, adopted.id)

    with pytest.raises(KeyExists):
        await keys.adopt(acme, sha256(OTHERS), {})
    assert await keys.lookup(OTHERS) is None


async def test_a_key_whose_tenant_was_deleted_may_be_adopted_again(
    keys: KeyStore, acme: Tenant, store: redis.asyncio.Redis
) -> None:
    tenants = TenantStore(store)
    await keys.adopt(acme, sha256(OTHERS), {})
    await tenants.delete("acme")
    assert await keys.lookup(OTHERS) is None
    with pytest.raises(KeyNotFound):
        await keys.adopt(acme, sha256(OTHERS), {})
    beta = await tenants.create({"id": "beta"})

    await keys.adopt(beta, sha256(OTHERS), {})
    await TenantErasure(store).erase_keys(DeletedTenant(root="acme", account="acme"))

    found = await keys.lookup(OTHERS)
    assert found is not None
    assert found.tenant.id == "beta"


async def test_of_many_who_import_one_secret_at_the_same_time_one_succeeds(store: redis.asyncio.Redis) -> None:
    """Two organisations, whose keys have hash tags of their own, each through two gateways."""
    tenants = [await TenantStore(store).create({"id": name}) for name in ("acme", "globex")]
    await KeyStore(store).lookup(OTHERS)
    for attempt in range(20):
        secret, made = f"{OTHERS}-{attempt}", list[tuple[str, str]]()

        async def adopt(tenant: Tenant, secret: str = secret, made: list[tuple[str, str]] = made) -> None:
            try:
                made.append((tenant.id, (await KeyStore(store).adopt(tenant, sha256(secret), {})).id))
            except (KeyExists, VersionConflict):
                return

        async with anyio.create_task_group() as group:
            for tenant in 2 * tenants:
                group.start_soon(adopt, tenant)

        found = await KeyStore(store).lookup(secret)
        assert found is not None
        assert made == [(found.tenant.id, found.key.id)]
        listed = [(tenant.id, key.id) for tenant in tenants for key in await KeyStore(store).list(tenant)]
        assert len(listed) == attempt + 1


async def test_an_import_that_was_cut_off_leaves_its_secret_to_others_and_one_that_was_slow_writes_no_key(
    store: redis.asyncio.Redis, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped between its claim and its key, while another organisation imports the secret; it goes on afterwards."""
    globex = await TenantStore(store).create({"id": "globex"})
    slow, asleep, goes_on = KeyStore(store), anyio.Event(), anyio.Event()
    put, refused = slow.put, list[str]()

    async def late(tenant: Tenant, key: ApiKey, note: Note | None) -> int:
        asleep.set()
        await goes_on.wait()
        return await put(tenant, key, note)

    async def adopt() -> None:
        try:
            await slow.adopt(acme, sha256(OTHERS), {})
        except VersionConflict:
            refused.append(acme.id)

    monkeypatch.setattr(slow, "put", late)
    async with anyio.create_task_group() as group:
        group.start_soon(adopt)
        await asleep.wait()
        made = await KeyStore(store).adopt(globex, sha256(OTHERS), {})
        goes_on.set()

    found = await KeyStore(store).lookup(OTHERS)
    assert found is not None
    assert (found.key.id, found.tenant.id, refused) == (made.id, "globex", ["acme"])
    assert await KeyStore(store).list(acme) == []
    with pytest.raises(KeyExists):
        await slow.adopt(acme, sha256(OTHERS), {})


async def test_an_adopted_key_is_rotated_into_one_of_ours(keys: KeyStore, acme: Tenant) -> None:
    adopted = await keys.adopt(acme, sha256(OTHERS), {})

    new = await keys.rotate(acme, adopted.id)

    assert await keys.lookup(OTHERS) is None
    assert await keys.lookup(new.secret) is not None


@pytest.mark.parametrize("digest", ["", "a" * 63, "A" * 64, "g" * 64, "a" * 64 + "\n", OTHERS])
async def test_what_is_no_sha256_is_not_adopted(keys: KeyStore, acme: Tenant, digest: str) -> None:
    with pytest.raises(FieldError):
        await keys.adopt(acme, digest, {})
