"""`fairlane config`: the settings of this shell with their sources, and whether a start would accept them."""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from fairlane.cli.client import report_errors
from fairlane.cli.main import ConfigFile
from fairlane.cli.printer import Document, Output, OutputCommand, OutputForm, show_list
from fairlane.common.settings_error import SettingsError
from fairlane.gateway import config as gateway_config
from fairlane.gateway.config import GatewaySettings
from fairlane.scheduler.protocol.settings import (
    CONFIG_VARIABLE,
    DEFAULT_CONFIG,
    NOT_SETTINGS,
    PREFIX,
    TEST_PREFIX,
    Networks,
    SharedSettings,
    load,
    read_document,
)
from fairlane.worker import config as worker_config
from fairlane.worker.config import WorkerSettings

app = typer.Typer(no_args_is_help=True, add_completion=False)

COLUMNS = ("setting", "value", "from")
MASK = "***"
# Placeholder for the embedded store, which starts only after the settings were checked.
UNUSED_STORE = "unix:///unused"
_SECRET = re.compile(r"(^|_)(key|secret|password|token)$")
_LOGIN = re.compile(r"://[^@/\s]*@")
_QUERIED = re.compile(r"([?&][\w-]*(?:password|secret|key|token)=)[^&\s]*", re.IGNORECASE)

Role = Literal["serve", "gateway", "worker"]
For = Annotated[Role, typer.Option("--for", help="What to check for: serve, gateway or worker.")]


@app.command(cls=OutputCommand)
def show(
    config: ConfigFile = None,
    changed: Annotated[bool, typer.Option("--changed", help="Hide settings at their defaults.")] = False,
    output: Output = OutputForm.TABLE,
) -> None:
    """Show every setting as a start from this shell would have it, with its source; secrets are masked.

    It reads this environment, its settings file and --config; a gateway elsewhere may have other settings."""
    with report_errors():
        found = [each for each in effective(config, os.environ) if not (changed and each["from"] == "default")]
        show_list(found, COLUMNS, lambda each: (each["setting"], _plain(each["value"]), each["from"]), output)


@app.command()
def check(config: ConfigFile = None, role: For = "serve") -> None:
    """Check the settings as a start would, with the same error messages; start nothing."""
    complaints = complaints_of(config, os.environ, role)
    for each in complaints:
        typer.echo(f"fairlane: {each}", err=True)
    if complaints:
        raise typer.Exit(1)
    ours = [name for name in os.environ if name.startswith(PREFIX) and not name.startswith(TEST_PREFIX)]
    named = [name for name in ours if name not in NOT_SETTINGS]
    file = _file(config, os.environ)
    typer.echo(f"the settings are valid: {file or 'no file'}, {len(named)} variables")


def effective(config: str | None, environ: Mapping[str, str]) -> list[Document]:
    """Return all settings of a gateway and of a worker with their sources. Raises SettingsError."""
    document = read_document(config, environ)
    gateway = load(GatewaySettings, document=document, environ=environ)
    worker = load(WorkerSettings, document=document, environ=environ)
    file = _file(config, environ)
    found = [*_rows(gateway, ()), *(row for row in _rows(worker, ()) if row[0][0] == "worker")]
    built_in = _built_in_lanes(gateway)
    return [
        {
            "setting": ".".join(path),
            "value": built_in.get(path) if value is None else value,
            "from": _source(path, document, environ, file),
        }
        for path, value in found
    ]


def _built_in_lanes(settings: SharedSettings) -> dict[tuple[str, ...], object]:
    figures: dict[tuple[str, ...], object] = {}
    for name, lane in settings.lanes.lanes().items():
        held = {
            "ttft_s": lane.ttft_ms / 1e3,
            "tpot_ms": "auto" if lane.auto_tpot else lane.tpot_ms,
            "max_wait_s": lane.max_wait_ms / 1e3,
            "share_floor": lane.share_floor,
            "max_queued": lane.max_queued,
        }
        figures |= {("lanes", name.value, field): figure for field, figure in held.items()}
    return figures


def complaints_of(config: str | None, environ: Mapping[str, str], role: Role) -> list[str]:
    """Return the errors with which a start would end, one per process that would not start."""
    if role == "serve":
        environ = {f"{PREFIX}REDIS_URL": UNUSED_STORE, **environ}
    arguments = ["--config", config] if config else []
    checks: dict[str, Callable[[], SharedSettings]] = {
        "gateway": lambda: gateway_config.read(gateway_config.parse(arguments), environ),
        "worker": lambda: worker_config.read(worker_config.parse(arguments), environ),
    }
    complaints = []
    for name, read in checks.items():
        if role in (name, "serve"):
            try:
                read()
            except SettingsError as error:
                complaints.append(str(error))
    return list(dict.fromkeys(complaints))


def _rows(section: msgspec.Struct, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], object]]:
    for field in msgspec.structs.fields(section):
        here, value = (*path, field.encode_name), getattr(section, field.name)
        if isinstance(value, msgspec.Struct):
            yield from _rows(value, here)
        elif not (not path and field.encode_name in ("gateway", "worker")):  # the other process's section, not parsed
            yield here, masked(here[-1], value)


def masked(name: str, value: object) -> object:
    """Mask a setting's value: all of it if its name says that it is secret, else credentials in URLs."""
    if _SECRET.search(name):
        return None if value is None else MASK
    match value:
        case str():
            return _QUERIED.sub(rf"\1{MASK}", _LOGIN.sub(f"://{MASK}@", value))
        case bool() | int() | float() | None:
            return int(value) if isinstance(value, int) and not isinstance(value, bool) else value
        case Networks():
            return [str(each) for each in value.ranges]
        case Mapping():
            return {str(inner): masked(str(inner), each) for inner, each in value.items()}
        case tuple() | list():
            return [masked(name, each) for each in value]
        case msgspec.Struct():
            return masked(name, msgspec.structs.asdict(value))
        case _:
            return str(value)


def _plain(value: object) -> object:
    return str(value).lower() if isinstance(value, bool | int | float) else value


def _source(path: tuple[str, ...], document: object, environ: Mapping[str, str], file: Path | None) -> str:
    for names in (path, *(path[:length] for length in range(len(path) - 1, 0, -1))):
        variable = PREFIX + "__".join(names).upper()
        found = next((name for name in environ if name.upper() == variable), None)
        if found is not None:
            return found
    inner = document
    for name in path:
        if not isinstance(inner, Mapping) or name not in inner:
            return "default"
        inner = inner[name]
    return str(file)


def _file(config: str | None, environ: Mapping[str, str]) -> Path | None:
    named = config or environ.get(CONFIG_VARIABLE)
    path = Path(named or DEFAULT_CONFIG)
    return path if named or path.exists() else None
