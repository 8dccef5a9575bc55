"""LiteLLM's tables as rows: from its Postgres database, one JSON file, or a folder of CSV files.

Rows use LiteLLM's column names. Text from a CSV (lists, JSON, numbers, times) is converted to what the database has, so
that callers need not know the source."""

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from fairlane.cli.client import CommandError

Row = Mapping[str, Any]
Tables = Mapping[str, list[Row]]

TEAMS, KEYS, BUDGETS = "LiteLLM_TeamTable", "LiteLLM_VerificationToken", "LiteLLM_BudgetTable"
ORGANISATIONS, ALIASES, MODELS = "LiteLLM_OrganizationTable", "LiteLLM_ModelTable", "LiteLLM_ProxyModelTable"
TABLES = (TEAMS, KEYS, BUDGETS, ORGANISATIONS, ALIASES, MODELS)
NEEDED = (TEAMS, KEYS)
# Per file.
MOST_BYTES = 512 * 2**20
CONNECT_TIMEOUT_S, STATEMENT_TIMEOUT_S = 10, 60
# Parameters of LiteLLM's database URL that Prisma uses and Postgres does not know.
PRISMA_PARAMETERS = frozenset(
    {"schema", "connection_limit", "pool_timeout", "pgbouncer", "socket_timeout", "statement_cache_size"}
)
LISTS = frozenset({"models", "allowed_routes", "access_group_ids", "policies"})
OBJECTS = frozenset({"aliases", "metadata", "model_max_budget", "budget_limits", "permissions", "model_info", "config"})
NUMBERS = frozenset({"max_budget", "tpm_limit", "rpm_limit", "tpd_limit", "max_parallel_requests", "model_id", "id"})
SWITCHES = {"t": True, "true": True, "f": False, "false": False}


def read_tables(source: str) -> Tables:
    """Read all tables of a source. Raises CommandError."""
    if source.startswith(("postgres://", "postgresql://")):
        tables = _from_postgres(source)
    else:
        path = Path(source)
        tables = _from_folder(path) if path.is_dir() else _from_json(path)
    missing = [name for name in NEEDED if name not in tables]
    if missing:
        raise CommandError(f"there is no {missing[0]} in the source: is it LiteLLM's?")
    return {name: [_read(name, row) for row in tables.get(name, [])] for name in TABLES}


def _from_json(path: Path) -> dict[str, list[dict[str, Any]]]:
    with _reading(path):
        document = json.loads(path.read_bytes())
    rows = document.values() if isinstance(document, dict) else [None]
    if not all(isinstance(each, list) and all(isinstance(row, dict) for row in each) for each in rows):
        raise CommandError(f"{path}: must be an object of tables, each a list of rows")
    return dict(document)


def _from_folder(folder: Path) -> dict[str, list[dict[str, Any]]]:
    tables: dict[str, list[dict[str, Any]]] = {}
    for name in TABLES:
        path = folder / f"{name}.csv"
        if path.exists():
            with _reading(path), path.open(newline="", encoding="utf-8") as file:
                tables[name] = list(csv.DictReader(file, strict=True))
    return tables


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise CommandError(f"{path}: is larger than {MOST_BYTES} bytes")
        yield
    except (OSError, ValueError, csv.Error, RecursionError) as error:
        raise CommandError(f"{path}: cannot be read ({type(error).__name__})") from None


def _from_postgres(url: str) -> dict[str, list[dict[str, Any]]]:
    try:
        import psycopg
        from psycopg import sql
        from psycopg.rows import dict_row
    except ImportError:
        raise CommandError("a database needs a driver: pip install 'fairlane[import]'") from None
    address, schema = postgres_address(url)
    options = f"-c statement_timeout={STATEMENT_TIMEOUT_S}s -c default_transaction_read_only=on"
    try:
        with psycopg.connect(
            address, connect_timeout=CONNECT_TIMEOUT_S, options=options, row_factory=dict_row
        ) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            found = connection.execute("select tablename from pg_tables where schemaname = %s", (schema,)).fetchall()
            there = {row["tablename"] for row in found}
            return {
                name: connection.execute(sql.SQL("select * from {}").format(sql.Identifier(schema, name))).fetchall()
                for name in TABLES
                if name in there
            }
    except psycopg.Error as error:
        raise CommandError(f"the database cannot be read ({type(error).__name__})") from None


def postgres_address(url: str) -> tuple[str, str]:
    """Return the URL without Prisma's parameters, and the schema that it names."""
    parts = urlsplit(url)
    given = parse_qsl(parts.query, keep_blank_values=True)
    kept = urlencode([(name, value) for name, value in given if name not in PRISMA_PARAMETERS])
    return urlunsplit(parts._replace(query=kept)), dict(given).get("schema", "public")


def _read(table: str, row: Row) -> Row:
    try:
        return {name: _value(name, value) for name, value in row.items() if isinstance(name, str)}
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise CommandError(f"{table}: a row cannot be read ({type(error).__name__})") from None


def _value(column: str, value: object) -> object:
    kinds: list[tuple[frozenset[str], Callable[[str], object]]] = [
        (LISTS, _list),
        (OBJECTS, json.loads),
        (NUMBERS, float),
        (frozenset({"blocked"}), lambda text: SWITCHES[text.lower()]),
        (frozenset({"expires"}), datetime.fromisoformat),
    ]
    if isinstance(value, str):
        if value == "":
            return None
        value = next((read(value) for columns, read in kinds if column in columns), value)
    if isinstance(value, datetime) and value.tzinfo is None:
        return value.replace(tzinfo=UTC)  # LiteLLM writes UTC times without a zone
    return value


def _list(text: str) -> list[object]:
    if not text.startswith("{"):
        found = json.loads(text)
        if not isinstance(found, list):
            raise ValueError
        return found
    inner = text[1:-1]
    return [*next(csv.reader([inner], escapechar="\\", doublequote=False, strict=True))] if inner else []
