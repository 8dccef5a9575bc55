"""One batch while this gateway runs it: a bounded number of its lines at a time, then its output files.

Lines start in file order. Responses are collected in segments: a segment is first written to the storage, then recorded
in the store, which makes it valid. Lines that were running when a gateway died run again under the same name, and are
charged once."""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from functools import partial

import msgspec

from fairlane.gateway.batches import files, results
from fairlane.gateway.batches.batch import Batch, BatchFault, Ending, Progress
from fairlane.gateway.batches.batch_records import TakenBatch
from fairlane.gateway.batches.files import StoredFile
from fairlane.gateway.batches.host import BatchHost
from fairlane.gateway.batches.input_lines import InputLines
from fairlane.gateway.batches.line_runner import LineRunner
from fairlane.gateway.batches.lines import BatchLine
from fairlane.gateway.batches.persistence import persist
from fairlane.gateway.batches.results import ERRORS, OUTPUT, LineEnd, OutputFiles, Segments
from fairlane.gateway.batches.storage import NotStored
from fairlane.gateway.batches.validation import INPUT_GONE, input_faults, read_index
from fairlane.quotas.idempotency import LineCharge
from fairlane.store.errors import STORE_ERRORS

log = logging.getLogger(__name__)

# A segment is written at this many lines or bytes, or when its first line has waited this many seconds.
SEGMENT_LINES, SEGMENT_BYTES, SEGMENT_S = 256, 4 * 2**20, 1.0
# Interval for polling the settlement of the lines that a batch's end cut off.
SETTLED_EVERY_S = 0.1
# A batch that cannot run a line for this many seconds releases its slot if other batches need it.
LEAST_REST_S = 1.0


class LeaseLost(Exception):
    """Another gateway owns the batch."""


class OpenBatch:
    """A batch that this gateway has taken. `run` ends or releases it."""

    def __init__(self, taken: TakenBatch, host: BatchHost) -> None:
        self._taken = taken
        self._host = host
        self._batch = taken.batch
        self._input = InputLines(taken.batch, host, taken.progress or Progress.of(0))
        # Unique to this owner, even if the store has lost its record of the epoch and assigns it again.
        self._run = f"{taken.epoch}-{secrets.token_hex(4)}"
        self._segments = Segments(taken.batch.id, host.storage, host.drafts)
        self.is_cancelling = taken.is_cancelling
        self._is_lost = False
        self.id, self.root = taken.batch.id, taken.root
        self.begun_s = time.monotonic()
        self.is_elsewhere = False
        # The batch must release its slot to another tenant's batch.
        self.gives_way = False
        # Time for which the batch cannot be taken again after that.
        self._rest_s = 0.0
        self._tokens = 0

    async def run(self) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine always runs in a task
        renewing = asyncio.create_task(self._renew(task), name="batch lease")
        try:
            await self._advance()
        except LeaseLost:
            await self._left_to_others()
        except asyncio.CancelledError:
            if not self._is_lost:
                raise
            await self._left_to_others()
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)

    async def _left_to_others(self) -> None:
        host, batch = self._host, self._batch
        log.warning("batch lost to another gateway, or erased: batch=%s", batch.id)
        with suppress(*STORE_ERRORS):
            if await host.records.get(self._taken.root, batch.account, batch.id) is None:
                await self._segments.delete()
                for kind in (OUTPUT, ERRORS):
                    await host.storage.delete(files.contents(results.output_id(batch.id, kind)))

    async def _advance(self) -> None:
        faults = await input_faults(self._batch, self.root, self._host)
        if not faults and not await self._load():
            if time.time() < self._batch.expires_at:
                log.warning("batch cannot run here, its file is not in gateway.files.url: batch=%s", self._batch.id)
                self.is_elsewhere = True
                await self._give_back()
                return
            faults = [INPUT_GONE]
        if faults and self._batch.status in ("validating", "in_progress"):
            await self._fail(faults)
            return
        if self._batch.status == "validating":
            await self._save(status="in_progress", in_progress_at=_now_s())
        if self._batch.status == "in_progress":
            ending = await self._run_lines()
            if ending is None:  # it continues later, here or elsewhere
                await self._give_back()
                return
            await self._save(status="finalizing", finalizing_at=_now_s(), ends_as=ending)
        await self._finalize()

    async def _renew(self, task: "asyncio.Task[None]") -> None:
        while True:
            await asyncio.sleep(self._host.lease_s / 3)
            try:
                lease_ms = round(self._host.lease_s * 1e3)
                held, is_cancelling = await self._host.records.renew(self._taken, lease_ms)
            except STORE_ERRORS:
                continue  # a lost lease shows at the next save
            if not held:
                self._is_lost = True
                task.cancel()
                return
            self.is_cancelling = self.is_cancelling or is_cancelling

    async def _give_back(self) -> None:
        try:
            await self._host.records.renew(self._taken, 0, rest_ms=round(self._rest_s * 1e3))
        except STORE_ERRORS:
            log.info("batch not released, free when its lease expires: batch=%s", self._batch.id)

    async def _load(self) -> bool:
        index = await read_index(self._host.storage, self._batch)
        if index is None:
            return False
        self._input.index = index
        if self._taken.progress is None:
            self._input.progress = Progress.of(len(index))
        self._tokens = await asyncio.to_thread(self._input.tokens_left, self._host.unstated_tokens)
        self._batch = msgspec.structs.replace(self._batch, total=len(index))
        return True

    async def _run_lines(self) -> Ending | None:
        runner = LineRunner(self._batch, self._taken.root, self._host, self._taken.epoch > 1)
        try:
            async with aclosing(self._input.read()) as lines:
                return await self._drive(runner, lines)
        except NotStored:  # the input file no longer exists: the other lines cannot run
            await self._keep(await runner.end())
            return "expired"
        finally:
            await runner.abandon()

    async def _drive(self, runner: "LineRunner", lines: AsyncGenerator[tuple[int, BatchLine]]) -> Ending | None:
        unwritten, since_s, exhausted = list[LineEnd](), 0.0, False
        while not (self._is_over() or self._leaves_its_place(runner)):
            while not exhausted and runner.may_begin and not self._is_over():
                following = await anext(lines, None)
                exhausted = following is None
                if following is not None:
                    runner.begin(*following)
            if exhausted and not runner.is_busy:
                break
            ended = await runner.step(min(SEGMENT_S, max(0.0, self._batch.expires_at - time.time())))
            self.is_cancelling = self.is_cancelling or runner.tenant_is_deleted
            since_s = since_s if unwritten else time.monotonic()
            unwritten += ended
            size = sum(len(end.record) for end in unwritten)
            if unwritten and (
                len(unwritten) >= SEGMENT_LINES or size >= SEGMENT_BYTES or time.monotonic() - since_s >= SEGMENT_S
            ):
                await self._keep(unwritten)
                unwritten = []
        ends = await runner.end()
        await self._keep([*unwritten, *ends])
        if not any(True for _ in self._input.undone()):
            return "cancelled" if self.is_cancelling else "completed"
        if self.is_cancelling:
            return "cancelled"
        return "expired" if time.time() >= self._batch.expires_at else None

    def _leaves_its_place(self, runner: "LineRunner") -> bool:
        """Return whether its turn has ended, or it cannot run any line for a while and others are waiting."""
        if runner.rests_s >= LEAST_REST_S and self._host.is_crowded:
            self._rest_s = runner.rests_s
            return True
        return self.gives_way

    def _is_over(self) -> bool:
        return self.is_cancelling or self._host.is_stopping() or time.time() >= self._batch.expires_at

    async def _keep(self, ends: Sequence[LineEnd]) -> None:
        if not ends:
            return
        progress = self._input.progress
        number = progress.segments.get(self._run, 0)
        await persist(lambda: self._segments.write(self._run, number, ends))
        unstated = self._host.unstated_tokens
        for end in ends:
            progress.mark(end.place)
            self._tokens -= self._input.index[end.place].tokens(unstated)
            self._host.telemetry.batch_lines.add("failed" if end.is_error else "completed")
        progress.segments[self._run] = number + 1
        failed = sum(end.is_error for end in ends)
        batch = self._batch
        await self._save(
            completed=batch.completed + len(ends) - failed,
            failed=batch.failed + failed,
            prompt_tokens=batch.prompt_tokens + sum(end.prompt_tokens for end in ends),
            cached_tokens=batch.cached_tokens + sum(end.cached_tokens for end in ends),
            output_tokens=batch.output_tokens + sum(end.output_tokens for end in ends),
        )
        with suppress(*STORE_ERRORS):  # a failure is harmless: the store forgets them with the batch
            await self._host.earlier.expire_runs(self._taken.root, [batch.line_name(end.place) for end in ends])

    async def _finalize(self) -> None:
        """Write the output files and end the batch. A repetition after a crash produces the same files."""
        made = OutputFiles(self._batch, self._host.storage, self._host.drafts)
        batch = self._batch
        try:
            async for lines in self._segments.records(self._input.progress):
                await made.add(lines)
            if batch.ends_as is not None and batch.ends_as != "completed":
                batch = await self._add_unfinished(made, batch.ends_as)
            kept = await made.put()
        finally:
            made.discard()
        ending, now_s = batch.ends_as, _now_s()
        batch = msgspec.structs.replace(
            batch,
            status=ending or "completed",
            output_file_id=kept[OUTPUT].id if OUTPUT in kept else None,
            error_file_id=kept[ERRORS].id if ERRORS in kept else None,
        )
        await self._finish(msgspec.structs.replace(batch, **{f"{ending}_at": now_s}), list(kept.values()))
        await self._segments.delete()

    async def _add_unfinished(self, made: OutputFiles, ending: Ending) -> Batch:
        """Add the lines without a response to the error file. Return the batch with them and their charges."""
        batch, count = self._batch, 0
        charges = await self._charges()
        try:
            async for place, line in self._input.read():
                end = results.unfinished(batch, place, line.custom_id, ending, charges.get(place))
                await made.add(ERRORS + end.record + b"\n")
                self._host.telemetry.batch_lines.add(ending)
                count += 1
        except NotStored:
            log.warning("input file of an unfinished batch is gone: batch=%s", batch.id)
        return msgspec.structs.replace(
            batch,
            failed=batch.failed + count,
            unrun=count,
            prompt_tokens=batch.prompt_tokens + sum(charge.prompt for charge in charges.values()),
            cached_tokens=batch.cached_tokens + sum(charge.cached for charge in charges.values()),
            output_tokens=batch.output_tokens + sum(charge.output for charge in charges.values()),
        )

    async def _charges(self) -> dict[int, LineCharge]:
        """Return what was charged for lines without a response, by place, once all their runs are settled."""
        open_places, charged = list(self._input.undone()), dict[int, LineCharge]()
        while open_places:
            names = [self._batch.line_name(place) for place in open_places]
            found = await persist(partial(self._host.earlier.charges, self.root, names))
            by_place = dict(zip(open_places, found, strict=True))
            charged |= {place: charge for place, charge in by_place.items() if charge.prompt + charge.output}
            open_places = [place for place, charge in by_place.items() if charge.is_open]
            await asyncio.sleep(SETTLED_EVERY_S if open_places else 0.0)
        return charged

    async def _fail(self, faults: Sequence[BatchFault]) -> None:
        log.info("batch failed: batch=%s code=%s", self._batch.id, faults[0].code)
        batch = msgspec.structs.replace(self._batch, status="failed", failed_at=_now_s(), faults=tuple(faults))
        await self._finish(batch, [])

    async def _finish(self, batch: Batch, made: list[StoredFile]) -> None:
        host = self._host
        if not await persist(lambda: host.records.finish(self._taken, batch, made)):
            raise LeaseLost
        self._batch = batch
        host.telemetry.batches.add(batch.status)
        counts = batch.completed, batch.failed
        log.info("batch ended: batch=%s status=%s completed=%d failed=%d", batch.id, batch.status, *counts)

    async def _save(self, **changes: object) -> None:
        host, batch = self._host, msgspec.structs.replace(self._batch, **changes)
        if not await persist(lambda: host.records.save(self._taken, batch, self._input.progress, self._tokens)):
            raise LeaseLost
        self._batch = batch


def _now_s() -> int:
    return int(time.time())
