"""The open requests at a server, each a task on a separate thread's event loop.

Replies are not trusted: ids outside the vocabulary, more tokens than requested, a wrong count, or a long silence end
the stream as broken."""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from enum import Enum, auto

import msgspec

from fairlane.common.redacted import Redacted
from fairlane.scheduler.planner.steps import SeqId
from fairlane.scheduler.protocol.media import MediaKind
from fairlane.scheduler.protocol.messages import PositionLogprobs
from fairlane.worker.remote.api import (
    Api,
    EngineUnavailable,
    Facts,
    GenerationRequest,
    Piece,
    ProtocolViolation,
    Refused,
)
from fairlane.worker.remote.monitor import ServerMonitor
from fairlane.worker.remote.prompt_logprobs import missing

log = logging.getLogger(__name__)

# Maximum time for one token; bounded by the lease.
STALL_S = 30.0
# Tokens per second: the limit of a first token grows by the waiting prompts' tokens at this rate.
SLOWEST_PREFILL = 50
# Maximum extension of that limit.
LONGEST_PREFILL_S = 90.0
# The tokens of one server step arrive one after another: how long to wait for the last of them.
TOGETHER_S = 0.004
# Time limit for what follows the last tokens.
REST_S = 1.0
CLOSE_S = 5.0


class StreamEnd(Enum):
    """The outcome of a stream."""

    # Complete, or ended by a stop token.
    SERVED = auto()
    # A retry may continue from here.
    BROKEN = auto()
    # A retry would be refused too.
    REFUSED = auto()


class Token(Redacted, frozen=True):
    """One token as it arrived."""

    token_id: int
    logprob: PositionLogprobs | None
    arrived_s: float
    # Set with the token that reported it: the number of request tokens found in a cache.
    cached_tokens: int
    # With a stream's first token.
    prompt_logprobs: Sequence[PositionLogprobs] = ()
    # The token is a placeholder for these.
    vectors: bytes = b""


@dataclass(slots=True, eq=False)
class _Stream:
    request: GenerationRequest
    opened_s: float
    # Arrival of its last tokens, or the opening time.
    last_piece_s: float
    tokens: deque[Token] = field(default_factory=deque)
    prompt_logprobs: Sequence[PositionLogprobs] = ()
    # Number of tokens, including repeated ones.
    received: int = 0
    end: StreamEnd | None = None
    reason: str = ""
    task: "asyncio.Task[None] | None" = None


class Streams:
    """All streams of one server. The engine's thread calls `open`, `stop`, `wait`, `take` and `end_of`."""

    def __init__(self, api: Api, vocab_size: int, *, facts: Facts | None = None, lease_s: float | None = None) -> None:
        """`facts` are those that the server must keep; None disables the check. `lease_s` bounds a silence."""
        # The content of each item that a job here names, by digest. The worker's event loop writes it.
        self.media: dict[bytes, bytes] = {}
        self._api = api
        self._stall_s = STALL_S if lease_s is None else min(lease_s, STALL_S)
        self._vocab_size = vocab_size
        self._streams: dict[SeqId, _Stream] = {}
        self._arrived = threading.Condition()
        self._woken = False
        self._is_closed = False
        self._monitor = ServerMonitor(api, facts, self._spawn, stall_s=self._stall_s)
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="engine requests", daemon=True)
        self._thread.start()

    def watch(self, on_presence: Callable[[bool], object], on_change: Callable[[str], object] = lambda _: None) -> None:
        """Set callbacks for a server that becomes unreachable or returns, and for one that was replaced."""
        self._monitor.on_presence, self._monitor.on_change = on_presence, on_change
        self._loop.call_soon_threadsafe(self._begin_watching)

    def close(self) -> None:
        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(CLOSE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_S)
        if not self._thread.is_alive():
            self._loop.close()

    def measure(self, kind: MediaKind, data: bytes) -> Future[int]:
        """Ask for the number of tokens of an item; see `Api.measure`."""
        return asyncio.run_coroutine_threadsafe(self._api.measure(kind, data), self._loop)

    def open(self, seq: SeqId, request: GenerationRequest) -> None:
        """Request a choice's next tokens; its previous stream must have ended."""
        now_s = time.monotonic()
        stream = _Stream(request, opened_s=now_s, last_piece_s=now_s)
        with self._arrived:
            self._streams[seq] = stream
        self._loop.call_soon_threadsafe(self._begin, stream)

    def stop(self, seqs: Iterable[SeqId]) -> None:
        with self._arrived:
            stopped = [self._streams.pop(seq) for seq in seqs if seq in self._streams]
        for stream in stopped:
            self._loop.call_soon_threadsafe(self._cancel, stream)

    @property
    def is_up(self) -> bool:
        return self._monitor.is_up

    def opened_s(self, seq: SeqId) -> float | None:
        stream = self._streams.get(seq)
        return None if stream is None else stream.opened_s

    def is_running(self, seq: SeqId) -> bool:
        stream = self._streams.get(seq)
        return stream is not None and stream.end is None

    def wake(self) -> None:
        with self._arrived:
            self._woken = True
            self._arrived.notify()

    def wait(self, seqs: Collection[SeqId], timeout_s: float) -> None:
        """Wait until all of these have a token or an end, shortly after the first has, or until woken."""
        with self._arrived:
            if self._arrived.wait_for(lambda: self._woken or self._ready(seqs), timeout_s) and not self._woken:
                self._arrived.wait_for(lambda: self._woken or self._ready(seqs) == len(seqs), TOGETHER_S)
            self._woken = False

    def take(self, seq: SeqId) -> Token | None:
        stream = self._streams.get(seq)
        return stream.tokens.popleft() if stream is not None and stream.tokens else None

    def end_of(self, seq: SeqId) -> tuple[StreamEnd, str] | None:
        stream = self._streams.get(seq)
        if stream is None or stream.end is None or stream.tokens:
            return None
        with self._arrived:
            del self._streams[seq]
        return stream.end, stream.reason

    def _ready(self, seqs: Collection[SeqId]) -> int:
        streams = [self._streams.get(seq) for seq in seqs]
        return sum([one is not None and (bool(one.tokens) or one.end is not None) for one in streams])

    # The following methods run on the streams' thread.

    def _begin(self, stream: _Stream) -> None:
        if not self._is_closed:
            stream.task = self._spawn(self._read(stream))

    def _begin_watching(self) -> None:
        if not self._is_closed:
            self._monitor.start()

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _cancel(self, stream: _Stream) -> None:
        if stream.task is not None:
            stream.task.cancel()

    async def _read(self, stream: _Stream) -> None:
        try:
            await self._read_whole(stream)
            self._end(stream, StreamEnd.SERVED)
        except Refused as refusal:
            self._end(stream, StreamEnd.REFUSED, str(refusal))
        except (EngineUnavailable, ProtocolViolation, TimeoutError) as error:
            log.warning("a request to the engine was interrupted: %s", str(error) or type(error).__name__)
            if isinstance(error, EngineUnavailable):
                self._monitor.check()
            elif isinstance(error, TimeoutError) and self._monitor.last_piece_s <= stream.last_piece_s:
                self._monitor.check(is_stalled=True)  # no other stream received any data either
            self._end(stream, StreamEnd.BROKEN, str(error) or "the engine was silent")
        except Exception as error:  # noqa: BLE001 - a reader that fails silently would leave its choice waiting
            log.error("a request to the engine failed: %s", type(error).__name__)
            self._end(stream, StreamEnd.BROKEN, "the engine's answer could not be read")

    async def _read_whole(self, stream: _Stream) -> None:
        async with aclosing(self._api.generate(stream.request)) as pieces:
            while True:
                async with asyncio.timeout(self._patience_s(stream)):
                    piece = await anext(pieces, None)
                if piece is None:
                    raise EngineUnavailable("the stream ended too early")
                self._check(stream, piece)
                if piece.has_ended:
                    piece = await self._with_usage(piece, pieces)
                is_complete = self._keep(stream, piece)
                if piece.has_ended and not is_complete:
                    raise ProtocolViolation("the stream ended before its length and without a stop token")
                if is_complete:
                    return

    def _patience_s(self, stream: _Stream) -> float:
        # Return the time limit for the next tokens. The server computes whole prompts, one after another.
        if stream.received:
            return self._stall_s
        with self._arrived:
            prompts = sum(len(one.request.token_ids) for one in self._streams.values() if not one.received)
        return self._stall_s + min(prompts / SLOWEST_PREFILL, LONGEST_PREFILL_S)

    async def _with_usage(self, last: Piece, pieces: AsyncGenerator[Piece, None]) -> Piece:
        # Return the last tokens with the usage after them. Reading the stream to its end frees the connection.
        cached = last.cached_tokens
        with suppress(TimeoutError, EngineUnavailable, ProtocolViolation):  # the tokens have arrived
            async with asyncio.timeout(REST_S):
                async for piece in pieces:
                    cached = max(cached, piece.cached_tokens)
        return msgspec.structs.replace(last, cached_tokens=cached)

    def _check(self, stream: _Stream, piece: Piece) -> None:
        if any(not 0 <= token_id < self._vocab_size for token_id in piece.token_ids):
            raise ProtocolViolation("a token is outside the vocabulary")
        if piece.counted is not None and piece.token_ids and piece.counted != stream.received + len(piece.token_ids):
            raise ProtocolViolation("tokens are missing or repeated")
        repeats = stream.request.repeats[stream.received : stream.received + len(piece.token_ids)]
        if [*piece.token_ids[: len(repeats)]] != [*repeats]:
            raise ProtocolViolation("it does not repeat its earlier output")
        lacks_prompt = len(stream.prompt_logprobs) < len(stream.request.token_ids) - 1
        if stream.request.sampling.prompt_logprobs is not None and piece.token_ids and lacks_prompt:
            raise missing()
        if stream.request.sampling.logprobs is not None and len(piece.logprobs) < len(piece.token_ids):
            raise ProtocolViolation("log-probabilities are missing")

    def _keep(self, stream: _Stream, piece: Piece) -> bool:
        now_s, sampling, is_complete = time.monotonic(), stream.request.sampling, False
        self._monitor.last_piece_s = stream.last_piece_s = now_s
        stream.prompt_logprobs = stream.prompt_logprobs or piece.prompt_logprobs
        with self._arrived:
            for place, token_id in enumerate(piece.token_ids):
                if is_complete:
                    break  # more than requested
                logprob = None if sampling.logprobs is None else piece.logprobs[place]
                stream.received += 1
                if stream.received <= len(stream.request.repeats):
                    continue
                of_prompt = stream.prompt_logprobs if stream.received == 1 else ()
                stream.tokens.append(Token(token_id, logprob, now_s, piece.cached_tokens, of_prompt, piece.vectors))
                is_complete = stream.received == stream.request.max_tokens or token_id in sampling.stop_token_ids
            self._arrived.notify()
        return is_complete

    def _end(self, stream: _Stream, end: StreamEnd, reason: str = "") -> None:
        with self._arrived:
            stream.end, stream.reason = end, reason
            self._arrived.notify()

    async def _close(self) -> None:
        self._is_closed = True
        while tasks := [*self._tasks]:  # including tasks that these start while ending, but not those of libraries
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
        await self._api.close()
