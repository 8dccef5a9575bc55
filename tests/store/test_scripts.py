"""Lua scripts as files, and by digest."""

from pathlib import Path

import pytest
import redis.asyncio

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
