"""What is wrong with a store: found on real servers, by the settings and users that make it so."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
import redis.asyncio

import fairlane.store
from fairlane.store import checks, schema
from fairlane.store.checks import GATEWAY_COMMANDS, WORKER_COMMANDS, FaultKind
from tests.support.gateway.served import ASKED, CHAT, serving, settings
from tests.support.store.acl import administering, user_url

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

TIMEOUT_S = 10.0
ROOT = Path(fairlane.store.__file__).parent.parent
OF_CLUSTERS = {"ASKING", "CLUSTER"}
# Commands that Fairlane can do without.
OPTIONAL_COMMANDS = frozenset({"FCALL", "FUNCTION", "SCRIPT", "INFO", "BGREWRITEAOF"})


@pytest.fixture
def admin(valkey_url: str) -> Iterator["redis.Redis"]:
    with administering(valkey_url) as client:
        yield client


async def kinds(url: str) -> list[tuple[FaultKind, bool]]:
    return [(fault.kind, fault.is_serious) for fault in await checks.faults(url, GATEWAY_COMMANDS, timeout_s=TIMEOUT_S)]


async def test_a_store_as_it_should_be_has_no_fault_and_keeps_only_its_schema(
    store_url: str, store: "redis.asyncio.Redis"
) -> None:
    assert await kinds(store_url) == []
    assert await store.keys() == [schema.KEY.encode()]


@pytest.mark.parametrize(
    ("policy", "memory", "is_serious"), [("allkeys-lru", "100mb", True), ("volatile-ttl", 0, False)]
)
async def test_a_store_that_evicts_is_a_fault(
    valkey_url: str, admin: "redis.Redis", policy: str, memory: str | int, is_serious: bool
) -> None:
    admin.config_set("maxmemory-policy", policy)
    admin.config_set("maxmemory", memory)

    (fault,) = await checks.faults(valkey_url, GATEWAY_COMMANDS, timeout_s=TIMEOUT_S)

    assert (fault.kind, fault.is_serious) == (FaultKind.EVICTION, is_serious)
    assert policy in str(fault)
    assert "CONFIG SET maxmemory-policy noeviction" in str(fault)


async def test_a_store_without_its_append_only_file_is_a_fault_but_serves(
    valkey_url: str, admin: "redis.Redis"
) -> None:
    admin.config_set("appendonly", "no")

    assert await kinds(valkey_url) == [(FaultKind.PERSISTENCE, False)]


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        (["-zadd"], "may not run ZADD: grant that to Fairlane's user: ACL SETUSER … +zadd"),
        (["-set"], "may not run SET:"),
        (["-@scripting"], "may not run EVAL, EVALSHA:"),
        (["-xread", "-hset"], "may not run HSET, XREAD:"),
        (["resetkeys", "~other:*"], "may not use the keys fl:*"),
    ],
)
async def test_a_missing_right_is_named(valkey_url: str, admin: "redis.Redis", rules: list[str], words: str) -> None:
    url = user_url(admin, valkey_url, "+@all", "~*", *rules)

    (fault,) = await checks.faults(url, GATEWAY_COMMANDS, timeout_s=TIMEOUT_S)

    assert (fault.kind, fault.is_serious) == (FaultKind.RIGHTS, True)
    assert words in str(fault)


async def test_a_user_without_info_leaves_the_rest_unchecked(valkey_url: str, admin: "redis.Redis") -> None:
    url = user_url(admin, valkey_url, "+@all", "~*", "-info")

    assert await kinds(url) == [(FaultKind.UNCHECKED, False)]


async def test_the_rights_that_are_checked_are_enough_for_a_gateway_and_its_worker(
    valkey_url: str, admin: "redis.Redis"
) -> None:
    url = user_url(admin, valkey_url, "~fl:*", "+info", *(f"+{name.lower()}" for name in GATEWAY_COMMANDS))
    admin.acl_log_reset()

    assert await kinds(url) == []
    async with serving(settings(url)) as served:
        await served.tenant(limits={"tokens_per_day": 1_000})
        answer = await served.post(CHAT, ASKED, idempotency_key="one")

    assert answer.status_code == 200, answer.text
    denied = {str(entry["object"]).upper().partition("|")[0] for entry in admin.acl_log()}
    assert denied <= OPTIONAL_COMMANDS | {"CLIENT"}


async def test_a_worker_needs_no_right_of_a_gateway_alone(valkey_url: str, admin: "redis.Redis") -> None:
    url = user_url(admin, valkey_url, "~fl:*", "+info", *(f"+{name.lower()}" for name in WORKER_COMMANDS))

    assert await checks.faults(url, WORKER_COMMANDS, timeout_s=TIMEOUT_S) == []


@pytest.mark.parametrize(
    ("folders", "checked"),
    [
        (["quotas", "scheduler", "gateway", "worker", "store"], GATEWAY_COMMANDS),
        (["scheduler/queue", "worker"], WORKER_COMMANDS),
    ],
)
def test_every_command_in_the_sources_is_checked(folders: list[str], checked: frozenset[str]) -> None:
    named: set[str] = set()
    for folder in folders:
        for file in (ROOT / folder).rglob("*"):
            if file.suffix in (".lua", ".py"):
                named |= set(re.findall(r"(?:\bcall|command|_execute)\(\s*[\"']([A-Z]+)[\"' ]", file.read_text()))

    assert named - OPTIONAL_COMMANDS - OF_CLUSTERS <= checked
