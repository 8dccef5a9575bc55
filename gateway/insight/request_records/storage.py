"""Records in Redis, readable by every gateway: ended requests in a bounded ring, running ones by gateway.

`lua/records.lua` describes the keys."""

from collections.abc import Awaitable, Collection, Iterable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import msgspec
from redis.asyncio import Redis

from fairlane.gateway.insight.request_records.record import RequestRecord, decode, encode
from fairlane.store.bounds import PER_CALL, chunks
from fairlane.store.scripts import Scripts, call

# Records of a silent gateway's running requests are kept this long: longer than any reservation's lease.
LIVE_MS = 900_000
# A gateway that is silent for this long has lost its requests.
LOST_MS = 15_000
# Share of the ring: plain records are evicted first while they exceed it, else the oldest record of all.
PLAIN_SHARE = 0.25
PAGE = PER_CALL
PREFIX = "fl:records:{requests}:"

_SCRIPTS = Scripts(Path(__file__).parent / "lua")


class EndedRecord(msgspec.Struct, frozen=True):
    """A record for the ring; special ones are evicted later."""

    record: RequestRecord
    is_special: bool


class RecordStore:
    """The store of records. Every call may raise StoreUnavailable, and may be repeated."""

    def __init__(self, client: Redis, gateway_id: str, *, most: int) -> None:
        self._client = client
        self._gateway_id = gateway_id
        self._most = most

    async def write(
        self, ended: Sequence[EndedRecord], running: Sequence[RequestRecord], gone: Iterable[tuple[str, str]] = ()
    ) -> None:
        """Store ended and running records, and remove running ones that have ended, given by id and packed names."""
        parts = list(zip_longest(chunks(ended), chunks(running), chunks(gone), fillvalue=())) or [((), (), ())]
        for part in parts:
            await self._write(self._gateway_id, LIVE_MS, *part)

    async def settle_lost(self, gateway_id: str, record: RequestRecord) -> None:
        ended = [EndedRecord(record, is_special=True)]
        await self._write(gateway_id, 0, ended, (), [(record.id, packed_names(record))])

    async def find(self, name: str) -> RequestRecord | None:
        found = await self._run("records_find", name)
        return _read_as_seen(found[0], int(found[1]), found[2].decode()) if found else None

    async def ended(
        self, latest_ms: float, passed_over: int, most: int = PAGE, account: str = ""
    ) -> tuple[list[RequestRecord], bool]:
        """Return up to `most` records that ended by `latest_ms`, newest first, and whether there may be more; with
        `account`, only that tenant's."""
        latest = "+inf" if latest_ms == float("inf") else str(round(latest_ms))
        found = await self._run("records_ended", latest, passed_over, most, account)
        return [record for doc in found if doc and (record := decode(doc))], len(found) == most

    async def running(self) -> list[RequestRecord]:
        gateways = await call(self._client, "ZRANGE", f"{PREFIX}gateways", 0, -1)
        return [record for gateway in gateways for record in await self._running_in(gateway.decode())]

    async def _running_in(self, gateway_id: str) -> Collection[RequestRecord]:
        found: dict[str, RequestRecord] = {}
        cursor = b"0"
        while page := await self._run("records_running", gateway_id, cursor, PER_CALL):
            records = [_read_as_seen(doc, int(page[0]), gateway_id) for doc in page[2:]]
            found |= {record.id: record for record in records if record}
            cursor = page[1]
            if cursor == b"0":
                break
        return found.values()

    async def erase(self, account: str) -> int:
        """Delete the ended requests of a deleted tenant; return their number. A running one is deleted when it ends."""
        erased = 0
        while ids := await call(self._client, "ZRANGE", f"{PREFIX}of:{account}", 0, PER_CALL - 1):
            await self._run("records_erase", account, *ids)
            erased += len(ids)
        return erased

    async def leave(self) -> None:
        await self._run("records_left", self._gateway_id)

    async def _write(
        self,
        gateway_id: str,
        live_ms: int,
        ended: Sequence[EndedRecord],
        running: Sequence[RequestRecord],
        gone: Iterable[tuple[str, str]],
    ) -> None:
        args: list[bytes | str | float] = [gateway_id, self._most, int(self._most * PLAIN_SHARE), live_ms, len(ended)]
        for each in ended:
            record = each.record
            names = f"@{record.account}\0{packed_names(record)}"
            args += (record.id, record.ended_ms, int(each.is_special), names, encode(record))
        args.append(len(running))
        for record in running:
            args += (record.id, packed_names(record), encode(record))
        for id_and_names in gone:
            args += id_and_names
        await self._run("records_write", *args)

    def _run(self, script: str, *args: bytes | str | float) -> Awaitable[Any]:
        return _SCRIPTS.run(self._client, script, PREFIX, *args)


def stored_name(name: str, account: str | None) -> str:
    """Return the stored form of a request's or response's id, for an account's tenant or (None) for operators."""
    return f"R/{name}" if account is None else f"T/{account}/{name}"


def packed_names(record: RequestRecord) -> str:
    """Return a record's other names, with a NUL after each."""
    names = [name for name in (record.request_id, record.answer_id) if name]
    return "".join(f"{stored_name(name, account)}\0" for name in names for account in (record.account, None))


def _read_as_seen(doc: bytes, silent_ms: int, gateway_id: str) -> RequestRecord | None:
    """Decode a record, and mark it as lost if its gateway is silent. `silent_ms` is -1 for an ended one."""
    record = decode(doc)
    if record is not None and silent_ms >= 0:
        record.gateway = gateway_id
        if silent_ms > LOST_MS:
            record.state = "lost"
    return record
