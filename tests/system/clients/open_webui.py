"""Open WebUI's server as PyPI brings it, without what it needs for documents, driven as its page drives it."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import STDOUT
from typing import Any
from uuid import uuid4

import httpx
from anyio import fail_after, open_process, sleep

from tests.support.ports import free_port

START_S = 120.0
ANSWER_S = 60.0
ACCOUNT = {"name": "Ann", "email": "ann@example.com", "password": "Passw0rd-123"}
TASKS = ("title_generation", "tags_generation", "follow_up_generation")
TOOL_ID = "weather"
TOOL = '''
class Tools:
    def get_weather(self, location: str) -> str:
        """
        Return the weather of a place.
        :param location: the place
        """
        return f"sunny in {location}"
'''


@dataclass
class OpenWebUI:
    """A running server whose only user is an administrator, and one chat."""

    http: httpx.AsyncClient
    url: str
    key: str
    model: str
    chat: str | None = None
    parent: str | None = None
    # How the model is to call the tool: `native` or, by prompt, `legacy`.
    calling: str = "native"

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        """Call its own API."""
        answer = await self.http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def connect(self, **config: Any) -> None:
        """Set the only connection, with the options that its settings offer."""
        connections = {"OPENAI_API_BASE_URLS": [f"{self.url}/v1"], "OPENAI_API_KEYS": [self.key]}
        await self.post(
            "/openai/config/update", {"ENABLE_OPENAI_API": True, **connections, "OPENAI_API_CONFIGS": {"0": config}}
        )
        models = await self.http.get("/api/models", params={"refresh": "true"})
        assert [each["id"] for each in models.json()["data"]] == [self.model]
        self.chat = self.parent = None

    async def ask(self, text: str) -> dict[str, Any]:
        """Send a message of the chat, with the tool, and return the stored answer."""
        asked: dict[str, Any] = {
            "id": str(uuid4()),
            "parentId": self.parent,
            "childrenIds": [],
            "role": "user",
            "content": text,
        }
        answered = str(uuid4())
        begun = await self.post(
            "/api/chat/completions",
            {
                "model": self.model,
                "stream": True,
                "stream_options": {"include_usage": True},
                "messages": [{"role": "user", "content": text}],
                "params": {"temperature": 0, "num_ctx": 4096, "keep_alive": "5m", "function_calling": self.calling},
                "tool_ids": [TOOL_ID],
                "features": {"web_search": False, "code_interpreter": False, "image_generation": False},
                "variables": {"{{USER_NAME}}": "Ann"},
                "session_id": str(uuid4()),
                "chat_id": self.chat,
                "id": answered,
                "parent_id": self.parent,
                "user_message": {**asked, "timestamp": int(time.time()), "models": [self.model]},
                "background_tasks": dict.fromkeys(
                    ("title_generation", "tags_generation", "follow_up_generation"), True
                ),
            },
        )
        self.chat, self.parent = begun["chat_id"], answered
        with fail_after(ANSWER_S):
            while "followUps" not in (message := (await self.stored())["history"]["messages"][answered]):  # noqa: ASYNC110
                await sleep(0.1)
        assert isinstance(message, dict)
        return message

    async def stored(self) -> dict[str, Any]:
        """Return the chat as it is stored."""
        found = await self.http.get(f"/api/v1/chats/{self.chat}")
        chat: dict[str, Any] = found.json()["chat"]
        return chat


@asynccontextmanager
async def serving(python: Path, folder: Path, url: str, key: str, model: str) -> AsyncIterator[OpenWebUI]:
    """Run the server in a folder, before a gateway."""
    port = free_port()
    environ = {
        "HOME": str(folder),
        "DATA_DIR": str(folder),
        "STATIC_DIR": str(folder / "static"),
        "FROM_INIT_PY": "true",
        "USE_SLIM_DOCKER": "true",
        "OFFLINE_MODE": "true",
        "ENABLE_OLLAMA_API": "false",
        "WEBUI_SECRET_KEY": "of-these-tests-alone-0123456789-0123456789",
    }
    command = [str(python), "-m", "uvicorn", "open_webui.main:app", "--host", "127.0.0.1", "--port", str(port)]
    with (folder / "log").open("wb") as log:
        async with await open_process(command, env=environ, cwd=folder, stdout=log, stderr=STDOUT) as process:
            try:
                async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=ANSWER_S) as http:
                    with fail_after(START_S):
                        while not await _answers(http):
                            assert process.returncode is None, (folder / "log").read_text()[-4000:]
                            await sleep(0.2)
                    signed = (await http.post("/api/v1/auths/signup", json=ACCOUNT)).json()
                    http.headers["authorization"] = f"Bearer {signed['token']}"
                    webui = OpenWebUI(http, url, key, model)
                    await webui.post(
                        "/api/v1/tools/create", {"id": TOOL_ID, "name": TOOL_ID, "content": TOOL, "meta": {}}
                    )
                    yield webui
            finally:
                if process.returncode is None:
                    process.terminate()


async def _answers(http: httpx.AsyncClient) -> bool:
    try:
        return (await http.get("/health")).is_success
    except httpx.TransportError:
        return False
