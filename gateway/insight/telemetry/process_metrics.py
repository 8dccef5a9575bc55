"""One set of metrics for all processes behind a port: the process that is scraped queries the others and merges their
metrics.

Each sample gets the label `process`. Counters and histograms can be summed over it even if a process is missing."""

import asyncio
import logging
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from fairlane.gateway.http.ports import Member

PROCESS_UP = """\
# HELP fairlane_gateway_process_up 1 if this process behind the port reports its metrics, else 0.
# TYPE fairlane_gateway_process_up gauge
fairlane_gateway_process_up {}
"""

log = logging.getLogger(__name__)

# A process that has not answered by then is reported as down.
PATIENCE_S = 1.0
_LENGTH_BYTES = 8
_FAMILY = re.compile(rb"^(?=# HELP )", re.MULTILINE)
_SAMPLE = re.compile(rb"^(\w+)(\{?)", re.MULTILINE)


class ProcessMetrics:
    """The metrics of one of several processes behind a port, or of a single one."""

    def __init__(self, member: Member | None, own: Callable[[], bytes]) -> None:
        """`own` returns this process's metrics in Prometheus' text format. It is called in a thread."""
        self._member = member
        self._own = _SharedCall(lambda: asyncio.to_thread(own))
        self._all = self._own if member is None else _SharedCall(lambda: self._gather(member))

    @asynccontextmanager
    async def answering(self) -> AsyncIterator[None]:
        if self._member is None:
            yield
            return
        server = await asyncio.start_unix_server(self._answer, self._member.path(self._member.index))
        try:
            yield
        finally:
            server.close()

    async def exposition(self) -> bytes:
        return await self._all.get()

    async def _gather(self, member: Member) -> bytes:
        texts = await asyncio.gather(
            *(self._own.get() if index == member.index else _ask(member.path(index)) for index in range(member.count))
        )
        return await asyncio.to_thread(merged, texts)

    async def _answer(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            text = await self._own.get()
            writer.write(len(text).to_bytes(_LENGTH_BYTES, "big") + text)
            await writer.drain()
        writer.close()


class _SharedCall:
    """Shares one call of `look` among all concurrent callers, so that scrapes use at most one thread."""

    def __init__(self, look: Callable[[], Coroutine[Any, Any, bytes]]) -> None:
        self._look = look
        self._looking: asyncio.Task[bytes] | None = None

    async def get(self) -> bytes:
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
            self._looking.add_done_callback(self._found)
        return await asyncio.shield(self._looking)

    def _found(self, _: object) -> None:
        self._looking = None


async def _ask(path: Path) -> bytes | None:
    try:
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
                return await reader.readexactly(length)
            finally:
                writer.close()
    except (OSError, asyncio.IncompleteReadError) as error:
        log.warning("%s does not report its metrics (%s)", path.stem, type(error).__name__)
        return None


def merged(texts: Sequence[bytes | None]) -> bytes:
    """Merge the metrics of several processes by family. None: the process at this index did not answer."""
    families: defaultdict[bytes, list[bytes]] = defaultdict(list)
    for index, text in enumerate(texts):
        up = PROCESS_UP.format(float(text is not None)).encode()
        for family in filter(None, _FAMILY.split((text or b"") + up)):
            named, typed, samples = family.split(b"\n", 2)
            families[named + b"\n" + typed + b"\n"].append(_marked(samples, index))
    return b"".join(head + b"".join(samples) for head, samples in families.items())


def _marked(samples: bytes, index: int) -> bytes:
    label = b'{process="%d"' % index
    return _SAMPLE.sub(lambda found: found[1] + label + (b"," if found[2] else b"}"), samples)
