"""All attacks on a `fairlane serve` of their own: prints the table, and ends with 1 where a row is not as expected.

python -m tests.system.attacks [--only KIND_OR_FLOOD …] [--seconds 10] [--json FILE]

Times mean something on a machine that does nothing else.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from tests.support.system.harness import Server
from tests.system.attacks import (
    cookies,
    crowds,
    numbers,
    paths,
    permissions,
    pipelining,
    scopes,
    shapes,
    streams,
    tokens,
)
from tests.system.attacks.floods import FLOODS
from tests.system.attacks.grammars import GRAMMARS
from tests.system.attacks.measured import measure
from tests.system.attacks.permissions import umask_of_nobody
from tests.system.attacks.rows import Row, markdown
from tests.system.attacks.target import settings

KINDS: Mapping[str, Callable[[Server], Iterable[Row]]] = {
    each.KIND: each.rows for each in (shapes, pipelining, paths, scopes, cookies, permissions, tokens, numbers, crowds)
}


def attacked(server: Server, only: list[str] | None, seconds: float) -> Iterator[Row]:
    """The rows of all, or of these alone."""
    for kind, rows in KINDS.items():
        if only is None or kind in only:
            yield from rows(server)
    for name in FLOODS:
        if only is None or name in only:
            yield streams.measure(server, name, seconds) if name in GRAMMARS else measure(server, name, seconds).row


def main() -> int:
    """Run them; 1 where one of them did what it should not."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=[*KINDS, *FLOODS], nargs="*")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each flood")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        with umask_of_nobody():
            server = Server(Path(directory), settings()).start()
        try:
            for row in attacked(server, options.only, options.seconds):
                rows.append(row)
                sys.stderr.write(f"{'well' if row.is_well else 'NOT WELL'}: {row.kind}: {row.attacked}: {row.seen}\n")
        finally:
            server.stop()
    sys.stdout.write(markdown(rows))
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1, ensure_ascii=False))
    return 0 if all(row.is_well for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
