"""`fairlane record`: collects what gateways record of their requests into one trace on this machine."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Annotated

import msgspec
import typer

from fairlane.cli.client import URL_VARIABLE, AdminClient, CommandError, connect, segment
from fairlane.scheduler.simulation.trace import MARK

EVERY_S = 1.0
RECORDED = "recorded"

app = typer.Typer(add_completion=False)
Option = typer.Option

Target = Annotated[Path, typer.Argument(metavar="FILE", help="File for the trace; it must not exist.")]
Urls = Annotated[
    list[str] | None,
    Option(
        "--url",
        envvar=URL_VARIABLE,
        metavar="URL",
        help="A gateway on each recording machine; may be repeated. Defaults as for other commands.",
    ),
]
Seconds = Annotated[float | None, Option("--for", min=0.0, help="Stop after this many seconds. [default: at Ctrl-C]")]
All = Annotated[bool, Option("--all", help="Include what was recorded before.")]
MaxMiB = Annotated[int, Option("--max-mib", min=1, help="Stop when the trace has this size.")]


@app.command()
def record(
    file: Target, url: Urls = None, seconds: Seconds = None, everything: All = False, max_mib: MaxMiB = 1_024
) -> None:
    """Collect what gateways record of requests that end from now on into one trace, until Ctrl-C.

    Gateways record with FAIRLANE_GATEWAY__RECORD__ENABLED=true: sizes, times and pseudonyms, never content."""
    with ExitStack() as stack:
        addresses: list[str | None] = [*url] if url else [None]
        gateways = [stack.enter_context(connect(each)) for each in addresses]
        for gateway in gateways:
            gateway.get("/traces", limit=1)  # an unavailable gateway fails now; later it is retried
        since_ms = 0.0 if everything else time.time() * 1e3
        target = stack.enter_context(_created(file))
        follower = Follower(gateways, target, since_ms=since_ms, most_bytes=max_mib * 2**20)
        ends_s = None if seconds is None else time.monotonic() + seconds
        try:
            follower.run(lambda: ends_s is not None and time.monotonic() >= ends_s)
        except KeyboardInterrupt:
            follower.look()
    typer.echo(f"{follower.requests:,} requests in {file}")


@contextmanager
def _created(file: Path) -> Iterator[IO[bytes]]:
    try:
        with file.open("xb") as target:
            yield target
    except OSError as error:
        typer.echo(f"fairlane: {file}: cannot be created ({error.strerror})", err=True)
        raise typer.Exit(2) from None


@dataclass(slots=True)
class _Followed:
    read_bytes: int = 0
    # An incomplete last line.
    rest: bytes = b""
    head: bytes = b""


class _Line(msgspec.Struct, frozen=True):
    at_ms: float | None = None


_decode = msgspec.json.Decoder(_Line).decode


@dataclass(slots=True)
class Follower:
    """Reads the gateways' files incrementally, and writes complete lines to the target."""

    gateways: Sequence[AdminClient]
    target: IO[bytes]
    since_ms: float
    most_bytes: int
    requests: int = 0
    _files: dict[tuple[int, str], _Followed] = field(default_factory=dict)
    # The header line that was last written.
    _head: bytes = b""
    _is_away: bool = False
    _is_idle: bool = False

    def run(self, is_over: Callable[[], bool]) -> None:
        while True:
            over = is_over()
            self.look()
            if over or self.target.tell() >= self.most_bytes:
                return
            time.sleep(EVERY_S)

    def look(self) -> None:
        for number, gateway in enumerate(self.gateways):
            try:
                self._look_at(number, gateway)
                self._is_away = False
            except CommandError as error:
                if not self._is_away:
                    typer.echo(f"fairlane: {error}; retrying", err=True)
                self._is_away = True
        if not self._files and not self._is_idle:
            self._is_idle = True
            typer.echo("nothing is recorded yet: is FAIRLANE_GATEWAY__RECORD__ENABLED=true set?", err=True)
        self.target.flush()

    def _look_at(self, number: int, gateway: AdminClient) -> None:
        for trace in reversed([*gateway.all("/traces")]):
            if trace["kind"] != RECORDED:
                continue
            known = self._files.setdefault((number, trace["name"]), _Followed())
            if trace["bytes"] > known.read_bytes:
                for part in gateway.stream(f"/traces/{segment(trace['name'])}", offset=known.read_bytes):
                    known.read_bytes += len(part)
                    self._take(known, part)

    def _take(self, known: _Followed, part: bytes) -> None:
        *lines, known.rest = (known.rest + part).split(b"\n")
        for line in lines:
            if line.startswith(b'{"%b"' % MARK.encode()):
                known.head = line
            elif line:
                self._write(known, line)

    def _write(self, known: _Followed, line: bytes) -> None:
        try:
            at_ms = _decode(line).at_ms
        except msgspec.DecodeError:
            at_ms = None  # the reader of the trace reports bad lines
        if (at_ms is not None and at_ms < self.since_ms) or self.target.tell() >= self.most_bytes:
            return
        if known.head and known.head != self._head:
            self.target.write(known.head + b"\n")
            self._head = known.head
        self.target.write(line + b"\n")
        self.requests += at_ms is not None
