"""LiteLLM's tables for one test: its own migrations in a Postgres of its own, and rows as LiteLLM writes them."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import util
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from tests.support.ports import free_port

BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
"""Debian's, which are not on the path."""
KEY = "sk-a-key-that-LiteLLM-made"


def hashed(key: str) -> str:
    """As LiteLLM stores a key."""
    return hashlib.sha256(key.encode()).hexdigest()


def binaries() -> Path | None:
    """Where Postgres' programs are."""
    found = shutil.which("initdb")
    return Path(found).parent if found else next(iter(BINARIES), None)


def migrations() -> Path | None:
    """LiteLLM's SQL files: of the package litellm-proxy-extras, or of the folder that the environment names."""
    named = os.environ.get("FAIRLANE_TEST_LITELLM_MIGRATIONS")
    if named:
        return Path(named)
    found = util.find_spec("litellm_proxy_extras")
    places = found.submodule_search_locations if found else None
    return Path(places[0]) / "migrations" if places else None


@contextmanager
def postgres() -> Iterator[str]:
    """A server of its own, in a folder that its own user may enter; its URL."""
    programs = binaries()
    assert programs is not None
    folder = Path(tempfile.mkdtemp(prefix="fairlane-postgres-"))
    port, data = free_port(), folder / "data"
    as_user: dict[str, Any] = {}
    if os.geteuid() == 0:  # which Postgres refuses to run as
        as_user = {"user": "postgres", "group": "postgres", "extra_groups": []}
        shutil.chown(folder, "postgres", "postgres")

    def run(program: str, *arguments: str | Path) -> None:
        subprocess.run([programs / program, *arguments], check=True, capture_output=True, cwd=folder, **as_user)

    try:
        run("initdb", "-D", data, "-A", "trust", "-U", "litellm", "-E", "UTF8")
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} -c fsync=off"
        run("pg_ctl", "-D", data, "-o", options, "-l", folder / "log", "-w", "start")
        try:
            yield f"postgresql://litellm@127.0.0.1:{port}/postgres"
        finally:
            run("pg_ctl", "-D", data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder)


ROWS: dict[str, list[dict[str, Any]]] = {
    "LiteLLM_BudgetTable": [
        {"budget_id": "b-org", "max_budget": 50.0, "budget_duration": "30d"},
        {"budget_id": "b-key", "tpm_limit": 700, "rpm_limit": 7},
    ],
    "LiteLLM_OrganizationTable": [
        {"organization_id": "org-1", "organization_alias": "Example", "budget_id": "b-org", "models": []}
    ],
    "LiteLLM_ModelTable": [{"id": 1, "aliases": {"gpt-4": "tiny"}}],
    "LiteLLM_TeamTable": [
        {
            "team_id": "team-search",
            "team_alias": "Search, and more",
            "organization_id": "org-1",
            "models": ["gpt-4", "other"],
            "tpm_limit": 100_000,
            "max_parallel_requests": 8,
            "model_id": 1,
            "metadata": {"model_rpm_limit": {"tiny": 30}},
            "blocked": False,
        },
        {"team_id": "team-blocked", "team_alias": "Blocked", "models": [], "blocked": True, "metadata": {}},
    ],
    "LiteLLM_ProxyModelTable": [],
    "LiteLLM_VerificationToken": [
        {
            "token": hashed(KEY),
            "key_name": "sk-...made",
            "key_alias": "search-prod",
            "team_id": "team-search",
            "models": ["gpt-4"],
            "expires": "2058-01-31T00:00:00",
            "budget_id": "b-key",
            "allowed_routes": ["/chat/completions", "/v1/models"],
        },
        {"token": hashed("sk-blocked"), "key_alias": "blocked", "team_id": "team-search", "blocked": True},
        {
            "token": hashed("sk-expired"),
            "key_alias": "expired",
            "team_id": "team-search",
            "expires": "2020-01-01T00:00:00",
        },
        {"token": hashed("sk-loner"), "key_alias": "loner"},
        {"token": hashed("sk-pattern"), "key_alias": "pattern", "team_id": "team-search", "models": ["openai/*"]},
        {"token": hashed("sk-money"), "key_alias": "money", "team_id": "team-search", "max_budget": 3.0},
        {"token": hashed("sk-aliased"), "key_alias": "aliased", "team_id": "team-search", "aliases": {"a": "tiny"}},
        {"token": hashed("sk-console"), "key_alias": "console", "team_id": "litellm-dashboard"},
        {"token": hashed("sk-of-blocked"), "key_alias": "of a blocked team", "team_id": "team-blocked"},
    ],
}
"""Two teams, one below an organisation, and keys of all kinds."""


def fill(url: str) -> None:
    """Make the tables by LiteLLM's own migrations, in their order, and write the rows."""
    folder = migrations()
    assert folder is not None
    with psycopg.connect(url, autocommit=True) as connection:
        for file in sorted(folder.glob("*/migration.sql")):
            connection.execute(file.read_bytes())
        for table, rows in ROWS.items():
            for row in rows:
                whole = {**_NEEDED.get(table, {}), **row}
                columns = sql.SQL(", ").join(map(sql.Identifier, whole))
                places = sql.SQL(", ").join([sql.Placeholder()] * len(whole))
                statement = sql.SQL("insert into {} ({}) values ({})").format(sql.Identifier(table), columns, places)
                connection.execute(
                    statement, [Jsonb(each) if isinstance(each, dict) else each for each in whole.values()]
                )


_WHO = {"created_by": "admin", "updated_by": "admin"}
_NEEDED = {"LiteLLM_BudgetTable": _WHO, "LiteLLM_OrganizationTable": _WHO, "LiteLLM_ModelTable": _WHO}
"""Columns without a default."""
