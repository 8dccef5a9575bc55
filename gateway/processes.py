"""Several gateway processes behind one port, for hosts of many cores: Python computes on one core per process.

Each is a whole gateway, as if on a host of its own: with its own id, streams, connections to the store and reaper.
They share no memory; budgets stay exact, since they are the store's.

They share one listening socket, which this process makes and never accepts from. Beside SO_REUSEPORT, where each
process has a queue of connections of its own:
- a process that dies, is busy or not yet up takes no connections with it: those that wait are everybody's;
- one process holds the port for as long as any of them lives: a second start is refused as ever, nobody else slips in;
- a connection goes to a process that has time for it, not to one that a hash has drawn: streams are few and long.
So that one does not take all that come at once, each rests after a connection: see `accept`.
In return every idle process wakes at a new connection, and all but one find it taken: some microseconds for each.
"""

import asyncio
import logging
import os
import sys
import tempfile
from collections.abc import Sequence

import msgspec

from gateway.commands.supervisor import Child, ChildRefused, supervise
from gateway.config import MEMBER_FLAG, GatewaySettings, Member
from gateway.port import Sockets, close

log = logging.getLogger(__name__)

STOP_MARGIN_S = 12.0
"""What a process may take beyond its grace: for settlements, and for what is left on connections."""


async def run(settings: GatewaySettings, arguments: Sequence[str], sockets: Sockets) -> int:
    """Until SIGINT or SIGTERM. 0 for a clean end; 2 where a process refuses its settings at the first start."""
    by_port = {name: tuple(found.fileno() for found in each) for name, each in sockets.items()}
    numbers = tuple(number for each in by_port.values() for number in each)
    section = settings.gateway
    with tempfile.TemporaryDirectory(prefix="fairlane-") as directory:
        members = [Member(index, section.processes, by_port, directory) for index in range(section.processes)]
        children = [
            Child(
                "gateway",
                [*arguments, MEMBER_FLAG, msgspec.json.encode(member).decode()],
                os.environ,
                section.grace_s + STOP_MARGIN_S,
                name=member.name,
                sockets=numbers,
            )
            for member in members
        ]
        log.info("starting %d processes", len(children))
        try:
            await supervise([children], asyncio.Event())
        except ChildRefused as error:
            sys.stderr.write(f"gateway: {error}\n")
            return 2
        finally:
            close(sockets)
    return 0
