"""Lua scripts as files, and by digest."""

import re
from pathlib import Path

import pytest
import redis.asyncio

from fairlane.store import scripts
from fairlane.store.scripts import Script, read_scripts


def test_a_file_is_one_script_or_several_that_it_names(tmp_path: Path) -> None:
    below = tmp_path / "lib"
    below.mkdir()
    (tmp_path / "alone.lua").write_text("return 1\n")
    (below / "many.lua").write_text("-- Of several.\n\n-- name: first\nreturn 2\n\n-- name: second\nreturn 3\n")

    assert read_scripts(tmp_path) == {"alone": "return 1\n", "first": "return 2\n\n", "second": "return 3\n"}


@pytest.mark.anyio
async def test_a_script_that_the_store_has_forgotten_is_sent_whole(store: redis.asyncio.Redis) -> None:
    script = Script("return ARGV[1] .. ARGV[2]")
    await store.script_flush()

    assert await script.run(store, "key", "a", 1) == b"a1"
    assert await script.run(store, "key", "b", 2) == b"b2"


UNBOUNDED = re.compile(
    r"(?<![.\w])unpack\((?!\w+, \d)"  # its limit is about 8,000 values, and it fails after what was written before
    r"|'(HGETALL|HVALS|HKEYS|SMEMBERS)'"
    r"|'Z(REV)?RANGE(BYSCORE|BYLEX)?', (?!.*LIMIT).*('\+inf'|, -1)[,)]"
)


def test_every_read_of_a_whole_collection_states_its_bound() -> None:
    """A script runs alone, so what it reads at once is bounded; the line says by what, in a comment `-- at most …`."""
    root = Path(scripts.__file__).resolve().parents[1]
    found = {
        f"{file.relative_to(root)}: {line.strip()}"[:60]
        for file in sorted(root.rglob("*.lua"))
        for line in file.read_text().splitlines()
        if UNBOUNDED.search(line) and not line.startswith("--") and "-- at most " not in line
    }

    assert len(list(root.rglob("*.lua"))) > 20
    assert found == set()
