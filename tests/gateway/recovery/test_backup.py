"""A gateway whose store and files were lost, over what `fairlane backup` has saved."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from fairlane.cli.recovery import command, families
from fairlane.cli.recovery.place import Place
from tests.support.gateway.batch_files import (
    answered,
    begun,
    charged_as_told,
    ended,
    folder_settings,
    lines,
    results,
    upload,
)
from tests.support.gateway.served import COMPLETIONS, OPERATOR, serving
from tests.support.store import topology

pytestmark = pytest.mark.anyio

ASKED = {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 4, "temperature": 0}
LIMITS = {"tokens_per_day": 10_000, "tokens_per_minute": 10_000}


def is_named(key: Any) -> bool:
    """Return whether a key is in exactly one of the lists of what is saved and what is not."""
    return sum(bool(family.match(key)) for family in (families.OPERATORS, families.SAVED, families.TRANSIENT)) == 1


async def lose(url: str, folder: Path) -> None:
    async with topology.client(url) as client:
        await client.flushall()
    await asyncio.to_thread(shutil.rmtree, folder)


async def test_files_batches_responses_and_replies_are_there_again(valkey_url: str, tmp_path: Path) -> None:
    folder, where = tmp_path / "data", str(tmp_path / "backups")
    chosen = folder_settings(valkey_url, folder)
    place = Place(valkey_url, valkey_url, chosen.files_url, chosen.files_folder)
    async with serving(chosen) as before:
        await before.tenant(limits=LIMITS)
        async with before.sdk() as client:
            stored = await client.responses.create(model="tiny", input="Where?", max_output_tokens=4)
            batch = await ended(client, await begun(client, lines(3)))
            found = await results(client, batch.output_file_id)
        first = await before.post(COMPLETIONS, ASKED, idempotency_key="once")
        dropped = (await upload(before, lines(1))).json()["id"]
        async with before.http as http:
            made = await http.post("/admin/v1/tokens", json={"name": "ops", "role": "viewer"}, headers=OPERATOR)
        await before.landed()
        ledger, keys = await before.ledger(), dict(before.keys)
        unnamed = [key for key in await before.store.keys("fl:*") if not is_named(key)]
        (chosen.files_folder / "files" / dropped).unlink()
        await command.save(place, where)

    assert unnamed == []
    await lose(valkey_url, folder)
    await command.load(place, where, None)

    async with serving(chosen) as after:
        after.keys = keys
        async with after.sdk() as client:
            assert await results(client, batch.output_file_id) == found
            assert (await client.batches.retrieve(batch.id)).status == "completed"
            assert (await client.responses.retrieve(stored.id)).output_text == stored.output_text
        again = await after.post(COMPLETIONS, ASKED, idempotency_key="once")
        token = {"authorization": f"Bearer {made.json()['token']}"}
        async with after.http as http:
            assert (await http.get("/admin/v1/tenants", headers=token)).status_code == 200
        await after.landed()
        assert (again.status_code, again.json()) == (200, first.json())
        assert await after.ledger() == ledger


async def test_a_batch_that_ran_at_the_backup_answers_and_charges_each_line_once(
    valkey_url: str, tmp_path: Path
) -> None:
    chosen = folder_settings(valkey_url, tmp_path / "data", files={"batch_lines": 4}, grace_s=0.1)
    place = Place(valkey_url, valkey_url, chosen.files_url, chosen.files_folder)
    async with serving(chosen) as before:
        await before.tenant(limits=LIMITS)
        before.worker.step_s = 0.01
        async with before.sdk() as client:
            batch = await begun(client, lines(24, max_tokens=16, ignore_eos=True))
            await answered(client, batch, 4)
            await command.save(place, str(tmp_path / "backups"))
            keys, at_backup = dict(before.keys), len(await before.ledger())

    await lose(valkey_url, tmp_path / "data")
    await command.load(place, str(tmp_path / "backups"), None)

    async with serving(chosen) as after:
        after.keys = keys
        async with after.sdk() as client:
            done = await ended(client, await client.batches.retrieve(batch.id))
            found = await results(client, done.output_file_id)
        await after.landed()
        assert (done.status, len(found)) == ("completed", 24)
        assert 4 <= at_backup < 24
        await charged_as_told(after, done, found)
