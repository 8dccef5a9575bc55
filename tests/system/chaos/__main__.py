"""The command line of the package."""

import argparse
import asyncio
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.system.chaos.pauses import measure
from tests.system.chaos.run import Case, run


def main() -> int:
    """Return 1 if an invariant was violated."""
    parser = argparse.ArgumentParser(prog="python -m tests.system.chaos")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--pauses", type=int, help="measure the pauses of streams after so many faults of each kind")
    parser.add_argument("--keep", type=Path, help="a folder for the logs, which are removed otherwise")
    options = parser.parse_args()
    with ExitStack() as stack:
        directory: Path = options.keep or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="fairlane-chaos-"))
        )
        directory.mkdir(parents=True, exist_ok=True)
        if options.pauses:
            found, violations = asyncio.run(measure(directory, options.pauses, options.seed))
            sys.stdout.write("\n".join([*map(str, found), *violations, ""]))
            return 1 if violations else 0
        case = Case(seed=options.seed, seconds=60 * options.minutes, clients=options.clients)
        report = asyncio.run(run(directory, case))
    sys.stdout.write(f"{report}\n")
    return 1 if report.violations else 0


if __name__ == "__main__":
    raise SystemExit(main())
