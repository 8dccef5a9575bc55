"""A bounded form of `python -m tests.system.schemathesis`, and the document's own validity by others' rules."""

import asyncio
import json
from pathlib import Path

import pytest

from fairlane.gateway.control.openapi.document import document
from tests.support.gateway.served import serving
from tests.system.schemathesis import TOOL, WHO, furnished, narrowed, run, unrefused

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not TOOL.exists(), reason="schemathesis is not in .venv/tools"),
]

NAMED = ("tenant", "model", "file", "input_file_id", "batch", "response_id", "conversation", "item", "message_batch")
EXAMPLES = dict.fromkeys(NAMED, ("a", "b"))
CASES, WITHIN_S, FEWEST = 1, 15, {"tenant": 100, "admin": 100, "anyone": 20}


@pytest.mark.thorough
@pytest.mark.parametrize("who", WHO)
async def test_what_schemathesis_makes_up_is_answered_as_documented(who: str, valkey_url: str, tmp_path: Path) -> None:
    async with serving(unrefused(valkey_url, tmp_path)) as served, furnished(served) as names:
        report = await run(served, who, tmp_path, names, cases=CASES, within_s=WITHIN_S)

    assert report.passed, report.said
    assert report.cases >= FEWEST[who], report.said


@pytest.mark.parametrize(
    "shown",
    [
        pytest.param(document(), id="whole"),
        pytest.param(narrowed(document(), EXAMPLES), id="narrowed", marks=pytest.mark.thorough),
    ],
)
async def test_the_document_is_valid_openapi(shown: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "openapi.json").write_text(json.dumps(shown))
    validator = await asyncio.create_subprocess_exec(
        TOOL.parent / "openapi-spec-validator", tmp_path / "openapi.json", stdout=asyncio.subprocess.PIPE
    )
    said, _ = await validator.communicate()

    assert validator.returncode == 0, said.decode()
