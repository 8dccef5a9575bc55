"""The audit log: who changed what, when; and that a change is never without its entry, whoever dies when."""

import itertools
import json
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial

import pytest
import redis.asyncio

from fairlane.quotas.api_keys import KeyStore
from fairlane.quotas.audit import LONGEST_CHANGES, Audit
from fairlane.quotas.tenants import TenantStore
from fairlane.store.errors import StoreUnavailable
from tests.support.quotas.auditing import OUTBOX, failing, note, rename, told, upkeep

pytestmark = pytest.mark.anyio


class Killed(BaseException):
    """The process is no more."""


async def test_the_audit_log_gives_the_newest_first_page_by_page(store: redis.asyncio.Redis) -> None:
    audit = Audit(store)
    for number in range(5):
        await audit.append(note(f"t{number}", weight=number))

    first = await audit.list(limit=3)
    second = await audit.list(limit=3, after=first[-1].id)

    assert [entry.target for entry in first + second] == ["t4", "t3", "t2", "t1", "t0"]
    assert (first[0].actor, first[0].action, first[0].changes) == ("admin", "tenant.update", {"weight": 4})
    now = datetime.now().timestamp()
    assert abs(first[0].at - now) < 60


async def test_an_audit_entry_stays_small(store: redis.asyncio.Redis) -> None:
    audit = Audit(store)

    await audit.append(note(name="x" * LONGEST_CHANGES, weight=2))
    await audit.append(note())

    unchanged, updated = await audit.list()
    assert unchanged.changes == {}
    assert updated.changes == {"name": {"left_out": f"{LONGEST_CHANGES + 2} characters"}, "weight": 2}
    assert len(json.dumps(updated.changes)) < 100


async def test_a_change_is_in_the_log_once_it_is_made_and_waits_nowhere(store: redis.asyncio.Redis) -> None:
    tenants = TenantStore(store)
    await tenants.create({"id": "acme"}, lambda tenant: note(name=tenant.id))
    await rename(store)

    assert await told(store) == ["acme", "new"]
    assert not await store.exists(OUTBOX)


async def test_what_is_not_changed_is_not_told(store: redis.asyncio.Redis) -> None:
    tenants, keys = TenantStore(store), KeyStore(store)
    acme = await tenants.create({"id": "acme"})
    key = (await keys.create(acme, {})).key

    await keys.revoke(acme, key.id, note(name="revoked"))
    await keys.revoke(acme, key.id, note(name="again"))
    for refused in (
        tenants.create({"id": "acme"}, lambda tenant: note(name=tenant.id)),
        tenants.update("acme", {"name": "x"}, version=7, note=note(name="x")),
        tenants.delete("acme", version=7, note=note(name="x")),
        keys.update(acme, key, {"name": "x"}, note(name="x")),
    ):
        with pytest.raises(Exception, match="acme|" + key.id):
            await refused

    assert await told(store) == ["revoked"]


Change = Callable[[TenantStore, KeyStore, str], Awaitable[object]]
"""Given a key's id too."""


async def changed_key(tenants: TenantStore, keys: KeyStore, key_id: str) -> None:
    acme = await tenants.get("acme")
    assert acme is not None
    key = await keys.get(acme, key_id)
    assert key is not None
    await keys.update(acme, key, {"name": "x"}, note(name="x"))


async def of_key(
    what: Callable[..., Awaitable[object]], tenants: TenantStore, keys: KeyStore, key_id: str, *, creates: bool = False
) -> None:
    acme = await tenants.get("acme")
    assert acme is not None
    if creates:
        await what(keys, acme, {}, lambda key: note(name=key.id))
    elif what is KeyStore.rotate:
        await what(keys, acme, key_id, 60, note=lambda key: note(name=key.id))
    else:
        await what(keys, acme, key_id, note(name="x"))


CHANGES: dict[str, Change] = {
    "tenant.create": lambda tenants, _, __: tenants.create(
        {"id": "child", "parent": "acme"}, lambda tenant: note(name=tenant.id)
    ),
    "tenant.update": lambda tenants, _, __: tenants.update("acme", {"name": "x"}, note=note(name="x")),
    "tenant.suspend": lambda tenants, _, __: tenants.suspend("acme", note=note(name="x")),
    "tenant.delete": lambda tenants, _, __: tenants.delete("acme", note=note(name="x")),
    "key.create": partial(of_key, KeyStore.create, creates=True),
    "key.update": changed_key,
    "key.revoke": partial(of_key, KeyStore.revoke),
    "key.rotate": partial(of_key, KeyStore.rotate),
}


async def standing(store: redis.asyncio.Redis) -> dict[str, object]:
    """Every tenant and key of the root, as it is stored."""
    names = [name async for name in store.scan_iter("fl:quota:{acme}:*") if b":tenant:" in name or b":key:" in name]
    return {str(name): await store.hgetall(name) for name in names if b"card" not in name}


@pytest.mark.parametrize("error", [Killed(), StoreUnavailable("away")], ids=["killed", "away"])
@pytest.mark.parametrize("change", CHANGES)
async def test_wherever_a_change_is_cut_off_it_is_told_once_if_it_was_made_and_else_never(
    store: redis.asyncio.Redis, monkeypatch: pytest.MonkeyPatch, change: str, error: BaseException
) -> None:
    ends = []
    for calls in itertools.count():
        await store.flushall()
        acme = await TenantStore(store).create({"id": "acme"})
        key = (await KeyStore(store).create(acme, {"name": "k"})).key
        before = await standing(store)

        is_whole = True
        with monkeypatch.context() as patch:
            failing(patch, error, left=calls)
            try:
                await CHANGES[change](TenantStore(store), KeyStore(store), key.id)
            except type(error):
                is_whole = False
        is_made, waits = await standing(store) != before, await store.exists(OUTBOX)
        for _ in range(2):
            await upkeep(store)
            assert len(await Audit(store).list()) == is_made, calls
        assert not await store.exists(OUTBOX)
        ends.append((is_made, bool(waits)))
        if is_whole and not waits:
            break

    assert (False, False) in ends  # cut off before it,
    assert (True, True) in ends  # between it and its place in the log,
    assert ends[-1] == (True, False)  # and not at all
