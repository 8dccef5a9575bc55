"""Operators' changes whose reply a network loses after the store has made them: each is made once, and known."""

from collections.abc import AsyncIterator

import pytest

from fairlane.cli.embedded_store import EmbeddedStore
from fairlane.quotas.api_keys import KeyStore
from fairlane.quotas.audit import Audit, Note
from fairlane.quotas.tenants import TenantStore
from fairlane.store.connections import connections
from tests.support.store.proxy import StoreProxy, proxied

pytestmark = pytest.mark.anyio
NOTE = Note(actor="admin", action="test", target="acme", changes={})
LIMIT_S = 0.05


@pytest.fixture(params=["with its connection", "alone"])
async def proxy(request: pytest.FixtureRequest, valkey: EmbeddedStore) -> AsyncIterator[StoreProxy]:
    """Loses a reply and its connection, or the reply alone: the caller's time runs out."""
    async with proxied(valkey.socket) as made:
        made.cuts = request.param == "with its connection"
        yield made


async def test_a_change_is_made_once_and_its_maker_learns_of_it(proxy: StoreProxy, valkey_url: str) -> None:
    """A rotated key is replaced by one that works: its tenant is not locked out."""
    store = connections(proxy.url, timeout_s=LIMIT_S, limit=4)
    tenants, keys = TenantStore(store.patient), KeyStore(store.patient)
    known = await tenants.create({"id": "known"}, lambda _: NOTE)
    await keys.rotate(known, (await keys.create(known, {})).key.id, 0, note=lambda _: NOTE)  # its scripts are known

    proxy.loses = b'"id":"acme"'
    acme = await tenants.create({"id": "acme"}, lambda _: NOTE)
    proxy.loses = b'"tenant":"acme"'
    created = await keys.create(acme, {}, lambda _: NOTE)
    proxy.loses = b'"tenant":"acme"'
    rotated = await keys.rotate(acme, created.key.id, 0, note=lambda _: NOTE)

    assert proxy.loses == b""
    assert [await keys.lookup(each.secret) is not None for each in (created, rotated)] == [False, True]
    assert [key.id for key in await keys.list(acme)] == [created.key.id, rotated.key.id]
    assert len(await Audit(store.patient).list()) == 5
    await store.aclose()
