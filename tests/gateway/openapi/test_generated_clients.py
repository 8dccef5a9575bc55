"""Clients that others' generators make of the document compile, and chat with a gateway.

`make test-all` puts the generators into `.venv/tools`; where they are not, the tests say so.
"""

import asyncio
import importlib
import json
import pkgutil
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fairlane.gateway.control.openapi.document import document
from tests.support.gateway.served import ASKED, SAID, serving, settings

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]

INSTALLED = Path(sys.prefix) / "tools"
PYTHON_GENERATOR = INSTALLED / "bin" / "openapi-python-client"
MODULES = INSTALLED / "node_modules"
TYPESCRIPT = ("--strict", "--target", "es2022", "--module", "nodenext", "--moduleResolution", "nodenext")
NAME = "fairlane_client"
WITHIN_S = 240.0


async def run(*command: str | Path, folder: Path) -> str:
    """What a program says that has to succeed."""
    environment = {"PATH": f"{INSTALLED / 'bin'}:/usr/local/bin:/usr/bin:/bin", "HOME": str(folder)}
    program = await asyncio.create_subprocess_exec(
        *command, cwd=folder, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    async with asyncio.timeout(WITHIN_S):
        said, _ = await program.communicate()
    assert program.returncode == 0, said.decode()
    return said.decode()


def modules(client: ModuleType) -> list[ModuleType]:
    """All of a package, each imported."""
    return [importlib.import_module(found.name) for found in pkgutil.walk_packages(client.__path__, f"{NAME}.")]


@pytest.mark.skipif(not PYTHON_GENERATOR.exists(), reason="openapi-python-client is not in .venv/tools")
async def test_a_generated_python_client_chats(
    valkey_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "openapi.json").write_text(json.dumps(document()))
    generate = (PYTHON_GENERATOR, "generate", "--path", "openapi.json", "--meta", "none", "--output-path", NAME)
    said = await run(*generate, folder=tmp_path)
    assert "WARNING" not in said.upper(), said
    monkeypatch.syspath_prepend(tmp_path)
    client: Any = importlib.import_module(NAME)
    models: Any = importlib.import_module(f"{NAME}.models")

    assert len(modules(client)) > 100
    chat: Any = importlib.import_module(f"{NAME}.api.tenant.create_chat_completion")
    async with serving(settings(valkey_url)) as served:
        key = await served.tenant()
        async with client.AuthenticatedClient(base_url=served.url, token=key) as opened:
            done = await chat.asyncio(client=opened, body=models.ChatBody.from_dict(ASKED))
            refused = await chat.asyncio(client=opened, body=models.ChatBody.from_dict({**ASKED, "model": "other"}))

    assert isinstance(done, models.ChatCompletion)
    assert done.choices[0].message.content == SAID
    assert isinstance(refused, models.Error)
    assert refused.error.code == "model_not_found"


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
@pytest.mark.skipif(not (MODULES / "openapi-fetch").exists(), reason="openapi-typescript is not in .venv/tools")
async def test_a_generated_typescript_client_chats(valkey_url: str, tmp_path: Path) -> None:
    (tmp_path / "openapi.json").write_text(json.dumps(document()))
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "node_modules").symlink_to(MODULES)
    shutil.copy(Path(__file__).parent / "chat.ts", tmp_path)

    await run(MODULES / ".bin" / "openapi-typescript", "openapi.json", "--output", "schema.d.ts", folder=tmp_path)
    await run(MODULES / ".bin" / "tsc", *TYPESCRIPT, "chat.ts", folder=tmp_path)
    async with serving(settings(valkey_url)) as served:
        key = await served.tenant()
        said = await run("node", "chat.js", served.url, key, folder=tmp_path)

    assert said.splitlines() == [SAID, "model_not_found", "tiny"]
