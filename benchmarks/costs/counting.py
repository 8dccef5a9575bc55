"""Counts of calls in one thread, and of commands in one store."""

import gc
import secrets
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import redis
import redis.client

LOOP_MODULES = tuple(f"/asyncio/{name}.py" for name in ("base_events", "events", "selector_events", "transports"))
"""Parts of asyncio's own loop: where uvloop serves, none of it is Python."""


class CallCounter:
    """Counts the calls that its own thread makes between `start` and `stop`.

    Calls made by asyncio's loop, and its selector's, are left out: they belong to no request.
    """

    def __init__(self) -> None:
        self.calls = 0
        self._loop_code: dict[object, bool] = {}

    def start(self) -> None:
        """Count from here on."""
        sys.setprofile(self._note)

    def stop(self) -> None:
        """Count no further. The call of `stop` itself is counted, which is the same each time."""
        sys.setprofile(None)

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count what the block calls."""
        self.start()
        try:
            yield
        finally:
            self.stop()

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        if event in ("call", "c_call") and not self._is_loop(frame):
            self.calls += 1

    def _is_loop(self, frame: FrameType) -> bool:
        code = frame.f_code
        found = self._loop_code.get(code)
        if found is None:
            name = code.co_filename
            found = self._loop_code[code] = name.endswith((*LOOP_MODULES, "/selectors.py"))
        return found


class ObjectCounter:
    """Counts the living objects of this package's own classes, as far as the garbage collector knows them."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()

    def count(self) -> None:
        """Count them now. Garbage is collected first."""
        gc.collect()
        kinds = [type(each) for each in gc.get_objects()]
        self.kinds = Counter(kind.__qualname__ for kind in kinds if str(kind.__module__).startswith("fairlane."))


class CommandCounter:
    """Counts the commands that a store has executed, those inside scripts included; its own are left out."""

    OWN = ("info", "config|resetstat", "hello", "client|setinfo", "client|setname", "select")

    def __init__(self, store: redis.Redis) -> None:
        self._store = store

    def reset(self) -> None:
        """Begin anew."""
        self._store.config_resetstat()

    def counts(self) -> dict[str, int]:
        """Executions by command since `reset`."""
        found: dict[str, dict[str, int]] = self._store.info("commandstats")
        names = {name.removeprefix("cmdstat_"): each["calls"] for name, each in found.items()}
        return {name: calls for name, calls in names.items() if name not in self.OWN}

    def total(self) -> int:
        """Executions of all commands since `reset`."""
        return sum(self.counts().values())


class SentCounter:
    """Counts the commands that clients send to a store; those inside scripts and its own are left out."""

    def __init__(self, store: redis.Redis, monitor: redis.client.Monitor) -> None:
        """`monitor` is an entered `store.monitor()`."""
        self._store, self._monitor = store, monitor

    def count(self) -> int:
        """Return how many came since the last call, or the start."""
        mark, sent = secrets.token_hex(8), 0
        self._store.echo(mark)
        while (each := self._monitor.next_command())["command"] != f"ECHO {mark}":  # type: ignore[no-untyped-call]
            name, _, more = each["command"].lower().partition(" ")
            is_own = name in CommandCounter.OWN or f"{name}|{more.partition(' ')[0]}" in CommandCounter.OWN
            sent += each["client_type"] != "lua" and not is_own
        return sent
