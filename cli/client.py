"""Shared parts of the admin commands: the admin API's client, parsing of arguments, and atomic writes."""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import httpx
import typer
import yaml

from fairlane.cli.printer import Document, printable
from fairlane.common.settings_error import SettingsError
from fairlane.gateway.control.admin.call import of_version
from fairlane.quotas.limits import LIMIT_NAMES, unknown_limit
from fairlane.scheduler.protocol.settings import PREFIX, SharedSettings, load, read_document

URL_VARIABLE = "FAIRLANE_URL"
TIMEOUT_S = 30.0
# The admin API's largest page.
PAGE = 1000

TenantId = Annotated[str, typer.Argument(metavar="TENANT", help="The tenant's id.")]
Url = Annotated[
    str | None,
    typer.Option(
        "--url", envvar=URL_VARIABLE, help="URL of the gateway; defaults to the settings' host and port.", metavar="URL"
    ),
]
LimitOptions = Annotated[list[str] | None, typer.Option("--limit", metavar="NAME=NUMBER", help="May be repeated.")]


class CommandError(Exception):
    """Why a command failed, in one line."""


class RefusedCall(CommandError):
    """A refusal by the gateway, with its error code."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class AdminClient:
    """The admin API of one gateway. Every call raises CommandError with the gateway's message if it is refused."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    def get(self, path: str, **query: object) -> Document:
        return self.call("GET", path, query={name: value for name, value in query.items() if value is not None})

    def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        query: Document | None = None,
        *,
        version: int | None = None,
    ) -> Document:
        """Send one request; a response without content is an empty document. `version`: change only this version."""
        headers = {} if version is None else {"if-match": of_version(version)}
        try:
            answer = self._http.request(method, f"/admin/v1{path}", json=body, params=query, headers=headers)
        except httpx.HTTPError as error:
            raise no_gateway(str(self._http.base_url), error) from None
        if answer.is_success:
            return dict(answer.json()) if answer.content else {}
        raise refused(answer)

    def stream(self, path: str, **query: object) -> Iterator[bytes]:
        stated = {name: str(value) for name, value in query.items() if value is not None}
        try:
            with self._http.stream("GET", f"/admin/v1{path}", params=stated) as answer:
                if not answer.is_success:
                    answer.read()
                    raise refused(answer)
                yield from answer.iter_bytes()
        except httpx.HTTPError as error:
            raise no_gateway(str(self._http.base_url), error) from None

    def all(self, path: str) -> Iterator[Document]:
        after: str | None = None
        while True:
            page = self.get(path, limit=PAGE, after=after)
            yield from page["data"]
            if not page["has_more"]:
                return
            after = page["last_id"]


def no_gateway(address: str, error: Exception) -> CommandError:
    """Return the error for a gateway that is unreachable or closed the connection."""
    named = f"set {URL_VARIABLE} (or --url) to a gateway's address, or start one with `fairlane serve`"
    return CommandError(f"no gateway answers at {address.rstrip('/')} ({type(error).__name__}): {named}")


def segment(identifier: str) -> str:
    """Escape an id for use as one path segment."""
    return quote(identifier, safe="", errors="replace")


def refused(answer: httpx.Response) -> CommandError:
    """Return the error for an error response, with the gateway's message."""
    try:
        error = answer.json()["error"]
        return RefusedCall(printable(f"{error['message']} ({error['code']})"), str(error["code"]))
    except (ValueError, LookupError, TypeError):
        url = f"{answer.url.scheme}://{answer.url.netloc.decode()}"
        reply = f"the gateway answered {answer.status_code}, which is not a response of Fairlane"
        return CommandError(f"{reply}: is {URL_VARIABLE} ({url}) right?")


def first_model(http: httpx.Client) -> str:
    """Return the first model that the client's key may use. Raises CommandError."""
    try:
        answer = http.get("/v1/models")
        if not answer.is_success:
            raise refused(answer)
        return str(answer.json()["data"][0]["id"])
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise no_gateway(str(http.base_url), error) from None
    except (ValueError, LookupError, TypeError):
        raise CommandError("the gateway lists no model that this key may use") from None


@contextmanager
def connect(url: str | None) -> Iterator[AdminClient]:
    """Yield a client of the gateway at `url`, or of the settings' own; errors end the command."""
    with report_errors():
        address, key = address_and_key(url)
        headers = {"authorization": f"Bearer {key}"}
        with httpx.Client(base_url=address, headers=headers, timeout=TIMEOUT_S) as http:
            yield AdminClient(http)


@contextmanager
def report_errors(
    kinds: tuple[type[Exception], ...] = (CommandError, SettingsError), exit_code: int = 1
) -> Iterator[None]:
    """Turn an error of these kinds into a line on stderr and an exit code."""
    try:
        yield
    except kinds as error:
        typer.echo(f"fairlane: {error}", err=True)
        raise typer.Exit(exit_code) from None


def read_settings() -> SharedSettings:
    """Read the settings that gateways and workers share. Raises SettingsError."""
    return load(SharedSettings, document=read_document(None, os.environ), environ=os.environ)


def tenants_url(url: str | None) -> str:
    """Return the address of the tenant API: `url`, or from the settings. Raises SettingsError."""
    return url or read_settings().url


def target_url(url: str | None) -> str:
    """Return the tenant API's address if `url` or the settings name it; else ask, or raise CommandError."""
    address = tenants_url(url)
    document = read_document(None, os.environ)
    in_file = document.keys() if isinstance(document, dict) else ()
    in_environment = {name.upper() for name in os.environ}
    is_named = any(name in in_file or f"{PREFIX}{name.upper()}" in in_environment for name in ("host", "port"))
    if url is None and not is_named:
        if not sys.stdin.isatty():
            raise CommandError(f"name the gateway to load: --url {address}, or {URL_VARIABLE}")
        typer.confirm(f"Load the gateway at {address}?", abort=True, err=True)
    return address


def address_and_key(url: str | None) -> tuple[str, str]:
    """Return the admin API's address and key; prompt for the key on a terminal. Raises CommandError, SettingsError."""
    settings = read_settings()
    key = settings.admin_key or (typer.prompt("Admin key", hide_input=True, err=True) if sys.stdin.isatty() else "")
    if not key or not key.isascii() or not key.isprintable():
        raise CommandError("the admin key is missing or malformed: set FAIRLANE_ADMIN_KEY")
    return url or settings.admin_url, key


def limits_of(pairs: Sequence[str]) -> dict[str, int | None]:
    """Parse limits from `NAME=NUMBER` pairs; `none` removes one. Raises CommandError."""
    limits: dict[str, int | None] = {}
    for pair in pairs:
        name, equals, figure = pair.partition("=")
        if not equals or not (figure == "none" or (figure.isascii() and figure.isdecimal() and len(figure) <= 20)):
            raise CommandError(f"{pair}: write NAME=NUMBER, or NAME=none to remove the limit")
        if name not in LIMIT_NAMES:
            raise CommandError(str(unknown_limit(name)))
        limits[name] = None if figure == "none" else int(figure)
    return limits


def limits_by_of(groups: Sequence[str]) -> list[Document]:
    """Parse `model=NAME,lane=LANE,LIMIT=NUMBER,…`; `none` alone is an empty list. Raises CommandError."""
    return [] if list(groups) == ["none"] else [_limits_by(group) for group in groups]


def _limits_by(group: str) -> Document:
    pairs = group.split(",")
    named = dict(pair.split("=", 1) for pair in pairs if pair.startswith(("model=", "lane=")))
    figures = [pair for pair in pairs if not pair.startswith(("model=", "lane="))]
    if not named or not figures:
        raise CommandError(f"{group}: write model=NAME or lane=LANE, then LIMIT=NUMBER, separated by commas")
    return {**named, "limits": limits_of(figures)}


def given(**fields: object) -> Document:
    """Return the fields that were given on the command line."""
    return {name: value for name, value in fields.items() if value is not None}


def read_yaml(file: Path) -> object:
    """Parse a YAML file. Raises CommandError."""
    try:
        return yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise CommandError(f"{file}: cannot be read as YAML ({type(error).__name__})") from None


def check_writable(file: Path) -> None:
    """Check, as far as possible beforehand, that a file can be created. Raises CommandError."""
    if file.is_dir():
        raise CommandError(f"{file}: is a directory")
    if not os.access(file.parent, os.W_OK | os.X_OK):
        raise CommandError(f"{file}: cannot be written (no directory to write to)")


def make_directory(directory: Path) -> None:
    """Create a directory and its parents. Raises CommandError."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"{directory}: cannot be created ({error.strerror or type(error).__name__})") from None


def write_whole(file: Path, content: Iterable[bytes]) -> None:
    """Write a file atomically, by renaming a temporary one. Raises CommandError."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as stream:
            stream.writelines(content)
        temporary.replace(file)
    except OSError as error:
        raise CommandError(f"{file}: cannot be written ({error.strerror or type(error).__name__})") from None
    finally:
        temporary.unlink(missing_ok=True)
