"""`fairlane chat` against a gateway whose worker speaks from a script: from a pipe, and on a terminal."""

import asyncio
import os
import pty
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import httpx
import pytest
from typer.testing import CliRunner, Result

from fairlane.cli import main as cli
from fairlane.cli.chat import ChatSession
from tests.support.gateway.served import SAID, WAIT_S, Served, serving, settings, until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
async def served(valkey_url: str) -> AsyncIterator[Served]:
    async with serving(settings(valkey_url)) as found:
        await found.tenant("acme")
        yield found


async def chat(served: Served, *arguments: str, stdin: str = "", key: str | None = None) -> Result:
    """Run the command with a pipe for stdin."""
    environ = {"FAIRLANE_URL": served.url, "OPENAI_API_KEY": served.keys["acme"] if key is None else key}
    return await asyncio.to_thread(CliRunner().invoke, cli.app, ["chat", *arguments], env=environ, input=stdin)


async def test_a_pipe_gets_the_answer_alone(served: Served) -> None:
    done = await chat(served, "--lane", "throughput", "--max-tokens", "200", stdin="What is the capital of France?\n")

    assert (done.exit_code, done.stdout, done.stderr) == (0, f"{SAID}\n", "")
    (lease,) = served.worker.seen
    assert (lease.job.lane, lease.job.max_tokens) == ("throughput", 200)


async def test_the_temperature_is_the_one_that_was_asked_for(served: Served) -> None:
    await chat(served, "Hi", "--temperature", "0")
    await chat(served, "Hi", "--temperature", "1.5")
    await chat(served, "Hi")
    refused = await chat(served, "Hi", "--temperature", "2.1")

    assert [lease.job.sampling.temperature for lease in served.worker.seen] == [0.0, 1.5, 1.0]
    assert refused.exit_code == 2


async def test_words_and_a_pipe_are_one_question(served: Served) -> None:
    await chat(served, "Translate", "this:", "--system", "Be brief.", stdin="bonjour\n")
    await chat(served, "Translate this:\n\nbonjour", "--system", "Be brief.")

    first, second = served.worker.seen
    assert first.job.prompt == second.job.prompt


@pytest.mark.parametrize(
    ("arguments", "stdin", "key", "words"),
    [
        ((), "Hi", "wrong", "invalid_api_key"),
        ((), "Hi", "", "OPENAI_API_KEY"),
        ((), " \n", None, "there is no question"),
        (("--model", "none"), "Hi", None, "model_not_found"),
        (("--url", "http://127.0.0.1:9"), "Hi", None, "FAIRLANE_URL"),
    ],
)
async def test_what_goes_wrong_is_one_line(
    served: Served, arguments: tuple[str, ...], stdin: str, key: str | None, words: str
) -> None:
    done = await chat(served, *arguments, stdin=stdin, key=key)

    (line,) = done.stderr.splitlines()
    assert (done.exit_code, done.stdout) == (1, "")
    assert words in line


async def test_a_refusal_leaves_the_conversation_as_it_was(served: Served) -> None:
    def ask() -> list[dict[str, str]]:
        with httpx.Client(base_url=served.url, headers={"authorization": f"Bearer {served.keys['acme']}"}) as http:
            talk = ChatSession(http, "tiny", None, None, None)
            talk.ask("one", lambda *_: None, lambda _: None)
            talk.model = "none"
            with suppress(Exception):
                talk.ask("two", lambda *_: None, lambda _: None)
            return talk.messages

    messages = await asyncio.to_thread(ask)

    assert [message["content"] for message in messages] == ["one", SAID]


class Terminal:
    """The command on a terminal of its own."""

    def __init__(self, process: asyncio.subprocess.Process, end: int) -> None:
        self.process, self._end = process, end
        self.seen = ""
        self._read = 0

    def type(self, text: str) -> None:
        os.write(self._end, text.encode())

    async def until(self, words: str) -> None:
        """Read until these words were shown, after those that were waited for before."""
        async with asyncio.timeout(WAIT_S):
            while (place := self.seen.find(words, self._read)) < 0:
                await asyncio.sleep(0.01)
                with suppress(BlockingIOError):
                    self.seen += os.read(self._end, 65_536).decode(errors="replace")
        self._read = place + len(words)


@asynccontextmanager
async def terminal(served: Served, *arguments: str) -> AsyncIterator[Terminal]:
    """Run the command there; Ctrl-C reaches it as from a keyboard."""
    ours, its = pty.openpty()
    os.set_blocking(ours, False)
    environ = {**os.environ, "FAIRLANE_URL": served.url, "OPENAI_API_KEY": served.keys["acme"], "TERM": "xterm"}
    script = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); from fairlane.cli.main import main; main()"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        script,
        "chat",
        *arguments,
        env=environ,
        stdin=its,
        stdout=its,
        stderr=its,
        start_new_session=True,
    )
    os.close(its)
    try:
        yield Terminal(process, ours)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        os.close(ours)


async def test_a_conversation_on_a_terminal(served: Served) -> None:
    served.worker.step_s = 0.02  # so that not all tokens come at the same moment
    async with terminal(served) as shown:
        await shown.until("> ")
        shown.type("/lane throughput\nWhat is the capital of France?\n")
        await shown.until("TTFT")
        await shown.until("throughput")
        await shown.until("> ")
        shown.type("/nonsense\n")
        await shown.until("/retry")
        await shown.until("> ")
        shown.type("/quit\n")
        assert await asyncio.wait_for(shown.process.wait(), WAIT_S) == 0

    assert SAID in shown.seen
    assert "tokens/s" in shown.seen
    assert [lease.job.lane for lease in served.worker.seen] == ["throughput"]


async def test_ctrl_c_ends_the_answer_and_not_the_conversation(served: Served) -> None:
    served.worker.limit = 4
    async with terminal(served) as shown:
        await shown.until("> ")
        shown.type("Tell me everything.\n")
        await shown.until("The ")
        await until(lambda: any(len(made) >= 4 for made in served.worker.produced.values()))
        shown.type("\x03")
        await shown.until("cancelled")
        await shown.until("> ")
        await until(lambda: not served.worker.leases)
        served.worker.limit = None
        shown.type("And now?\n")
        await shown.until(SAID)
        await shown.until("> ")  # before it, the terminal would take the key for itself
        shown.type("\x04")
        assert await asyncio.wait_for(shown.process.wait(), WAIT_S) == 0

    assert len(served.worker.cancelled) == 1
