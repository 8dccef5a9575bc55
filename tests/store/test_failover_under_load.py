"""The master dies while streams of several tenants and models run: they go on, and each is charged once."""

import asyncio
import sys
import time
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from fairlane.cli.embedded_store import valkey_binary
from fairlane.scheduler.queue import keys as queue_keys
from fairlane.scheduler.queue.registry import card_sha256, queue_name
from tests.support.gateway.cards import byte_level_card
from tests.support.store.cluster import Masters
from tests.support.store.sentinel import Watch
from tests.support.system.traffic import LONG, STEP_S, Answer, Fleet

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]
MODELS = ("tiny", "small")
TENANTS = ("acme", "blue", "coop")
# Answers that each client has had, and tokens that each long stream has had, before the master dies.
WARM = 3
# Whole answers of each client after the failover.
AFTER = 5


def queue_of(model: str) -> str:
    """Return the prefix of the keys of a model's queue."""
    card = msgspec.structs.replace(byte_level_card(), model=model)
    return queue_keys.prefix(queue_name(model, card_sha256(card)))


@pytest.mark.parametrize("kind", ["cluster", "sentinel"])
async def test_streams_go_on_while_a_replica_takes_over_and_are_charged_once(tmp_path: Path, kind: str) -> None:
    servers: Masters | Watch
    if kind == "cluster":
        servers = Masters(tmp_path, valkey_binary())
    else:
        servers = Watch(tmp_path, valkey_binary(), replicas=2, sentinels=3)
    try:
        servers.start()
        with Fleet(tmp_path, servers.url) as fleet:
            for model in MODELS:
                fleet.worker(model)
            fleet.urls.append((await fleet.gateway())[1])
            for tenant in TENANTS:
                await fleet.tenant(tenant)
            killed_s, long, short = await run(fleet, servers)
            await fleet.check([*long, *short])
    finally:
        servers.stop()

    assert [answer.end for answer in long] == ["whole"] * len(long)
    while_away = [sum(killed_s < at_s < killed_s + 1.0 for at_s in each.arrivals_s) for each in long]
    assert min(while_away) > 0
    report(kind, killed_s, short, while_away, long)


async def run(fleet: Fleet, servers: Masters | Watch) -> tuple[float, list[Answer], list[Answer]]:
    """Kill a master amid the load; return when, the long streams, and the short ones before, during and after."""
    clients, ended = [(tenant, model) for tenant in TENANTS for model in MODELS], asyncio.Event()
    warm = await asyncio.gather(*(fleet.ask(*client, 10) for client in clients for _ in range(WARM)))
    long = [asyncio.create_task(fleet.ask(*client, LONG)) for client in clients]
    short = [asyncio.create_task(fleet.keep_asking(*client, ended)) for client in clients]
    await asyncio.sleep(50 * STEP_S)
    killed_s = time.monotonic()
    if isinstance(servers, Masters):
        servers.kill(servers.holder(queue_of(MODELS[0])))
    else:
        servers.kill_master()
    answers = [*warm, *await asyncio.gather(*long)]
    ended.set()
    found = await asyncio.gather(*short)
    assert [client for client, each in zip(clients, found, strict=True) if sum(a.is_whole for a in each) < AFTER] == []
    return killed_s, answers[len(warm) :], [*warm, *(answer for each in found for answer in each)]


def report(kind: str, killed_s: float, short: list[Answer], while_away: list[int], long: list[Answer]) -> None:
    """Print what pytest shows with `-s`: times from the master's death."""
    after = [answer for answer in short if answer.began_s > killed_s]
    refused_s = [answer.ended_s - killed_s for answer in after if not answer.is_whole]
    first_s = min(answer.arrivals_s[0] - killed_s for answer in after if answer.is_whole)
    gaps_s = [
        max(later - sooner for sooner, later in zip(each.arrivals_s, each.arrivals_s[1:], strict=False))
        for each in long
    ]
    sys.stdout.write(
        f"\n{kind}: last refusal after {max(refused_s, default=0.0):.2f} s, first served after {first_s:.2f} s, "
        f"ends {dict(Counter(answer.end for answer in after))}, "
        f"tokens of long streams in the first second {min(while_away)} to {max(while_away)}, "
        f"their longest gaps {min(gaps_s):.2f} to {max(gaps_s):.2f} s\n"
    )
