"""`fairlane import litellm`: from exports and from a database that LiteLLM's own migrations made."""

import asyncio
import csv
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from fairlane.cli.client import CommandError
from fairlane.cli.litellm_plan import ImportPlan, Money, plan
from fairlane.cli.litellm_tables import MOST_BYTES, TABLES, Row, postgres_address, read_tables
from fairlane.quotas.api_keys import Identity, KeyStore
from tests.support import litellm
from tests.support.gateway.admin_app import HandFleet
from tests.support.gateway.commands_bench import Command, gateway
from tests.support.litellm import KEY, ROWS, hashed

TOKENS = ("--tokens-per-unit", "1000")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def running(valkey_url: str) -> Iterator[tuple[str, HandFleet]]:
    """One for each test: a gateway remembers what the hashes of keys are made with."""
    with gateway(valkey_url) as served:
        yield served


@pytest.fixture
def command(running: tuple[str, HandFleet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.chdir(tmp_path)
    return Command(*running)


@pytest.fixture
def export(tmp_path: Path) -> str:
    file = tmp_path / "export.json"
    file.write_text(json.dumps(ROWS))
    return str(file)


def owner(url: str, key: str) -> Identity | None:
    """Whose a key is, as a gateway finds out."""

    async def look() -> Identity | None:
        async with Redis.from_url(url) as client:
            return await KeyStore(client).lookup(key)

    return asyncio.run(look())


def everything(url: str) -> str:
    """All that the store holds."""

    async def read() -> str:
        async with Redis.from_url(url) as client:
            found = [name async for name in client.scan_iter()]
            return repr([*found, *[await client.dump(name) for name in found]])

    return asyncio.run(read())


def check(command: Command, url: str, source: str) -> None:
    """The whole way: shown first, then made, then again."""
    shown = command.ok("import", "litellm", source, *TOKENS)

    assert command.json("tenants", "list", "--json") == []
    assert not any(hashed(key) in shown for key in (KEY, "sk-blocked", "sk-loner"))
    for said in (
        "tokens_per_month=50,000",
        "gpt-4=tiny",
        "tiny: requests_per_minute=30",
        "2058-01-31 00:00Z",
        "it is blocked",
        "it has expired",
        "it has no team",
        "are a pattern",
        "neither daily nor monthly",
        "has model aliases",
        "a session of LiteLLM's console",
    ):
        assert said in shown, said

    command.ok("import", "litellm", source, *TOKENS, "--apply")

    tenants = {each["id"]: each for each in command.json("tenants", "list", "--json")}
    team = tenants["team-search"]
    assert set(tenants) == {"org-1", "team-search", "team-blocked"}
    assert (team["parent"], team["models"], team["model_aliases"]) == ("org-1", ["tiny", "other"], {"gpt-4": "tiny"})
    assert team["limits"] == {"tokens_per_minute": 100_000, "concurrent_requests": 8}
    assert tenants["org-1"]["limits"] == {"tokens_per_month": 50_000}
    assert tenants["team-blocked"]["state"] == "suspended"

    found = owner(url, KEY)
    assert found is not None
    assert (found.tenant.id, found.key.name, found.key.expires_at) == ("team-search", "search-prod", 2_779_660_800.0)
    assert found.key.limits.as_dict() == {"requests_per_minute": 7, "tokens_per_minute": 700}
    assert found.key.scopes.models == ("tiny",)
    assert found.key.scopes.endpoints == ("/v1/chat/completions", "/v1/models")
    for refused in ("sk-blocked", "sk-expired", "sk-loner", "sk-pattern", "sk-money", "sk-aliased", "sk-console"):
        assert owner(url, refused) is None
    assert owner(url, hashed(KEY)) is None

    again = command.run("import", "litellm", source, *TOKENS, "--apply")
    assert "made 0 tenants and 0 keys; 2 keys existed" in again.stderr
    assert [key["name"] for key in command.json("keys", "list", "team-search", "--json")] == ["search-prod"]


def test_an_export_is_shown_then_imported_and_its_keys_go_on_working(
    command: Command, valkey_url: str, export: str
) -> None:
    check(command, valkey_url, export)

    kept = everything(valkey_url)
    assert KEY not in kept
    assert hashed(KEY) not in kept


def test_a_folder_of_csv_files_is_the_same(command: Command, valkey_url: str, tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    folder.mkdir()
    for name, rows in ROWS.items():
        columns = list(dict.fromkeys(column for row in rows for column in row)) or ["model_id"]
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows({column: _text(value) for column, value in row.items()} for row in rows)

    check(command, valkey_url, str(folder))


def _text(value: object) -> object:
    """As Postgres writes it into a CSV."""
    if isinstance(value, bool):
        return "t" if value else "f"
    if isinstance(value, list):
        return "{" + ",".join(value) + "}"
    return json.dumps(value) if isinstance(value, dict) else value


@pytest.mark.slow
@pytest.mark.skipif(litellm.binaries() is None, reason="no Postgres is installed")
@pytest.mark.skipif(litellm.migrations() is None, reason="litellm-proxy-extras is not installed")
def test_a_database_of_litellms_own_migrations_is_the_same(command: Command, valkey_url: str) -> None:
    with litellm.postgres() as url:
        litellm.fill(url)
        check(command, valkey_url, f"{url}?schema=public&connection_limit=10")

        command.ok("keys", "revoke", "team-search", command.json("keys", "list", "team-search", "--json")[0]["id"])
        command.ok("import", "litellm", url, *TOKENS, "--apply")
        assert owner(valkey_url, KEY) is None, "what was revoked here stays so"


def planned(changed: dict[str, Any], table: str = "LiteLLM_VerificationToken", **options: Any) -> ImportPlan:
    """Of the good team with one key, with a row of it changed."""
    rows: dict[str, list[Row]] = {name: [dict(ROWS[name][0])] if ROWS[name] else [] for name in TABLES}
    rows["LiteLLM_VerificationToken"] = [{**ROWS["LiteLLM_VerificationToken"][0], "expires": None}]
    rows[table] = [{**(rows[table][0] if rows[table] else {}), **changed}]
    money = options.pop("money", Money(tokens_per_unit=1_000))
    return plan(rows, money=money, now=NOW, **options)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"token": "sk-in-the-clear"}, "not a SHA-256"),
        ({"token": None}, "not a SHA-256"),
        ({"expires": "soon"}, "its expiry cannot be read"),
        ({"access_group_ids": ["g"]}, "access groups"),
        ({"allowed_routes": ["/key/*"]}, "routes that do not exist here"),
        ({"key_type": "management"}, "not a key for models"),
        ({"tpm_limit": -1}, "out of range"),
        ({"tpm_limit": True}, "out of range"),
        ({"metadata": {"model_rpm_limit": {"tiny": 5}}}, "single models"),
        ({"model_max_budget": {"tiny": {"max_budget": 1}}}, "money budgets for single models"),
        ({"team_id": "nobody"}, "its team is not imported"),
    ],
)
def test_what_a_key_cannot_keep_keeps_it_out_by_name(changed: dict[str, Any], reason: str) -> None:
    found = planned(changed)

    assert found.keys == []
    ((name, why),) = found.refused
    assert name == "key search-prod"
    assert reason in why


@pytest.mark.parametrize(
    ("changed", "scopes"),
    [
        ({"models": []}, None),
        ({"models": ["all-team-models"]}, None),
        ({"models": ["*"]}, None),
        ({"models": ["no-default-models"]}, []),
        ({"models": ["gpt-4", "tiny", "other"]}, ["tiny", "other"]),
    ],
)
def test_models_of_a_key_are_named_as_here(changed: dict[str, Any], scopes: list[str] | None) -> None:
    ((_, key),) = planned({**changed, "allowed_routes": []}).keys

    assert key.get("scopes", {}).get("models") == scopes


def test_money_stays_money_is_exchanged_or_left_behind_as_the_operator_says() -> None:
    worth = {"max_budget": 2.5, "budget_duration": "1d"}

    assert planned(worth, money=Money()).keys[0][1]["limits"]["spend_per_day"] == 2_500_000_000
    assert planned(worth).keys[0][1]["limits"]["tokens_per_day"] == 2_500
    left = planned(worth, money=Money(ignored=True))
    assert "limits" not in left.keys[0][1]
    assert ("key search-prod", "its money budget") in left.left


def test_a_team_that_is_refused_takes_its_keys_along() -> None:
    found = planned({"team_id": "a team of spaces"}, "LiteLLM_TeamTable")

    assert (found.keys, len(found.refused)) == ([], 2)


def test_keys_without_a_team_go_where_the_operator_says() -> None:
    ((tenant, _),) = planned({"team_id": None}, tenant="shared").keys

    assert tenant == "shared"


def test_a_group_of_models_is_no_model() -> None:
    found = planned({"model_info": {"access_groups": ["gpt-4"]}}, "LiteLLM_ProxyModelTable")

    assert "access groups" in found.refused[0][1]


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"LiteLLM_TeamTable": []}', b'{"LiteLLM_TeamTable": [7]}', b"[" * 100_000]
)
def test_what_is_no_export_is_one_line(command: Command, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "export.json"
    file.write_bytes(content)

    command.fails("import", "litellm", str(file))


def test_neither_a_missing_file_nor_an_endless_one_is_read(tmp_path: Path) -> None:
    huge = tmp_path / "huge.json"
    with huge.open("wb") as file:
        file.truncate(MOST_BYTES + 1)

    for path in (huge, tmp_path / "none"):
        with pytest.raises(CommandError):
            read_tables(str(path))


def test_what_is_prismas_of_an_url_is_left_out() -> None:
    address, schema = postgres_address("postgresql://a:b@h:5/d?schema=llm&sslmode=require&connection_limit=1")

    assert (address, schema) == ("postgresql://a:b@h:5/d?sslmode=require", "llm")


def test_a_database_that_is_not_there_is_one_line_without_its_password(command: Command) -> None:
    told = command.fails("import", "litellm", "postgresql://me:hidden@127.0.0.1:1/db")

    assert "hidden" not in told
