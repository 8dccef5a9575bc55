"""The whole of Fairlane as its users run it: `fairlane serve` in a process of its own, spoken to over HTTP."""

import os
import random
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import httpx
import openai
import psutil

ADMIN_KEY = "admin-key-of-the-benchmarks-0123456789abcdef"
MODEL = "SmolLM2-135M-Instruct"
READY = "Fairlane serves"
START_LIMIT_S = 120.0
STOP_LIMIT_S = 60.0
PORTS = range(20_000, 32_000)
"""Below those that the system gives to connections, so that none is taken before it is listened on."""


def free_port() -> int:
    """A loopback port that nothing listens on."""
    while True:
        port = random.SystemRandom().choice(PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@dataclass
class ServedFairlane:
    """One `fairlane serve`, its settings by `FAIRLANE_*` name without the prefix. Use it as a context."""

    directory: Path
    settings: dict[str, str] = field(default_factory=dict)
    environ: dict[str, str] = field(default_factory=dict)
    """What else its processes find in their environment."""
    port: int = field(default_factory=free_port)

    def __enter__(self) -> Self:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLANE_")}
        settings = {
            "PORT": str(self.port),
            "DATA_DIR": str(self.directory),
            "ADMIN_KEY": ADMIN_KEY,
            "WORKER__KV_MEMORY": "256MiB",
            "WORKER__HOST_KV_MEMORY": "128MiB",
            **self.settings,
        }
        with (self.directory / "serve.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from fairlane.cli.main import main; main()", "serve"],
                env=environ | {f"FAIRLANE_{name}": value for name, value in settings.items()} | self.environ,
                cwd=self.directory,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._await_greeting()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGINT)
        self._process.wait(STOP_LIMIT_S)

    @property
    def url(self) -> str:
        """Where it serves, without `/v1`."""
        return f"http://127.0.0.1:{self.port}"

    def worker(self) -> psutil.Process:
        """The worker's process. Raises LookupError."""
        for process in psutil.Process(self._process.pid).children():
            if process.cmdline()[1:3] == ["-m", "fairlane.worker"]:
                return process
        raise LookupError("no worker")

    def admin(self) -> httpx.Client:
        """A client of the admin API."""
        headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
        return httpx.Client(base_url=f"{self.url}/admin/v1", headers=headers, timeout=30.0)

    def tenant(self, name: str, **fields: object) -> str:
        """Make a tenant with one key; the key."""
        with self.admin() as admin:
            admin.post("/tenants", json={"id": name, **fields}).raise_for_status()
            answer = admin.post(f"/tenants/{name}/keys", json={"name": "benchmark"}).raise_for_status()
            return str(answer.json()["key"])

    def sdk(self, key: str) -> openai.OpenAI:
        """The official SDK, pointed here."""
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key)

    def async_sdk(self, key: str, *, timeout_s: float, max_retries: int = 2) -> openai.AsyncOpenAI:
        """The official asynchronous SDK, pointed here."""
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=key, timeout=timeout_s, max_retries=max_retries)

    def _await_greeting(self) -> None:
        """Raises RuntimeError where it ends instead, or takes too long; what it prints afterwards is dropped."""
        ready = threading.Event()
        threading.Thread(target=self._read, args=(ready,), daemon=True).start()
        if not ready.wait(START_LIMIT_S) or self._process.poll() is not None:
            self._process.kill()
            raise RuntimeError(f"serve does not start: {(self.directory / 'serve.log').read_text()[-2000:]}")

    def _read(self, ready: threading.Event) -> None:
        assert self._process.stdout is not None  # noqa: S101 - a pipe, as asked for
        with self._process.stdout as lines:
            for line in lines:
                if READY in line:
                    ready.set()
        self._process.wait()
        ready.set()
