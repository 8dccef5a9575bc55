"""Each script of the gateway's own and each call for operators, executed twice because its first reply was lost."""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import pytest
import redis.asyncio

from fairlane.cli.embedded_store import EmbeddedStore
from fairlane.gateway.batches import keys as batch_keys
from fairlane.gateway.batches.batch import Progress
from fairlane.gateway.batches.batch_records import BatchRecords, TakenBatch
from fairlane.gateway.batches.erasure import BatchErasure
from fairlane.gateway.batches.files import FileRecords, StoredFile, new_id
from fairlane.gateway.batches.storage import FolderStorage
from fairlane.gateway.control.operators.admin_key import AdminKeys
from fairlane.gateway.control.operators.admin_tokens import AdminTokens
from fairlane.gateway.control.operators.operator import Operator, Role
from fairlane.gateway.control.operators.sessions import Sessions
from fairlane.gateway.control.operators.single_sign_on import SingleSignOn
from fairlane.gateway.insight.fleet_metrics import metrics_store
from fairlane.gateway.insight.fleet_metrics.metrics_store import FleetMetricsStore, ReportedState
from fairlane.gateway.insight.fleet_metrics.sums import Sums
from fairlane.gateway.insight.request_records import storage as record_storage
from fairlane.gateway.insight.request_records.record import RequestRecord
from fairlane.gateway.insight.request_records.storage import EndedRecord, RecordStore
from fairlane.quotas import keyspace
from fairlane.quotas.erasure import DeletedTenant
from fairlane.quotas.ledger import RollUp
from fairlane.quotas.tenants import TenantStore
from tests.support.gateway.batch_files import a_batch
from tests.support.gateway.provider import providing
from tests.support.store.resent import ResendingRedis, resending

pytestmark = pytest.mark.anyio
LEASE_MS = 60_000
OWNER = Operator(name="ada", role=Role.OWNER, kind="key")


@dataclass(frozen=True, slots=True)
class Two:
    """A store through two clients: one sends each call twice."""

    twice: ResendingRedis
    plain: redis.asyncio.Redis

    @property
    def batches(self) -> BatchRecords:
        """Whose calls are sent twice."""
        return BatchRecords(self.twice, most_open=3)

    def files(self, client: redis.asyncio.Redis) -> FileRecords:
        return FileRecords(client, most_files=2, most_bytes=100)

    def records(self, client: redis.asyncio.Redis) -> RecordStore:
        return RecordStore(client, "gw", most=1)

    async def batch(self) -> TakenBatch:
        """One that owner `one` runs; another waits."""
        records = BatchRecords(self.plain, most_open=3)
        for _ in range(2):
            await records.create("acme", a_batch(), 10, tenant_limit=None, key_limit=None)
        taken = await records.take("acme", "one", LEASE_MS)
        assert taken is not None
        return taken

    async def file(self) -> StoredFile:
        now_s = int(time.time())
        made = StoredFile(id=new_id(), filename="f", purpose="batch", bytes=60, created_at=now_s, expires_at=now_s + 99)
        await self.files(self.plain).open("acme", "acme", made.id)
        return made


async def batch_create(two: Two) -> None:
    assert await two.batches.create("acme", a_batch(), 10, tenant_limit=10, key_limit=10) is None


async def batch_take(two: Two) -> None:
    """Another batch stays for others."""
    await two.batch()
    assert (
        await BatchRecords(two.plain, most_open=3).create("acme", a_batch(), 1, tenant_limit=None, key_limit=None)
        is None
    )
    assert await two.batches.take("acme", "one", LEASE_MS) is not None
    standing = await BatchRecords(two.plain, most_open=3).open_batches()
    assert sorted(each.owner for each in standing) == ["", "one", "one"]


async def batch_renew(two: Two) -> None:
    taken = await two.batch()
    assert await two.batches.renew(taken, LEASE_MS) == (True, False)
    assert await two.batches.renew(taken, 0) == (True, False)


async def batch_save(two: Two) -> None:
    taken = await two.batch()
    assert await two.batches.save(taken, taken.batch, Progress.of(1), 5)


async def batch_finish(two: Two) -> None:
    taken, made = await two.batch(), await two.file()
    assert await two.batches.finish(taken, taken.batch, [made])


async def batch_cancel(two: Two) -> None:
    taken = await two.batch()
    assert await two.batches.cancel("acme", taken.batch.id) is not None


async def batches_open(two: Two) -> None:
    await two.batch()
    assert len(await two.batches.open_batches()) == 2


async def batch_drop(two: Two) -> None:
    taken = await two.batch()
    erasure = BatchErasure(two.twice, two.batches, two.files(two.twice), FolderStorage(Path("nowhere")))
    gone = DeletedTenant(root="acme", account="acme")
    assert await erasure.batches(gone, is_settled=True) == (2, 0)
    assert await two.batches.get("acme", "acme", taken.batch.id) is None
    assert not await two.plain.exists("fl:batches:{acme}:open", "fl:batches:{acme}:enqueued:tenant:acme")


async def records_erase(two: Two) -> None:
    await two.records(two.plain).write([EndedRecord(_record(1), is_special=False)], [])
    assert await two.records(two.twice).erase("acme") == 1
    assert await two.records(two.plain).find(_record(1).id) is None
    assert not await two.plain.keys("fl:records:*")


async def documents(two: Two) -> None:
    taken = await two.batch()
    assert taken.batch.id in [
        each.batch.id for each in await two.batches.listed("acme", "acme", after="", limit=9) or ()
    ]


async def file_open(two: Two) -> None:
    await two.files(two.twice).open("acme", "acme", new_id())


async def file_keep(two: Two) -> None:
    """Its bytes count once."""
    await two.files(two.twice).keep("acme", "acme", await two.file())
    assert await two.plain.get("fl:batches:{acme}:bytes:acme") == b"60"


async def file_drop(two: Two) -> None:
    kept, other = await two.file(), await two.file()
    await two.files(two.plain).keep("acme", "acme", kept)
    await two.files(two.twice).drop("acme", kept.id)
    await two.files(two.plain).keep("acme", "acme", other)
    assert await two.plain.get("fl:batches:{acme}:bytes:acme") == b"60"


def _record(number: int) -> RequestRecord:
    return RequestRecord(id=f"{number:024x}", request_id=f"req-{number}", tenant="acme", key="k", arrived_s=1.0)


async def records_write(two: Two) -> None:
    await two.records(two.plain).write([], [_record(1)])
    ended = [EndedRecord(_record(number), is_special=False) for number in (2, 3)]
    await two.records(two.twice).write(ended, [_record(4)], [(_record(1).id, "")])


async def records_read(two: Two) -> None:
    await two.records(two.plain).write([EndedRecord(_record(1), is_special=False)], [_record(2)])
    store = two.records(two.twice)
    assert await store.find(_record(1).id) is not None
    assert [len(found) for found in ((await store.ended(float("inf"), 0))[0], await store.running())] == [1, 1]


async def records_left(two: Two) -> None:
    await two.records(two.plain).write([], [_record(2)])
    await two.records(two.twice).leave()
    assert await two.records(two.plain).running() == []


async def metrics_report(two: Two) -> None:
    """The one that merges does so still."""
    _, merges = await FleetMetricsStore(two.twice).report(100, "gw", ReportedState(1, Sums(samples=1)))
    assert merges


async def metrics_recent(two: Two) -> None:
    await FleetMetricsStore(two.plain).report(100, "gw", ReportedState(1, Sums(samples=1)))
    assert len(await FleetMetricsStore(two.twice).recent([100])) == 1


SCRIPTS: Mapping[str, Callable[[Two], Awaitable[None]]] = {
    call.__name__: call
    for call in (
        *(batch_create, batch_take, batch_renew, batch_save, batch_finish, batch_cancel, batches_open, batch_drop),
        *(
            records_erase,
            documents,
            file_open,
            file_keep,
            file_drop,
            records_write,
            records_left,
            metrics_report,
            metrics_recent,
        ),
    )
} | dict.fromkeys(("records_find", "records_ended", "records_running"), records_read)
PARTS = batch_keys.SCRIPTS, record_storage._SCRIPTS, metrics_store._SCRIPTS
TELL_HOW_LONG_AGO = ("records_find", "records_running")
"""Their replies hold milliseconds since another call."""


def test_every_script_is_resent_here() -> None:
    assert {name for each in PARTS for name in each} == SCRIPTS.keys()


@pytest.mark.parametrize("script", SCRIPTS)
async def test_a_call_whose_reply_was_lost_is_answered_alike_and_counts_once(
    script: str, valkey: EmbeddedStore
) -> None:
    async with resending(valkey.url, *PARTS) as (resender, client):
        await SCRIPTS[script](Two(resender, client))

        resender.check(script, other_replies=TELL_HOW_LONG_AGO)


async def make_admin_key(two: Two) -> None:
    """It is told to who made it."""
    keys = AdminKeys(two.twice, None)
    key = await keys.ensure()
    assert key is not None
    assert (await keys.works(key), await keys.ensure()) == (True, None)


async def revoke_token(two: Two) -> None:
    """What is watched by it is asked again."""
    tokens = AdminTokens(two.twice)
    token, _ = await tokens.create("ci", Role.OWNER, OWNER)
    before = await tokens.revision()
    assert await tokens.end(token.id) is not None
    assert await tokens.revision() != before
    assert await tokens.get(token.id) is None
    await tokens.forget(token.id)
    assert await tokens.list() == []


async def sign_out(two: Two) -> None:
    keys, tokens = AdminKeys(two.twice, "k" * 32), AdminTokens(two.twice)
    sessions = Sessions(two.twice, keys, tokens)
    session = await sessions.begin(OWNER)
    before = await tokens.revision()
    await sessions.end(session)
    assert await tokens.revision() != before


async def sign_in(two: Two) -> None:
    """Once: the same answer of the provider is no second sign-in."""
    async with providing() as provider:
        provider.redirect_url = "http://127.0.0.1/console/callback"
        desk = SingleSignOn(two.twice, AdminKeys(two.twice, "k" * 32), provider.section())
        url, cookie = await desk.begin()
        answer = provider.consent(url)
        assert (await desk.complete(cookie, answer)).name == "ada@example.com"


async def roll_up(two: Two) -> None:
    """Who claims the day's round does it."""
    await TenantStore(two.plain).create({"id": "acme"})
    await RollUp(two.twice, days=31, months=60).daily()
    rolled = await two.plain.get(f"{keyspace.of_root('acme')}rolled:acme")
    assert rolled is not None
    assert date.fromisoformat(rolled.decode() if isinstance(rolled, bytes) else rolled) < date.today()


@pytest.mark.parametrize("change", [make_admin_key, revoke_token, sign_out, sign_in, roll_up])
async def test_a_change_of_plain_commands_whose_replies_were_lost_is_made_once(
    change: Callable[[Two], Awaitable[None]], valkey: EmbeddedStore
) -> None:
    async with resending(valkey.url) as (resender, client):
        await change(Two(resender, client))
