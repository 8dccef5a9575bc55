"""`fairlane chat`: talk to a model through the gateway, as a tenant; also for a single question from a pipe.

On a terminal it reads lines and commands that begin with `/`; Ctrl-C ends a response, and its text so far stays in the
conversation. Through a pipe, only the response is written to stdout."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Annotated, Literal

import httpx
import msgspec
import typer

from fairlane.cli.client import CommandError, Url, first_model, given, no_gateway, refused, report_errors, tenants_url
from fairlane.cli.printer import duration, printable

app = typer.Typer(add_completion=False)

KEY_VARIABLE = "OPENAI_API_KEY"
# A stream sends something at least every ten seconds, even while it waits.
CONNECT_S, SILENT_S = 10.0, 120.0
CHAT = "/v1/chat/completions"
LANES = ("latency", "throughput")
DIM, PLAIN, CLEAR = "\x1b[2m", "\x1b[0m", "\r\x1b[2K"
HELP = """\
/lane latency|throughput   the lane of what follows
/system TEXT               the system prompt; without a text there is none
/model NAME                the model
/max N                     tokens of an answer at most
/retry                     ask the last question again
/clear                     forget the conversation
/quit                      leave (or Ctrl-D); Ctrl-C ends an answer"""

Lane = Literal["latency", "throughput"]


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)
    finish_reason: str | None = None


class _ChatUsage(msgspec.Struct):
    completion_tokens: int = 0


class _ChatError(msgspec.Struct):
    message: str = ""
    code: str | None = None


class _ChatEvent(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _ChatUsage | None = None
    error: _ChatError | None = None


class ChatAnswer(msgspec.Struct):
    """The response to one question. Times are seconds since it was sent."""

    text: str = ""
    lane: str = ""
    first_s: float | None = None
    last_s: float = 0.0
    tokens: int = 0
    finish: str | None = None
    is_cut: bool = False

    def summary(self) -> str:
        if self.first_s is None:
            return "no token"
        parts = [f"TTFT {duration(self.first_s * 1e3)}", f"{self.tokens:,} tokens"]
        if self.tokens > 1 and self.last_s > self.first_s:
            parts.append(f"{(self.tokens - 1) / (self.last_s - self.first_s):,.1f} tokens/s")
        parts += [self.lane] if self.lane else []
        if self.is_cut or self.finish not in (None, "stop"):
            parts.append("cancelled" if self.is_cut else str(self.finish))
        return ", ".join(parts)


@dataclass(slots=True)
class ChatSession:
    """A conversation, and the parameters of its next request."""

    http: httpx.Client
    model: str
    lane: str | None = None
    system: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    messages: list[dict[str, str]] = field(default_factory=list)

    def ask(self, question: str, say: Callable[[str, bool], None], wait: Callable[[str], None]) -> ChatAnswer:
        """Stream the response: `say` gets its text and whether that is reasoning, `wait` gets progress comments.

        Ctrl-C ends only the response. Raises CommandError, which removes the question again."""
        self.messages.append({"role": "user", "content": question})
        answer = ChatAnswer()
        try:
            self._stream(answer, say, wait)
        except KeyboardInterrupt:
            answer.is_cut = True
        except BaseException:
            self.messages.pop()
            raise
        self.messages.append({"role": "assistant", "content": answer.text})
        return answer

    def _stream(self, answer: ChatAnswer, say: Callable[[str, bool], None], wait: Callable[[str], None]) -> None:
        headers = {"x-fairlane-progress": "1"} | ({} if self.lane is None else {"x-fairlane-lane": self.lane})
        sent_s = time.perf_counter()
        try:
            with self.http.stream("POST", CHAT, json=self._body(), headers=headers) as response:
                if not response.is_success:
                    response.read()
                    raise refused(response)
                answer.lane = response.headers.get("x-fairlane-lane", "")
                for line in response.iter_lines():
                    if line.startswith(":"):
                        wait(line[1:].strip())
                    elif line.startswith("data: {"):
                        _take(msgspec.json.decode(line[6:], type=_ChatEvent), answer, sent_s, say)
        except httpx.HTTPError as error:
            raise no_gateway(str(self.http.base_url), error) from None
        except msgspec.DecodeError:
            raise CommandError("the response is not Fairlane's: is FAIRLANE_URL right?") from None

    def _body(self) -> dict[str, object]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        return given(
            model=self.model,
            messages=[*system, *self.messages],
            stream=True,
            stream_options={"include_usage": True},
            max_tokens=self.max_tokens,
            temperature=self.temperature,
        )

    def retry(self) -> str | None:
        while self.messages:
            taken = self.messages.pop()
            if taken["role"] == "user":
                return taken["content"]
        return None


def _take(event: _ChatEvent, answer: ChatAnswer, sent_s: float, say: Callable[[str, bool], None]) -> None:
    if event.error is not None:
        raise CommandError(f"{event.error.message} ({event.error.code})")
    for choice in event.choices:
        for text, is_thought in ((choice.delta.reasoning_content, True), (choice.delta.content, False)):
            if text:
                answer.last_s = time.perf_counter() - sent_s
                if answer.first_s is None:
                    answer.first_s = answer.last_s
                answer.text += "" if is_thought else text
                answer.tokens += 1  # corrected by the usage at the end
                say(text, is_thought)
        answer.finish = choice.finish_reason or answer.finish
    if event.usage is not None:
        answer.tokens = event.usage.completion_tokens


@app.command()
def chat(
    question: Annotated[list[str] | None, typer.Argument(help="Ask this and exit; a pipe's text is appended.")] = None,
    lane: Annotated[Lane | None, typer.Option(help="The lane; defaults to the tenant's.")] = None,
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    model: Annotated[str | None, typer.Option(help="Name of the model; defaults to the gateway's first.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Maximum tokens of a response.")] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, max=2, help="0 is greedy; defaults to the model's.")
    ] = None,
    key: Annotated[str | None, typer.Option(envvar=KEY_VARIABLE, help="The tenant's key.", show_envvar=True)] = None,
    url: Url = None,
) -> None:
    """Talk to a model through the gateway. Ctrl-C ends a response, Ctrl-D quits; /help lists commands."""
    with report_errors():
        if not key or not key.isascii() or not key.isprintable():
            raise CommandError(f"the tenant's key is missing or malformed: set {KEY_VARIABLE}, or --key")
        address = tenants_url(url)
        timeout = httpx.Timeout(CONNECT_S, read=SILENT_S)
        with httpx.Client(base_url=address, headers={"authorization": f"Bearer {key}"}, timeout=timeout) as http:
            talk = ChatSession(http, model or first_model(http), lane, system, max_tokens, temperature)
            piped = "" if sys.stdin.isatty() else sys.stdin.read()
            asked = "\n\n".join(part for part in (" ".join(question or ()), piped.strip()) if part)
            if asked:
                _once(talk, asked)
            elif sys.stdin.isatty():
                _interactive(talk)
            else:
                raise CommandError("there is no question: the pipe is empty")


def _once(talk: ChatSession, asked: str) -> None:
    with _output() as (say, wait):
        answer = talk.ask(asked, say, wait)
    if not answer.text.endswith("\n"):
        typer.echo("")
    if sys.stderr.isatty():
        typer.echo(f"{DIM}{answer.summary()}{PLAIN}", err=True)
    if answer.is_cut:
        raise typer.Exit(130)


def _interactive(talk: ChatSession) -> None:
    with suppress(ImportError):
        import readline  # noqa: F401 - enables line editing and history
    typer.echo(f"{DIM}{talk.model}; /help lists commands, Ctrl-D quits{PLAIN}")
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            typer.echo("")
            return
        except KeyboardInterrupt:
            typer.echo("")
            continue
        asked: str | None = line
        if line.startswith("/"):
            if line.split()[0] in ("/quit", "/exit"):
                return
            asked = _command(talk, line)
        if asked:
            _answer(talk, asked)


def _answer(talk: ChatSession, asked: str) -> None:
    try:
        with _output() as (say, wait):
            answer = talk.ask(asked, say, wait)
        typer.echo(f"\n{DIM}{answer.summary()}{PLAIN}")
    except CommandError as error:
        typer.echo(f"fairlane: {error}", err=True)


def _command(talk: ChatSession, line: str) -> str | None:
    name, _, value = line.partition(" ")
    value = value.strip()
    match name:
        case "/lane" if value in LANES:
            talk.lane = value
        case "/system":
            talk.system = value or None
        case "/model" if value:
            talk.model = value
        case "/max" if value.isascii() and value.isdecimal() and int(value) > 0:
            talk.max_tokens = int(value)
        case "/clear":
            talk.messages.clear()
        case "/retry":
            return talk.retry()
        case _:
            typer.echo(HELP)
    return None


@contextmanager
def _output() -> Iterator[tuple[Callable[[str, bool], None], Callable[[str], None]]]:
    shows_wait, is_terminal = sys.stderr.isatty(), sys.stdout.isatty()
    state = {"waits": False, "thinks": False}

    def quiet() -> None:
        if state["waits"]:
            sys.stderr.write(CLEAR)
            sys.stderr.flush()
            state["waits"] = False

    def think(is_thought: bool) -> None:
        if is_terminal and is_thought != state["thinks"]:
            sys.stdout.write(DIM if is_thought else f"{PLAIN}\n")
            state["thinks"] = is_thought

    def say(text: str, is_thought: bool) -> None:
        if is_thought and not is_terminal:
            return
        quiet()
        think(is_thought)
        sys.stdout.write(printable(text, "\n\t") if is_terminal else text)
        sys.stdout.flush()

    def wait(why: str) -> None:
        if shows_wait:
            sys.stderr.write(f"{CLEAR}{DIM}({printable(why)}){PLAIN}")
            sys.stderr.flush()
            state["waits"] = True

    try:
        yield say, wait
    finally:
        quiet()
        think(False)
