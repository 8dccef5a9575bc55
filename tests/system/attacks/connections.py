"""Floods of connections: thousands of them, again and again, and with bodies held beside them."""

import socket
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from tests.system.attacks.bodies import Answers, Target
from tests.system.attacks.crowds import TEN, Crowd, opened
from tests.system.attacks.target import connected, room_for

CONNECTIONS = 10_000
ROUND_S = 5.0
"""As long as silence is let be."""
DRIP_EVERY_S = 1.0
BODIES, BODY_BYTES = 2_000, 62_000
"""Held, together just within what a gateway holds of bodies; by so many tenants that each is within its own bound:"""
TENANTS = 4
_BEGUN = Crowd("that have begun a request", TEN, lambda _: b"GET /healthz HTTP/1.1\r\n")


def flood(target: Target, crowd: Crowd, seconds: float, connections: int = CONNECTIONS) -> Answers:
    """A crowd that comes again as soon as it was cut off."""
    answers: Answers = Counter()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with opened(target.address, room_for(connections), crowd, target.key) as held:
            ends = min(until, time.monotonic() + ROUND_S)
            while time.monotonic() < ends:
                time.sleep(DRIP_EVERY_S)  # the attacker's own pace
                if crowd.drip:
                    _say(held, crowd.drip)
            answers.update(map(_state, held))
    return answers


def with_bodies(targets: Sequence[Target], seconds: float) -> Answers:
    """Bodies that lack their end, held by tenants, and a crowd of strangers beside them."""
    with _bodies(targets) as bodies:
        answers = flood(targets[0], _BEGUN, seconds)
        answers.update(f"body {state}" for state in map(_state, bodies))
    return answers


@contextmanager
def _bodies(targets: Sequence[Target]) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        held = []
        for number in range(BODIES):
            target = targets[number % len(targets)]
            connection = stack.enter_context(connected(target.address))
            connection.sendall(target.head(f"content-length: {BODY_BYTES}") + b"a" * (BODY_BYTES - 1))
            held.append(connection)
        yield held


def _say(held: Sequence[socket.socket], word: bytes) -> None:
    for connection in held:
        with suppress(OSError):
            connection.send(word)


def _state(connection: socket.socket) -> str:
    """`held`, `closed`, or the status of what was answered."""
    connection.setblocking(False)
    try:
        said = connection.recv(12)
    except BlockingIOError:
        return "held"
    except OSError:
        return "closed"
    return said[9:12].decode("latin-1") or "closed"
