"""`fairlane tenants apply`: the stored tenants match the file, however often it runs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fairlane.cli.client import CommandError
from fairlane.cli.embedded_store import EmbeddedStore
from fairlane.cli.tenants import PlannedChange, plan, read_file
from tests.support.gateway.admin_app import HandFleet
from tests.support.gateway.commands_bench import Command, gateway

FILE = """
tenants:
  - id: acme
    name: Acme
    weight: 2
    timezone: Europe/Berlin
    limits: {tokens_per_day: 1000000, concurrent_requests: 8}
  - id: batch
    lanes: [throughput]
"""


@pytest.fixture(scope="module")
def running(emptied_valkey: EmbeddedStore) -> Iterator[tuple[str, HandFleet]]:
    with gateway(emptied_valkey.url) as served:
        yield served


@pytest.fixture
def command(
    running: tuple[str, HandFleet], valkey_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Command:
    monkeypatch.chdir(tmp_path)
    url, fleet = running
    fleet.drained.clear()
    return Command(url, fleet)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tenants.yaml"
    path.write_text(FILE)
    return path


def apply(command: Command, file: Path, *options: str) -> str:
    return command.ok("tenants", "apply", "-f", str(file), *options)


def test_the_tenants_of_a_file_are_made(command: Command, file: Path) -> None:
    apply(command, file)

    acme, batch = command.json("tenants", "list", "--json")
    assert (acme["weight"], acme["limits"]) == (2.0, {"tokens_per_day": 1_000_000, "concurrent_requests": 8})
    assert (batch["lanes"], batch["default_lane"]) == (["throughput"], "throughput")


def test_a_second_run_changes_nothing(command: Command, file: Path) -> None:
    apply(command, file)
    before = command.json("tenants", "list", "--json")

    assert apply(command, file) == ""
    assert command.json("tenants", "list", "--json") == before


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_what_list_prints_can_be_applied_and_changes_nothing(command: Command, file: Path, form: str) -> None:
    file.write_text(
        "tenants:\n"
        "  - {id: parent, models: [tiny], model_aliases: {gpt: tiny}, limits: {tokens_per_day: 9}}\n"
        "  - {id: child, parent: parent, shadow: [tokens_per_day], share_group: one, preemption: exact}\n"
        "  - {id: other, lanes: [throughput], limits_by: [{model: tiny, limits: {tokens_per_minute: 5}}]}\n"
    )
    apply(command, file)
    command.ok("tenants", "suspend", "other")
    file.write_text(command.ok("tenants", "list", "-o", form))

    assert apply(command, file, "--prune") == ""
    assert command.ok("tenants", "list", "-o", form) == file.read_text()


def test_what_list_prints_makes_the_tenants_again(command: Command, file: Path) -> None:
    file.write_text(
        "tenants:\n"
        "  - {id: child, parent: top, limits_by: [{model: tiny, limits: {tokens_per_day: 5}}]}\n"
        "  - {id: top, models: [tiny], model_aliases: {gpt: tiny}, limits: {spend_per_day: 9}, reserve: full}\n"
    )
    apply(command, file)
    before = command.json("tenants", "list", "--json")
    file.write_text(command.ok("tenants", "list", "-o", "yaml"))
    for tenant in ("child", "top"):
        command.ok("tenants", "delete", tenant, "--yes")

    apply(command, file)

    new = {"created_at": 0, "version": 0}
    assert [{**each, **new} for each in command.json("tenants", "list", "--json")] == [
        {**each, **new} for each in before
    ]


def test_a_dry_run_says_all_and_changes_nothing(command: Command, file: Path) -> None:
    said = apply(command, file, "--dry-run")

    assert "create acme" in said
    assert "tokens_per_day: 1000000" in said
    assert command.json("tenants", "list", "--json") == []
    assert apply(command, file) == said


def test_what_the_file_leaves_out_goes_back_to_its_default(command: Command, file: Path) -> None:
    apply(command, file)
    file.write_text("tenants: [{id: acme, limits: {tokens_per_day: 5}}]")

    said = apply(command, file)

    acme = command.json("tenants", "show", "acme")
    assert (acme["weight"], acme["timezone"], acme["limits"]) == (1.0, "UTC", {"tokens_per_day": 5})
    assert "weight: 2.0 -> 1.0" in said


def test_other_tenants_are_left_alone_unless_pruned(command: Command, file: Path) -> None:
    command.ok("tenants", "create", "other")

    apply(command, file)
    kept = {tenant["id"] for tenant in command.json("tenants", "list", "--json")}
    said = apply(command, file, "--prune")

    assert kept == {"acme", "batch", "other"}
    assert said == "delete other\n"
    assert {tenant["id"] for tenant in command.json("tenants", "list", "--json")} == {"acme", "batch"}


def test_a_suspended_tenant_stays_suspended(command: Command, file: Path) -> None:
    apply(command, file)
    command.ok("tenants", "suspend", "acme")

    apply(command, file)

    assert command.json("tenants", "show", "acme")["state"] == "suspended"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tenants: [", "cannot be read as YAML"),
        ("[]", "must hold `tenants:`"),
        ("tenants: {}", "must hold `tenants:`"),
        ("tenants: []\nkeys: []", "must hold `tenants:`"),
        ("tenants: [acme]", r"tenants\[0\]: must be an object of a tenant's fields"),
        ("tenants: [{1: 2}]", r"tenants\[0\]: must be an object of a tenant's fields"),
        ("tenants: [{name: A}]", r"tenants\[0\]: `id` is required"),
        ("tenants: [{id: a}, {id: b, wieght: 1}]", r"tenants\[1\]: `wieght` is not a field"),
        ("tenants: [{id: a, weight: -1}]", r"tenants\[0\]: weight"),
        ("tenants: [{id: a, timezone: Mars}]", r"tenants\[0\]: timezone"),
        ("tenants: [{id: a, limits: {tokens_per_day: 1.5}}]", r"`limits\.tokens_per_day`"),
        ("tenants: [{id: a, parent: 7}]", r"tenants\[0\]: `parent`"),
        ("tenants: [{id: a, limits_by: [{limits: {}}]}]", r"tenants\[0\]: limits_by"),
        ("tenants: [{id: a}, {id: a}]", "tenant a is listed twice"),
        ("tenants: !!python/object:os.system {}", "cannot be read as YAML"),
    ],
)
def test_a_wrong_file_is_refused_before_anything_changes(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(text)

    with pytest.raises(CommandError, match=words):
        read_file(path)


FAMILY = """
tenants:
  - {id: shop, parent: web}
  - {id: web, parent: acme, limits_by: [{model: tiny, limits: {tokens_per_minute: 50}}, {lane: latency, limits: {}}]}
  - {id: acme}
"""


def test_parents_are_made_before_their_children_and_deleted_after_them(command: Command, file: Path) -> None:
    file.write_text(FAMILY)
    said = apply(command, file, "--dry-run")

    assert apply(command, file) == said
    assert apply(command, file) == ""
    web = command.json("tenants", "show", "web")
    file.write_text("tenants: []")
    pruned = apply(command, file, "--prune")

    assert [line for line in said.splitlines() if line[0] != " "] == ["create acme", "create web", "create shop"]
    assert "limits_by: none -> [{model: tiny, lane: none, limits: {tokens_per_minute: 50}}, " in said
    assert (web["parent"], len(web["limits_by"])) == ("acme", 2)
    assert pruned.splitlines() == ["delete shop", "delete web", "delete acme"]


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("tenants: [{id: web, parent: nobody}]", [], "web: its parent or ancestor nobody would not exist"),
        ("tenants: [{id: web}]", [], "web: its parent is acme, and cannot change"),
        ("tenants: [{id: web, parent: acme}]", ["--prune"], "web: its parent or ancestor acme would not exist"),
        ("tenants: [{id: a, parent: b}, {id: b, parent: a}]", [], "without a cycle"),
        ("tenants: [{id: a, parent: a}]", [], "without a cycle"),
        ("tenants: [{id: a, parent: shop}, {id: b, parent: a}]", [], "b: a tenant has at most 3 ancestors"),
    ],
)
def test_a_family_that_cannot_be_is_refused_before_anything_changes(
    command: Command, file: Path, text: str, options: list[str], words: str
) -> None:
    file.write_text(FAMILY)
    apply(command, file)
    file.write_text(text)
    before = command.json("tenants", "list", "--json")

    assert words in command.fails("tenants", "apply", "-f", str(file), *options)
    assert command.json("tenants", "list", "--json") == before


def test_a_file_that_is_not_there_is_one_line(command: Command, tmp_path: Path) -> None:
    assert "cannot be read" in command.fails("tenants", "apply", "-f", str(tmp_path / "nothing.yaml"))


def stored(tenant: dict[str, Any]) -> dict[str, Any]:
    return {**tenant, "state": "active", "version": 1, "created_at": 0.0}


TENANTS = st.lists(
    st.fixed_dictionaries(
        {"id": st.sampled_from("abcde"), "weight": st.integers(1, 3)},
        optional={
            "limits": st.dictionaries(st.sampled_from(["tokens_per_day", "concurrent_requests"]), st.integers(0, 2))
        },
    ),
    unique_by=lambda tenant: str(tenant["id"]),
)


@pytest.mark.slow
@given(now=TENANTS, wanted=TENANTS, prune=st.booleans())
def test_carrying_out_a_plan_leaves_nothing_to_plan(
    tmp_path_factory: pytest.TempPathFactory, now: list[dict[str, Any]], wanted: list[dict[str, Any]], prune: bool
) -> None:
    path = tmp_path_factory.mktemp("apply") / "tenants.yaml"
    whole = []
    for tenants in (now, wanted):
        path.write_text(yaml.safe_dump({"tenants": tenants}))
        whole.append(read_file(path))
    held = {tenant["id"]: stored(tenant) for tenant in whole[0]}

    for step in plan(whole[1], held.values(), prune=prune):
        _carry_out(held, step)

    assert plan(whole[1], held.values(), prune=prune) == []
    kept = {tenant["id"] for tenant in wanted}
    assert held.keys() == (kept if prune else kept | {tenant["id"] for tenant in now})


def _carry_out(held: dict[str, dict[str, Any]], step: PlannedChange) -> None:
    match step.action:
        case "create":
            held[step.tenant] = stored(step.fields)
        case "update":
            held[step.tenant] = {**held[step.tenant], **step.fields}
        case "delete":
            del held[step.tenant]
