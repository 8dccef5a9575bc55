"""Registry of models and workers: workers announce their model's card and send heartbeats; gateways and operators read.

It is separate from the queues, under its own hash tag. Under `fl:{registry}:`

| key | type | holds |
| --- | --- | --- |
| `card:<sha256>` | string | an encoded ModelCard; expires seven days after it was last announced |
| `since:<sha256>` | string | Unix seconds of its first announcement; expires with it |
| `models` | hash | model → SHA-256 of the card that was announced last |
| `queues` | hash | queue → SHA-256 of its card; removed with the queue |
| `worker:<id>` | string | its encoded WorkerStatus; expires without heartbeats |
| `workers` | set | ids of workers that may be alive |
| `depths` | string | encoded depths of all queues, by the elected gateway; expires after a few seconds |
| `link_secret` | string | what workers and gateways prove to know on their links |
| `upkeep` | string | the gateway elected for upkeep; expires unless renewed |
| `blocks:<id>` | string | its encoded BlockMap, while an operator watches; expires after a few seconds |"""

import hashlib
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from fairlane.scheduler.protocol.block_map import BlockMap, WatchBlocks
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.protocol.media import MeasureMedia
from fairlane.scheduler.protocol.messages import Control, Drain, ForgetPrompts, ModelCard, Undrain, WorkerStatus, encode
from fairlane.scheduler.queue.keys import STREAM_LENGTH, control_stream
from fairlane.scheduler.queue.types import RECORD_TTL_MS, LaneDepth
from fairlane.store.errors import STORE_ERRORS

BLOCKS_TTL_MS = 5_000
DEPTHS_TTL_MS = 2_000
CARD_TTL_MS = 7 * 24 * 3_600_000
SECRET_KEPT_S = 10.0
_PREFIX = "fl:{registry}:"
UPKEEP = f"{_PREFIX}upkeep"
_LINK_SECRET = f"{_PREFIX}link_secret"
_MODELS, _QUEUES, _WORKERS = f"{_PREFIX}models", f"{_PREFIX}queues", f"{_PREFIX}workers"

_card: msgspec.msgpack.Decoder[ModelCard] = msgspec.msgpack.Decoder(ModelCard)
_block_map: msgspec.msgpack.Decoder[BlockMap] = msgspec.msgpack.Decoder(BlockMap)
AllDepths = Mapping[str, Mapping[LaneName, LaneDepth]]
_depths: msgspec.msgpack.Decoder[dict[str, dict[LaneName, LaneDepth]]] = msgspec.msgpack.Decoder(
    dict[str, dict[LaneName, LaneDepth]]
)
_encoder = msgspec.msgpack.Encoder()
_status: msgspec.msgpack.Decoder[WorkerStatus] = msgspec.msgpack.Decoder(WorkerStatus)


class Store(Protocol):
    """The required part of a Redis client that returns bytes; `redis.asyncio.Redis` has it."""

    def execute_command(self, *args: Any, **options: Any) -> Awaitable[Any]:  # noqa: ANN401  as the client has it
        ...


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """The queue for a model's jobs, and the SHA-256 of its card."""

    queue: str
    card_sha256: str


def card_sha256(card: ModelCard) -> str:
    """Return the name of a card: a digest of its content, and the number of its queue's shards if there are several."""
    digest = hashlib.sha256(encode(card)).hexdigest()
    return digest if card.shards is msgspec.UNSET else f"{digest}/{card.shards}"


def queue_name(model: str, sha256: str) -> str:
    """Return the queue of a (model, card), which is also the name of its first shard."""
    digest, slash, shards = sha256.partition("/")
    return f"{model}@{digest[:12]}{slash}{shards}"


def model_of(queue: str) -> str:
    """Return the model of a queue."""
    return queue.rpartition("@")[0]


class RedisRegistry:
    """The registry, for all processes. Every method raises the client's errors while the store is unavailable."""

    def __init__(self, redis: Store, *, clock: Callable[[], float] = time.time) -> None:
        self._redis = redis
        self._clock = clock
        self._announced: set[str] = set()
        self._link_secret = b""
        self._secret_read_s = 0.0

    async def announce(self, card: ModelCard) -> str:
        """Store a card for seven more days and return its SHA-256.

        The first announcement of a process makes the card its model's newest. Later ones only refresh it, so that old
        workers do not take the name back during a rolling update."""
        sha256 = card_sha256(card)
        await self._redis.execute_command("SET", f"{_PREFIX}card:{sha256}", encode(card), "PX", CARD_TTL_MS)
        await self._since(sha256)
        await self._redis.execute_command("PEXPIRE", _since(sha256), CARD_TTL_MS)
        await self._redis.execute_command(
            "HSETNX" if sha256 in self._announced else "HSET", _MODELS, card.model, sha256
        )
        await self.note_queue(queue_name(card.model, sha256), sha256)
        self._announced.add(sha256)
        return sha256

    async def link_secret(self) -> bytes:
        """Return the secret of the fleet's links; the first process draws it.

        It is read again every SECRET_KEPT_S, in case the store has lost it and another process has drawn a new one.
        While the store is unavailable, the last one is returned."""
        now_s = self._clock()
        if self._link_secret and abs(now_s - self._secret_read_s) < SECRET_KEPT_S:
            return self._link_secret
        self._secret_read_s = now_s  # before the read, so that only one handshake waits for a store that hangs
        try:
            while not (found := await self._redis.execute_command("GET", _LINK_SECRET)):
                await self._redis.execute_command("SET", _LINK_SECRET, self._link_secret or secrets.token_hex(32), "NX")
        except STORE_ERRORS:
            if not self._link_secret:
                raise
        else:
            self._link_secret = found
        return self._link_secret

    async def beat(self, status: WorkerStatus, ttl_ms: int) -> None:
        """Record a worker's heartbeat; without another one within `ttl_ms` the worker counts as gone."""
        await self._redis.execute_command("SET", _worker(status.worker_id), encode(status), "PX", ttl_ms)
        await self._redis.execute_command("SADD", _WORKERS, status.worker_id)

    async def leave(self, worker_id: str) -> None:
        await self._redis.execute_command("DEL", _worker(worker_id))
        await self._redis.execute_command("SREM", _WORKERS, worker_id)

    async def workers(self) -> list[WorkerStatus]:
        ids = sorted(worker.decode() for worker in await self._redis.execute_command("SMEMBERS", _WORKERS))
        if not ids:
            return []
        blobs = await self._redis.execute_command("MGET", *map(_worker, ids))
        gone = [worker_id for worker_id, blob in zip(ids, blobs, strict=True) if blob is None]
        if gone:  # a worker that returns is added by its next heartbeat
            await self._redis.execute_command("SREM", _WORKERS, *gone)
        return [_status.decode(blob) for blob in blobs if blob is not None]

    async def models(self) -> dict[str, ModelEntry]:
        named = await self._redis.execute_command("HGETALL", _MODELS)
        found = sorted((model.decode(), sha256.decode()) for model, sha256 in named.items())
        cards = [f"{_PREFIX}card:{sha256}" for _, sha256 in found]
        known = await self._redis.execute_command("EXISTS", *cards) if cards else 0
        if known < len(cards):  # rare: a card expired
            there = [await self._redis.execute_command("EXISTS", card) for card in cards]
            gone = [model for (model, _), is_there in zip(found, there, strict=True) if not is_there]
            found = [each for each, is_there in zip(found, there, strict=True) if is_there]
            if gone:
                await self._redis.execute_command("HDEL", _MODELS, *gone)
        return {model: ModelEntry(queue_name(model, sha256), sha256) for model, sha256 in found}

    async def queues(self) -> dict[str, str]:
        found = await self._redis.execute_command("HGETALL", _QUEUES)
        return {queue.decode(): sha256.decode() for queue, sha256 in found.items()}

    async def note_queue(self, queue: str, sha256: str) -> None:
        await self._redis.execute_command("HSET", _QUEUES, queue, sha256)

    async def drop_queue(self, queue: str) -> None:
        """Remove an empty queue; a worker that serves it again announces it again."""
        await self._redis.execute_command("HDEL", _QUEUES, queue)

    async def card(self, sha256: str) -> ModelCard | None:
        """Return a card with the time of its first announcement, or None if it has expired."""
        blob = await self._redis.execute_command("GET", f"{_PREFIX}card:{sha256}")
        return (
            None if blob is None else msgspec.structs.replace(_card.decode(blob), created_s=await self._since(sha256))
        )

    async def _since(self, sha256: str) -> int:
        now_s = int(self._clock())
        await self._redis.execute_command("SET", _since(sha256), now_s, "NX", "PX", CARD_TTL_MS)
        since = await self._redis.execute_command("GET", _since(sha256))
        return now_s if since is None else int(since)

    async def drain(self, worker_id: str) -> bool:
        """Ask a worker to take no more jobs. Return False if no worker with this id is alive."""
        return await self._send_to_worker(worker_id, Drain())

    async def undrain(self, worker_id: str) -> bool:
        """Ask a worker to take jobs again. Return False if no worker with this id is alive."""
        return await self._send_to_worker(worker_id, Undrain())

    async def forget_prompts(self, tenant: str, tenant_since: float, share_group: str) -> int:
        message = ForgetPrompts(tenant=tenant, tenant_since=tenant_since, share_group=share_group)
        workers = await self.workers()
        for worker in workers:
            await self._send(worker.queue, worker.worker_id, message)
        return len(workers)

    async def watch_blocks(self, queue: str, worker_id: str, for_ms: int) -> None:
        """Ask a worker of a queue to publish its block map each second, for `for_ms`."""
        await self._send(queue, worker_id, WatchBlocks(for_ms=for_ms))

    async def measure_media(self, queue: str, worker_id: str, message: MeasureMedia) -> None:
        """Ask a worker of a queue to measure an item, which it fetches from its gateway."""
        await self._send(queue, worker_id, message)

    async def show_blocks(self, blocks: BlockMap) -> None:
        """Publish a worker's block map; it expires after a few seconds."""
        await self._redis.execute_command("SET", _blocks(blocks.worker), encode(blocks), "PX", BLOCKS_TTL_MS)

    async def blocks(self, worker_ids: Sequence[str]) -> list[BlockMap]:
        if not worker_ids:
            return []
        blobs = await self._redis.execute_command("MGET", *map(_blocks, worker_ids))
        return [_block_map.decode(blob) for blob in blobs if blob is not None]

    async def show_depths(self, depths: AllDepths) -> None:
        """Publish the load of all queues, for gateways that do not poll them; it expires after a few seconds."""
        await self._redis.execute_command("SET", f"{_PREFIX}depths", _encoder.encode(depths), "PX", DEPTHS_TTL_MS)

    async def depths(self) -> AllDepths:
        """Return the published load; empty if there is none, or if another release encoded it."""
        blob = await self._redis.execute_command("GET", f"{_PREFIX}depths")
        try:
            return {} if blob is None else _depths.decode(blob)
        except msgspec.DecodeError:
            return {}

    async def _send_to_worker(self, worker_id: str, message: Control) -> bool:
        blob = await self._redis.execute_command("GET", _worker(worker_id))
        if blob is None:
            return False
        await self._send(_status.decode(blob).queue, worker_id, message)
        return True

    async def _send(self, queue: str, worker_id: str, message: Control) -> None:
        stream = control_stream(queue, worker_id)
        await self._redis.execute_command("XADD", stream, "MAXLEN", "~", STREAM_LENGTH, "*", "c", encode(message))
        await self._redis.execute_command("PEXPIRE", stream, RECORD_TTL_MS)


def _since(sha256: str) -> str:
    return f"{_PREFIX}since:{sha256}"


def _blocks(worker_id: str) -> str:
    return f"{_PREFIX}blocks:{worker_id}"


def _worker(worker_id: str) -> str:
    return f"{_PREFIX}worker:{worker_id}"
