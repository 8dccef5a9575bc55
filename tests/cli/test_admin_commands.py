"""`fairlane tenants`, `keys`, `quotas`, `usage`, `workers` against a running admin API."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from fairlane.cli.client import CommandError, limits_of, segment
from fairlane.cli.embedded_store import EmbeddedStore
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.queue.types import LaneDepth
from tests.support.gateway.admin_app import HandFleet, worker
from tests.support.gateway.commands_bench import Command, gateway


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
    fleet.statuses, fleet.depth = [worker()], {}
    return Command(url, fleet)


def test_a_tenant_is_made_shown_changed_and_deleted(command: Command) -> None:
    command.ok("tenants", "create", "acme", "--name", "Acme", "--weight", "2", "--limit", "tokens_per_day=1000")
    command.ok("tenants", "update", "acme", "--limit", "tokens_per_day=none", "--limit", "concurrent_requests=3")

    shown = command.json("tenants", "show", "acme")
    table = command.ok("tenants", "list")
    command.ok("tenants", "delete", "acme", "--yes")

    assert (shown["name"], shown["weight"], shown["limits"]) == ("Acme", 2.0, {"concurrent_requests": 3})
    assert "acme" in table
    assert "concurrent_requests=3" in table
    assert command.json("tenants", "list", "--json") == []


def test_a_deleted_tenants_ledger_is_erased_for_good(command: Command) -> None:
    command.ok("tenants", "create", "acme")
    assert "tenant_not_deleted" in command.fails("tenants", "erase", "acme", "--yes")
    command.ok("tenants", "delete", "acme", "--yes")
    assert "requests" in command.ok("usage", "acme")

    told = command.ok("tenants", "erase", "acme", "--yes")

    assert "ledger entries" in told
    assert "audit entries" in told


def test_a_tenant_is_made_below_another_with_limits_of_a_model(command: Command) -> None:
    command.ok("tenants", "create", "acme")
    by = ("--limit-by", "model=tiny,lane=latency,tokens_per_minute=5", "--limit-by", "lane=throughput,tokens_per_day=7")
    command.ok("tenants", "create", "web", "--parent", "acme", *by, "--reserve", "full", "--shadow", "tokens_per_day")
    made = command.json("tenants", "show", "web")

    command.ok("tenants", "update", "web", "--limit-by", "none")

    assert (made["parent"], made["reserve"], made["shadow"]) == ("acme", "full", ["tokens_per_day"])
    assert made["limits_by"] == [
        {"model": "tiny", "lane": "latency", "limits": {"tokens_per_minute": 5}},
        {"model": None, "lane": "throughput", "limits": {"tokens_per_day": 7}},
    ]
    assert command.json("tenants", "show", "web")["limits_by"] == []
    assert "tenant_has_children" in command.fails("tenants", "delete", "acme", "--yes")


@pytest.mark.parametrize("group", ["", "tokens_per_day=5", "model=tiny", "model=tiny,tokens_per_day=x"])
def test_limits_of_nothing_are_refused(command: Command, group: str) -> None:
    assert "write" in command.fails("tenants", "create", "acme", "--limit-by", group)
    assert command.json("tenants", "list", "--json") == []


def test_deleting_asks_first(command: Command) -> None:
    command.ok("tenants", "create", "acme")

    refused = command.run("tenants", "delete", "acme", stdin="n\n")

    assert refused.exit_code == 1
    assert command.json("tenants", "show", "acme")["id"] == "acme"


def test_a_tenant_is_suspended_and_resumed(command: Command) -> None:
    command.ok("tenants", "create", "acme")

    command.ok("tenants", "suspend", "acme")
    suspended = command.json("tenants", "show", "acme")["state"]
    command.ok("tenants", "resume", "acme")

    assert (suspended, command.json("tenants", "show", "acme")["state"]) == ("suspended", "active")


def test_a_new_key_stands_alone_on_stdout(command: Command) -> None:
    command.ok("tenants", "create", "acme")

    key = command.ok("keys", "create", "acme", "ci", "--lane", "latency", "--limit", "tokens_per_day=5").strip()

    (listed,) = command.json("keys", "list", "acme", "--json")
    assert key.startswith(f"fl-{listed['id']}-")
    assert (listed["name"], listed["scopes"]["lanes"], listed["limits"]) == ("ci", ["latency"], {"tokens_per_day": 5})
    assert "key" not in listed
    assert listed["id"] in command.ok("keys", "list", "acme")


def test_a_key_is_rotated_and_revoked(command: Command) -> None:
    command.ok("tenants", "create", "acme")
    old = command.json("keys", "create", "acme", "ci", "--json")

    new = command.json("keys", "rotate", "acme", old["id"], "--overlap-s", "60", "--json")
    command.ok("keys", "revoke", "acme", new["id"])

    states = {key["id"]: key["state"] for key in command.json("keys", "list", "acme", "--json")}
    assert states == {old["id"]: "active", new["id"]: "revoked"}


def test_a_leaked_key_is_replaced_at_once(command: Command) -> None:
    command.ok("tenants", "create", "acme")
    old = command.json("keys", "create", "acme", "ci", "--json")

    new = command.json("keys", "rotate", "acme", old["id"], "--overlap-s", "0", "--json")
    shown = command.json("keys", "show", "acme", old["id"])

    assert shown["expires_at"] <= new["created_at"]
    assert command.fails("keys", "rotate", "acme", old["id"])
    assert command.ok("usage", "show", "acme", "--group-by", "key")


def test_a_key_is_changed_and_shown(command: Command) -> None:
    command.ok("tenants", "create", "acme")
    made = command.json("keys", "create", "acme", "ci", "--limit", "tokens_per_day=5", "--json")

    command.ok("keys", "update", "acme", made["id"], "--name", "cd", "--limit", "tokens_per_day=none")
    command.ok("keys", "update", "acme", made["id"], "--expires-at", "2100-01-01T00:00Z")
    shown = command.json("keys", "show", "acme", made["id"])
    command.ok("keys", "update", "acme", made["id"], "--expires-at", "none")

    assert (shown["name"], shown["limits"], shown["expires_at"]) == ("cd", {}, 4_102_444_800)
    assert command.json("keys", "show", "acme", made["id"])["expires_at"] is None


def test_limits_are_merged_or_replaced(command: Command) -> None:
    command.ok("tenants", "create", "acme", "--limit", "tokens_per_day=10")

    command.ok("quotas", "set", "acme", "requests_per_minute=5")
    merged = command.json("quotas", "show", "acme", "--json")["limits"]
    command.ok("quotas", "set", "acme", "requests_per_minute=7", "--replace")
    replaced = command.json("quotas", "show", "acme", "--json")["limits"]

    assert {name: limit["limit"] for name, limit in merged.items()} == {"tokens_per_day": 10, "requests_per_minute": 5}
    assert {name: limit["limit"] for name, limit in replaced.items()} == {"requests_per_minute": 7}
    assert "requests_per_minute" in command.ok("quotas", "show", "acme")


def test_usage_is_shown_by_group_and_in_all(command: Command) -> None:
    command.ok("tenants", "create", "acme")

    report = command.json(
        "usage", "acme", "--group-by", "lane,day", "--from", "2026-01-01", "--to", "2026-01-31", "--json"
    )
    table = command.ok("usage", "acme", "--group-by", "lane,day")

    assert report["total"]["requests"] == 0
    assert "prompt_tokens" in table
    assert "total" in table


def test_the_ledger_is_exported_to_stdout_or_a_file(command: Command, tmp_path: Path) -> None:
    command.ok("tenants", "create", "export")

    shown = command.ok("usage", "export", "export", "--format", "csv")
    command.ok("usage", "export", "export", "--from", "2026-01-01", "--output", str(tmp_path / "ledger.jsonl"))

    assert shown.startswith("id,at,tenant,")
    assert (tmp_path / "ledger.jsonl").read_bytes() == b""
    assert [path.name for path in tmp_path.iterdir()] == ["ledger.jsonl"]
    command.ok("tenants", "create", "acme")
    for asked in (["show", "export"], ["acme"], ["acme", "--group-by", "day"], ["--group-by", "day", "acme"]):
        assert "requests" in command.ok("usage", *asked)
    assert "from" in command.fails("usage", "export", "export", "--from", "someday")
    assert "is a directory" in command.fails("usage", "export", "export", "-o", str(tmp_path))


def test_workers_are_listed_and_drained(command: Command) -> None:
    table = command.ok("workers", "list")
    command.ok("workers", "drain", "w1")
    command.ok("workers", "undrain", "w1")

    assert "w1" in table
    assert (command.fleet.drained, command.fleet.undrained) == (["w1"], ["w1"])
    assert command.json("workers", "list", "--json")[0]["blocks_total"] == 100


def test_a_dry_run_is_shown_as_json(command: Command) -> None:
    command.ok("tenants", "create", "acme", "--limit", "max_prompt_tokens=5")

    answer = command.json("tenants", "explain", "acme", "--prompt-tokens", "6", "--max-output-tokens", "1")

    assert (answer["admitted"], answer["limit"]["name"]) == (False, "max_prompt_tokens")


def test_long_lists_are_read_to_their_end(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlane.cli.client.PAGE", 2)
    for number in range(5):
        command.ok("tenants", "create", f"t{number}")

    assert [tenant["id"] for tenant in command.json("tenants", "list", "--json")] == ["t0", "t1", "t2", "t3", "t4"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("tenants", "show", "nobody"), "There is no such tenant. (not_found)"),
        (("tenants", "show", "../lanes"), "There is no such"),
        (("tenants", "create", "bad id"), "`id`"),
        (("tenants", "create", "x", "--timezone", "Mars"), "`timezone`"),
        (("tenants", "create", "x", "--limit", "tokens_per_day"), "write NAME=NUMBER"),
        (("tenants", "create", "x", "--limit", "tokens_per_eon=1"), "tokens_per_eon"),
        (("quotas", "set", "nobody", "tokens_per_day=-1"), "write NAME=NUMBER"),
        (("quotas", "set", "acme", "tokens_per_min=5"), "no such limit: use tokens_per_minute or"),
        (("keys", "revoke", "nobody", "k"), "There is no such tenant"),
        (("usage", "nobody"), "There is no such tenant"),
        (("workers", "drain", "w9"), "There is no such worker"),
    ],
)
def test_what_goes_wrong_is_one_line_with_the_gateway_s_words(
    command: Command, arguments: tuple[str, ...], words: str
) -> None:
    assert words in command.fails(*arguments)


def test_a_wrong_admin_key_is_one_line(command: Command) -> None:
    command.key = "wrong" * 8

    assert "invalid_api_key" in command.fails("tenants", "list")


def test_a_missing_admin_key_names_the_variable(command: Command) -> None:
    command.key = ""

    assert "FAIRLANE_ADMIN_KEY" in command.fails("tenants", "list")


def test_no_gateway_is_one_line_that_names_the_address(command: Command) -> None:
    command.url = "http://127.0.0.1:9"

    assert "no gateway answers at http://127.0.0.1:9" in command.fails("workers", "list")


def test_an_answer_that_is_not_ours_is_told_apart(command: Command) -> None:
    command.url = f"{command.url}/console"

    assert "There is no such path" in command.fails("workers", "list")


def test_the_admin_key_is_never_shown(command: Command) -> None:
    for arguments in (("tenants", "list"), ("tenants", "show", "nobody"), ("workers", "list")):
        assert command.key not in command.run(*arguments).output


def test_a_name_is_shown_as_it_is_and_never_read_as_markup(command: Command) -> None:
    command.ok("tenants", "create", "acme", "--name", "[red]plain[/red]")

    assert "[red]plain[/red]" in command.ok("tenants", "list")


@pytest.mark.parametrize(
    ("pairs", "limits"),
    [
        (["tokens_per_day=1", "queued_requests=none"], {"tokens_per_day": 1, "queued_requests": None}),
        (["queued_requests=0"], {"queued_requests": 0}),
        ([], {}),
    ],
)
def test_limits_are_written_as_pairs(pairs: list[str], limits: dict[str, int | None]) -> None:
    assert limits_of(pairs) == limits


@pytest.mark.parametrize("pair", ["a", "a=", "a=x", "a=1.5", "a=-1", "a=\u0661", "a=1_000", "a=" + "9" * 30])
def test_a_figure_that_is_none_is_refused(pair: str) -> None:
    with pytest.raises(CommandError, match="write NAME=NUMBER"):
        limits_of([pair])


def test_any_id_is_one_part_of_a_path() -> None:
    assert segment("a/b?c#d é") == "a%2Fb%3Fc%23d%20%C3%A9"


def test_json_goes_to_stdout_alone(command: Command) -> None:
    command.ok("tenants", "create", "acme")

    done = command.run("keys", "create", "acme", "ci", "--json")

    assert done.stderr == ""
    assert json.loads(done.stdout)["key"].startswith("fl-")


def test_a_key_may_act_for_the_tenants_that_it_names(command: Command) -> None:
    for tenant in ("acme", "front"):
        command.ok("tenants", "create", tenant)

    command.ok("keys", "create", "front", "litellm", "--act-as", "acme")

    (key,) = command.json("keys", "list", "front", "--json")
    assert (key["scopes"]["act_as"], key["via"]) == (["acme"], None)
    assert "scopes.act_as" in command.fails("keys", "create", "front", "any", "--act-as", "*")


LISTS = [
    ("tenants", "list"),
    ("keys", "list", "acme"),
    ("quotas", "show", "acme"),
    ("usage", "acme"),
    ("workers", "list"),
    ("lanes",),
    ("audit",),
    ("tenants", "show", "acme"),
]


@pytest.mark.parametrize("asked", LISTS, ids=" ".join)
def test_whatever_is_shown_is_a_table_json_or_yaml(command: Command, asked: tuple[str, ...]) -> None:
    command.ok("tenants", "create", "acme", "--limit", "tokens_per_day=5")
    command.ok("keys", "create", "acme", "ci")

    document = command.json(*asked, "-o", "json")

    assert document
    assert yaml.safe_load(command.ok(*asked, "--output", "yaml")) == document
    assert command.json(*asked, "--json") == document
    table = command.ok(*asked, "-o", "table")
    assert table
    assert not table.startswith(("{", "["))


def test_lanes_are_shown_with_their_queue_and_targets(command: Command) -> None:
    command.fleet.depth = {LaneName.LATENCY: LaneDepth(queued=7, oldest_wait_ms=90_000)}

    latency, throughput = command.ok("lanes").splitlines()[1:]

    assert latency.split() == ["latency", "7", "1.5", "min", "1", "0", "10.0", "1", "s", "100", "ms"]
    assert throughput.split()[:2] == ["throughput", "0"]


def test_audit_tells_what_was_asked_for(command: Command) -> None:
    for tenant in ("acme", "other"):
        command.ok("tenants", "create", tenant)
    command.ok("keys", "create", "acme", "ci")
    command.ok("tenants", "suspend", "other")

    def actions(*asked: str) -> list[tuple[str, str]]:
        return [(each["action"], each["target"].partition("/")[0]) for each in command.json("audit", *asked, "--json")]

    assert actions("--tenant", "acme") == [("key.create", "acme"), ("tenant.create", "acme")]
    assert actions("--action", "tenant", "--limit", "2") == [("tenant.suspend", "other"), ("tenant.create", "other")]
    assert actions("--action", "tenant.suspend") == [("tenant.suspend", "other")]
    assert actions("--actor", "nobody") == []
    assert actions("--since", "2100-01-01") == []
    assert len(actions("--since", "1h")) == 4
    assert "--since" in command.fails("audit", "--since", "soon")


def test_audit_tells_times_as_people_read_them(command: Command) -> None:
    command.ok("tenants", "create", "acme")
    made = command.json("keys", "create", "acme", "ci", "--json")
    command.ok("keys", "update", "acme", made["id"], "--expires-at", "2100-01-01T00:00Z")
    new = command.json("keys", "rotate", "acme", made["id"], "--json")

    told = " ".join(command.ok("audit", "--limit", "3").split())
    newest = command.json("audit", "--limit", "1", "--json")[0]

    assert "expires_at: - → 2100-01-01 00:00:00Z" in told
    assert f"replaced_by: - → {new['id']}, overlap_s: " in told
    assert newest["action"] == "key.rotate"
    assert isinstance(newest["changes"]["after"]["replaced_by"]["created_at"], float)


def test_audit_is_followed_from_the_oldest_on(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    for tenant in ("a", "b"):
        command.ok("tenants", "create", tenant)
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) > 1:
            raise KeyboardInterrupt
        command.ok("tenants", "create", "c")

    monkeypatch.setattr("fairlane.cli.audit.time.sleep", wait)

    lines = command.run("audit", "--follow", "--limit", "1", "-o", "json").stdout.splitlines()

    assert [json.loads(line)["target"] for line in lines] == ["b", "c"]


def test_a_name_cannot_move_the_cursor(command: Command) -> None:
    command.fleet.statuses = [worker("w\u202e\x1b[2J1")]

    assert "w??[2J1" in command.ok("workers", "list")


def test_no_gateway_names_the_variable(command: Command) -> None:
    command.url = "http://127.0.0.1:9"

    assert "FAIRLANE_URL" in command.fails("lanes")


def test_a_token_is_made_listed_and_revoked(command: Command) -> None:
    made = command.json("tokens", "create", "on-call", "--role", "operator", "-o", "json")
    table = command.ok("tokens", "list")
    assert command.ok("tokens", "create", "dashboards").strip().startswith("flo-"), "alone on stdout"
    command.ok("tokens", "revoke", made["id"])

    assert (made["name"], made["role"], made["expires_at"]) == ("on-call", "operator", None)
    assert "on-call" in table
    assert made["token"] not in table
    assert [each["name"] for each in command.json("tokens", "list", "-o", "json")] == ["dashboards"]
