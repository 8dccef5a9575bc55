"""The requests that are open at a server: each a task on the event loop of a thread of their own, its tokens kept until
the engine's thread takes them.

What a server says is not believed: ids beyond the vocabulary, more tokens than were asked for, a count that is not
ours, or silence for too long end the stream as broken, and the tokens before that stand.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from fairlane.scheduler.planner.steps import SeqId
from fairlane.scheduler.protocol.messages import PositionLogprobs
from fairlane.worker.remote.api import Api, Ask, Away, Lied, Piece, Refused

log = logging.getLogger(__name__)

FIRST_TOKEN_S = 120.0
"""How long a prompt may take, and what the server has to do before it."""
STALL_S = 30.0
"""How long a further token may take."""
TOGETHER_S = 0.004
"""The tokens of one step of the server arrive one after another: how long those that come late are waited for."""
LOOK_S = 0.5
"""Between two looks whether the server is up, while it is not."""
GONE_S = 2.0
"""How long it may be away before its jobs are given to others."""
CLOSE_S = 5.0


class StreamEnd(Enum):
    """How a stream ended."""

    SERVED = auto()
    """It has what was asked for, or a stop token."""
    BROKEN = auto()
    """Another try may go on from here."""
    REFUSED = auto()
    """Another try would be refused too."""


class Token(NamedTuple):
    """One token as it arrived."""

    token_id: int
    logprob: PositionLogprobs | None
    arrived_s: float
    cached_tokens: int
    """With a stream's first token: of what was asked with, what a cache had."""

    def __repr__(self) -> str:
        return f"Token(at {self.arrived_s:.3f} s)"


@dataclass(slots=True, eq=False)
class _Stream:
    ask: Ask
    opened_s: float
    tokens: deque[Token] = field(default_factory=deque)
    came: int = 0
    end: StreamEnd | None = None
    reason: str = ""
    task: "asyncio.Task[None] | None" = None


class Streams:
    """All of one server. `open`, `stop`, `wait`, `take` and `end_of` are for the engine's thread."""

    def __init__(self, api: Api, vocab_size: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._vocab_size = vocab_size
        self._clock = clock
        self._streams: dict[SeqId, _Stream] = {}
        self._arrived = threading.Condition()
        self._woken = False
        self._is_up = True
        self._is_closed = False
        self._on_presence: Callable[[bool], None] = lambda _: None
        self._looking: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="engine requests", daemon=True)
        self._thread.start()

    def watch(self, on_presence: Callable[[bool], None]) -> None:
        """Have it called, by the streams' thread, when the server has gone, and when it is back."""
        self._on_presence = on_presence

    def close(self) -> None:
        """End every stream, there too."""
        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(CLOSE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_S)
        if not self._thread.is_alive():
            self._loop.close()

    def open(self, seq: SeqId, ask: Ask) -> None:
        """Ask for a choice's further tokens; the stream before it is over."""
        stream = _Stream(ask, self._clock())
        with self._arrived:
            self._streams[seq] = stream
        self._loop.call_soon_threadsafe(self._begin, stream)

    def stop(self, seqs: Iterable[SeqId]) -> None:
        """End these streams, there too; what has not been taken is forgotten."""
        with self._arrived:
            stopped = [self._streams.pop(seq) for seq in seqs if seq in self._streams]
        for stream in stopped:
            self._loop.call_soon_threadsafe(self._cancel, stream)

    @property
    def is_up(self) -> bool:
        """Nothing says that the server has gone."""
        return self._is_up

    def opened_s(self, seq: SeqId) -> float | None:
        """When its stream was opened; None where it has none."""
        stream = self._streams.get(seq)
        return None if stream is None else stream.opened_s

    def wake(self) -> None:
        """Have `wait` come back."""
        with self._arrived:
            self._woken = True
            self._arrived.notify()

    def wait(self, seqs: Collection[SeqId], timeout_s: float) -> None:
        """Return once all of these have something to take or an end; a moment after the first has; when woken."""
        with self._arrived:
            if self._arrived.wait_for(lambda: self._woken or self._ready(seqs), timeout_s) and not self._woken:
                self._arrived.wait_for(lambda: self._woken or self._ready(seqs) == len(seqs), TOGETHER_S)
            self._woken = False

    def take(self, seq: SeqId) -> Token | None:
        """Its next token, if that has arrived."""
        stream = self._streams.get(seq)
        return stream.tokens.popleft() if stream is not None and stream.tokens else None

    def end_of(self, seq: SeqId) -> tuple[StreamEnd, str] | None:
        """How its stream ended, and why, once every token of it was taken; it is forgotten with that."""
        stream = self._streams.get(seq)
        if stream is None or stream.end is None or stream.tokens:
            return None
        with self._arrived:
            del self._streams[seq]
        return stream.end, stream.reason

    def _ready(self, seqs: Collection[SeqId]) -> int:
        streams = [self._streams.get(seq) for seq in seqs]
        return sum([one is not None and (bool(one.tokens) or one.end is not None) for one in streams])

    # On the streams' own thread.

    def _begin(self, stream: _Stream) -> None:
        if not self._is_closed:
            stream.task = self._spawn(self._read(stream))

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
        except Refused as refused:
            self._end(stream, StreamEnd.REFUSED, str(refused))
        except (Away, Lied, TimeoutError) as error:
            log.warning("a request of the engine broke off: %s", str(error) or type(error).__name__)
            if isinstance(error, Away):
                self._look()
            self._end(stream, StreamEnd.BROKEN, str(error) or "the engine was silent")
        except Exception as error:  # noqa: BLE001 - a reader that dies in silence would leave its choice waiting
            log.error("a request of the engine failed: %s", type(error).__name__)
            self._end(stream, StreamEnd.BROKEN, "the engine's answer could not be read")

    async def _read_whole(self, stream: _Stream) -> None:
        async with aclosing(self._api.generate(stream.ask)) as pieces:
            is_complete = False
            while not is_complete:
                async with asyncio.timeout(STALL_S if stream.came else FIRST_TOKEN_S):
                    piece = await anext(pieces, None)
                if piece is None:
                    raise Away("the stream ended too early")
                self._check(stream, piece)
                is_complete = self._keep(stream, piece)
                if piece.has_ended and not is_complete:
                    raise Lied("the stream ended before its length and without a stop token")
                if is_complete and not piece.has_ended:
                    return  # it would go on
            async with asyncio.timeout(STALL_S):
                async for _ in pieces:  # to its very end: the connection serves again
                    pass

    def _check(self, stream: _Stream, piece: Piece) -> None:
        if any(not 0 <= token_id < self._vocab_size for token_id in piece.token_ids):
            raise Lied("a token is not of the vocabulary")
        if piece.counted is not None and piece.token_ids and piece.counted != stream.came + len(piece.token_ids):
            raise Lied("tokens are missing, or came twice")
        if stream.ask.sampling.logprobs is not None and len(piece.logprobs) < len(piece.token_ids):
            raise Lied("log-probabilities are missing")

    def _keep(self, stream: _Stream, piece: Piece) -> bool:
        """Whether what was asked for is there, or a stop token."""
        now_s, sampling, is_complete = self._clock(), stream.ask.sampling, False
        with self._arrived:
            for place, token_id in enumerate(piece.token_ids):
                if is_complete:
                    break  # more than was asked for
                cached = 0 if stream.came else piece.cached_tokens
                logprob = None if sampling.logprobs is None else piece.logprobs[place]
                stream.tokens.append(Token(token_id, logprob, now_s, cached))
                stream.came += 1
                is_complete = stream.came == stream.ask.max_tokens or token_id in sampling.stop_token_ids
            self._arrived.notify()
        return is_complete

    def _end(self, stream: _Stream, end: StreamEnd, reason: str = "") -> None:
        with self._arrived:
            stream.end, stream.reason = end, reason
            self._arrived.notify()

    def _look(self) -> None:
        """Something went wrong: is the server there?"""
        self._is_up = False
        if self._looking is None or self._looking.done():
            self._looking = self._spawn(self._look_until_up())

    async def _look_until_up(self) -> None:
        since_s, is_told = self._clock(), False
        while not await self._api.is_up():
            if not is_told and self._clock() - since_s >= GONE_S:
                log.warning("the engine has gone")
                is_told = True
                self._on_presence(False)
            await asyncio.sleep(LOOK_S)
        self._is_up = True
        if is_told:
            log.info("the engine is back")
            self._on_presence(True)

    async def _close(self) -> None:
        self._is_closed = True
        while tasks := [*self._tasks]:  # those that they begin as they end, too; what a library began is its own to end
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
        await self._api.close()
