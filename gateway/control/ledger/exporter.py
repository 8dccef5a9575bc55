"""Stores entries of the ledger, or of the audit log, in segments; see the package's docstring."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import msgspec

from fairlane.gateway.batches.storage import Drafts, NotStored, Storage, read_all
from fairlane.quotas.upkeep import Unexported
from fairlane.store.election import Election
from fairlane.store.errors import STORE_ERRORS
from fairlane.store.retry import every

log = logging.getLogger(__name__)

MOST_ENTRIES = 10_000


class Span(msgspec.Struct, frozen=True, array_like=True):
    """An account's entries in a segment."""

    root: str
    account: str
    # Id of the entry before the first.
    after: str
    last: str
    # Number of the last entry, counted from the ledger's start.
    number: int
    entries: int
    # Entries that were trimmed before these.
    lost: int


class Segment(msgspec.Struct, frozen=True):
    """One object of the export; finished if it has no spans."""

    number: int = 0
    day: str = ""
    spans: tuple[Span, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.day}/{self.number:010}.jsonl"


class Recorded(Protocol):
    """An entry, which the store has named by its time in ms and a number."""

    @property
    def id(self) -> str: ...


Entry = TypeVar("Entry", bound=Recorded)


class Source(Protocol[Entry]):
    """Entries to export, by account and root, and the state of their export: `Ledger` or `Audit`."""

    def accounts(self, *, lately: bool = False) -> AsyncIterator[tuple[str, str]]: ...

    async def unexported(self, root: str, account: str, limit: int) -> Unexported[Entry]: ...

    async def between(self, root: str, account: str, after: str, last: str) -> list[Entry]: ...

    async def exported(self, root: str, account: str, after: str, last: str, number: int) -> None: ...

    async def export_state(self) -> str: ...

    async def write_export_state(self, seen: str, new: str) -> bool: ...


class Exporter(Generic[Entry]):
    """The exporter of one gateway; only the elected gateway exports."""

    def __init__(
        self,
        source: Source[Entry],
        election: Election,
        storage: Storage,
        drafts: Drafts,
        *,
        every_s: float,
        lines: Callable[[str, Sequence[Entry]], list[bytes]],
        name: str = "ledger",
    ) -> None:
        """`lines` encodes the entries of an account."""
        self._source = source
        self._election = election
        self._storage = storage
        self._drafts = drafts
        self._every_s = every_s
        self._encoded_lines, self._name = lines, name
        # If True, only tenants with recent requests can have unexported entries.
        self._has_seen_all = False
        self.exported = 0
        self.lost = 0

    async def run(self) -> None:
        try:
            await every(self._every_s, f"exporting the {self._name}", self._round)
        finally:
            with suppress(*STORE_ERRORS):
                await self._election.leave()

    async def _round(self) -> None:
        try:
            await self.export()
        except STORE_ERRORS as error:
            self._has_seen_all = False
            log.warning("%s export failed: retry_s=%.0f error=%s", self._name, self._every_s, error)

    async def export(self) -> None:
        """Store all unexported entries if this gateway is elected. Raise STORE_ERRORS."""
        while await self._election.stand():
            known = await self._source.export_state()
            segment = msgspec.json.decode(known, type=Segment) if known else Segment()
            if segment.spans:  # an exporter was interrupted
                await self._finish(segment, await self._lines(segment))
                continue
            following, lines = await self._collected(segment.number + 1)
            if not following.spans:
                self._has_seen_all = True
                return
            # A store that has lost its latest plan assigns that plan's number again.
            while await self._is_stored(following.name):
                following = msgspec.structs.replace(following, number=following.number + 1)
            if await self._source.write_export_state(known, _encoded(following)):
                await self._finish(following, lines)
        self._has_seen_all = False

    async def _collected(self, number: int) -> tuple[Segment, list[bytes]]:
        day, spans, lines = "", [], list[bytes]()
        async for account, root in self._source.accounts(lately=self._has_seen_all):
            found = await self._source.unexported(root, account, MOST_ENTRIES - len(lines))
            day = day or (_day(found.entries[0]) if found.entries else "")
            entries = [entry for entry in found.entries if _day(entry) == day]
            if entries:
                last, count = entries[-1].id, len(entries)
                spans.append(Span(root, account, found.after, last, found.number + count, count, found.lost))
                lines += self._encoded_lines(account, entries)
            if len(lines) >= MOST_ENTRIES:
                break
        return Segment(number, day, tuple(spans)), lines

    async def _lines(self, segment: Segment) -> list[bytes]:
        lines = list[bytes]()
        for span in segment.spans:
            entries = await self._source.between(span.root, span.account, span.after, span.last)
            lines += self._encoded_lines(span.account, entries)
        return lines

    async def _finish(self, segment: Segment, lines: list[bytes]) -> None:
        lost = sum([span.lost for span in segment.spans])
        if not await self._is_stored(segment.name):
            if lines:
                draft = await asyncio.to_thread(_drafted, self._drafts, lines)
                await self._storage.put(segment.name, draft)
            lost += sum([span.entries for span in segment.spans]) - len(lines)
            self.exported += len(lines)
        for span in segment.spans:
            await self._source.exported(span.root, span.account, span.after, span.last, span.number)
        if await self._source.write_export_state(_encoded(segment), _encoded(Segment(segment.number))) and lost:
            self.lost += lost
            log.error("%d entries of the %s were dropped before they were exported", lost, self._name)

    async def _is_stored(self, name: str) -> bool:
        try:
            return bool(await read_all(self._storage, name, 0, 1))
        except NotStored:
            return False


def _day(entry: Recorded) -> str:
    return datetime.fromtimestamp(int(entry.id.partition("-")[0]) / 1e3, UTC).date().isoformat()


def _encoded(segment: Segment) -> str:
    return msgspec.json.encode(segment).decode()


def _drafted(drafts: Drafts, lines: Sequence[bytes]) -> Path:
    draft = drafts.new()
    with draft.open("wb") as file:
        file.writelines(lines)
        file.flush()
        os.fsync(file.fileno())
    return draft
