"""All floods by name, each to be run in a process of its own that yields to all others: what it costs to attack is not
the server's to pay, and an attacker has machines of his own.

python -m tests.system.attacks.floods URL NAME SECONDS KEY…

`NAME-control`: the requests of a flood of grammars, without their grammars. What was answered, by status, is printed as
JSON.
"""

import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.system.attacks import bodies, connections, crowds, grammars, loops
from tests.system.attacks.bodies import Answers, Target

CONTROL = "-control"
WITH_BODIES = "bodies and connections"


@dataclass(frozen=True, slots=True)
class Flood:
    """One of them."""

    kind: str
    attacked: str
    tenants: int = 1
    """That take part in it."""
    by_proxy: bool = False
    """All comes through a trusted proxy, other tenants' requests too."""
    is_of_the_loop: bool = False
    """Probes are held to MOST_LOOP_PROBE_MS, and the other tenant's P99 to its own bound."""


FLOODS: Mapping[str, Flood] = {
    **{name: Flood("bodies", attacked) for name, attacked in bodies.UNFINISHED.items()},
    **{name: Flood("bodies and numbers", body.attacked) for name, body in bodies.BODIES.items()},
    **{
        name: Flood("connections", f"{connections.CONNECTIONS:,} {crowd.attacked}", by_proxy=crowd.by_proxy)
        for name, crowd in crowds.CROWDS.items()
    },
    **{name: Flood("event loop", loop.attacked, is_of_the_loop=True) for name, loop in loops.LOOPS.items()},
    **{name: Flood("grammars", each.attacked, each.tenants) for name, each in grammars.GRAMMARS.items()},
    WITH_BODIES: Flood(
        "connections",
        f"{connections.CONNECTIONS:,} that have begun a request, and {connections.BODIES:,} held bodies",
        connections.TENANTS,
    ),
}


def attack(name: str, targets: Sequence[Target], seconds: float) -> Answers:
    """One of them, for about so long."""
    if name == WITH_BODIES:
        return connections.with_bodies(targets, seconds)
    if name in loops.LOOPS:
        return asyncio.run(loops.LOOPS[name].attack(targets[0], seconds))
    if name.removesuffix(CONTROL) in grammars.GRAMMARS:
        flood = grammars.GRAMMARS[name.removesuffix(CONTROL)]
        return asyncio.run((flood.control if name.endswith(CONTROL) else flood).attack(targets, seconds))
    if name in crowds.CROWDS:
        return connections.flood(targets[0], crowds.CROWDS[name], seconds)
    return asyncio.run(bodies.attack(targets[0], name, seconds))


if __name__ == "__main__":
    os.nice(19)
    url, named, lasting, *keys = sys.argv[1:]
    sys.stdout.write(json.dumps(attack(named, [Target(url, key) for key in keys], float(lasting))))
