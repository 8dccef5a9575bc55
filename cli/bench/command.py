"""`fairlane bench`: load a running gateway. `fairlane bench compare`: compare two runs."""

import asyncio
import os
import random
import secrets
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

import httpx
import msgspec
import typer
import uvloop

from fairlane.cli.bench import load, report
from fairlane.cli.bench.connection import Endpoint
from fairlane.cli.bench.prompts import WORDS, PromptMaker
from fairlane.cli.bench.results import DEFAULT_TARGETS, BenchReport, Gaps, LaneTarget, group, lanes_of, percentile
from fairlane.cli.bench.run import BenchRun, Tally
from fairlane.cli.client import (
    CommandError,
    Url,
    check_writable,
    no_gateway,
    refused,
    report_errors,
    target_url,
    write_whole,
)
from fairlane.cli.printer import Output, OutputCommand, OutputForm, default_command, show
from fairlane.cli.simulation.inputs import cut, read_file
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.simulation.trace import TraceRow

Option = typer.Option
KEY_VARIABLE = "OPENAI_API_KEY"
DEFAULT_REQUESTS = 100
ASK_S = 30.0
COMPARED = (
    "speed", "rate", "concurrency", "requests", "duration_s", "latency_share", "api", "ignore_eos", "seed",
    "same_prompts",
)  # fmt: skip
PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
# Exit code after Ctrl-C, as in shells.
INTERRUPTED = 130


app = typer.Typer(cls=default_command("run"), add_completion=False)

Trace = Annotated[Path | None, Option(metavar="FILE", help="Replay its arrivals, sizes, lanes and tenants.")]
Rate = Annotated[float | None, Option(min=1e-6, help="Open loop: requests per second, as a Poisson process.")]
Concurrency = Annotated[int | None, Option(min=1, max=20_000, help="Closed loop: number of clients. [default: 8]")]
Requests = Annotated[
    int | None, Option("--requests", "-n", min=1, max=load.MOST_REQUESTS, help="Maximum number of requests.")
]
DurationS = Annotated[
    float | None, Option("--duration", metavar="SECONDS", min=0.1, help="Maximum time to send requests.")
]
Speed = Annotated[float, Option(min=1e-6, help="Speed relative to the trace.")]
Part = Annotated[
    str | None, Option("--slice", metavar="START:DURATION", help="Part of the trace in seconds; defaults to all.")
]
BadRowsPolicy = Annotated[
    Literal["fail", "skip"], Option("--bad-rows", help="Unusable rows of the trace: fail or skip them.")
]
PromptTokens = Annotated[str, Option(metavar="N or LEAST:MOST", help="Tokens per prompt, without a trace.")]
OutputTokens = Annotated[str, Option(metavar="N or LEAST:MOST", help="Tokens per response, without a trace.")]
Keys = Annotated[list[str] | None, Option("--key", help="A tenant's key; may be repeated. Defaults to OPENAI_API_KEY.")]
KeysFile = Annotated[Path | None, Option("--keys", metavar="FILE", help="File with lines KEY or NAME KEY [WEIGHT].")]
Zipf = Annotated[float, Option(min=0.0, max=10.0, help="Zipf exponent of the keys' shares; 0 for equal shares.")]
LatencyShare = Annotated[
    float, Option(min=0.0, max=1.0, help="Fraction in the latency lane, unless the trace names lanes.")
]
Targets = Annotated[
    list[str] | None,
    Option("--target", metavar="LANE:TTFT_MS:TPOT_MS", help="Targets for goodput; default to the lane's."),
]
Model = Annotated[str | None, Option(help="Name of the model; defaults to the gateway's first.")]
Api = Annotated[Literal["completions", "chat"], Option(help="Send exact token ids, or text messages.")]
Eos = Annotated[
    bool, Option("--ignore-eos/--stop-at-eos", help="Generate each response to its full length, or stop at EOS.")
]
MostOpen = Annotated[int, Option(min=1, max=20_000, help="Open loop: maximum concurrent requests.")]
TimeoutS = Annotated[float, Option("--timeout", metavar="SECONDS", min=0.1, help="Timeout of one request.")]
Seed = Annotated[int, Option(help="Seed of arrivals, sizes, lanes and keys.")]
SamePrompts = Annotated[
    bool,
    Option(
        "--same-prompts", help="Derive prompts from the seed too, so that a second run finds them in the prefix cache."
    ),
]
JsonFile = Annotated[Path | None, Option("--json", metavar="FILE", help="Write all figures and requests to this file.")]


class _BenchPlan(msgspec.Struct, frozen=True, kw_only=True):
    setup: dict[str, object]
    # Rows of a trace; empty if sizes are drawn.
    rows: Sequence[TraceRow]
    keys: Sequence[load.TenantKey]
    prompts: load.TokenRange
    outputs: load.TokenRange
    targets: dict[str, LaneTarget]
    latency_share: float
    rate: float | None
    speed: float
    # None for an open loop.
    concurrency: int | None
    requests: int
    duration_s: float | None
    most_open: int
    timeout_s: float
    seed: int
    same_prompts: bool
    api: str
    ignore_eos: bool


@app.command()
def run(
    trace: Trace = None,
    rate: Rate = None,
    concurrency: Concurrency = None,
    requests: Requests = None,
    duration: DurationS = None,
    speed: Speed = 1.0,
    part: Part = None,
    bad_rows: BadRowsPolicy = "fail",
    prompt_tokens: PromptTokens = "256",
    output_tokens: OutputTokens = "64",
    key: Keys = None,
    keys_file: KeysFile = None,
    zipf: Zipf = 0.0,
    latency_share: LatencyShare = 1.0,
    target: Targets = None,
    model: Model = None,
    api: Api = "completions",
    ignore_eos: Eos = True,
    most_open: MostOpen = 4_000,
    timeout: TimeoutS = 600.0,
    seed: Seed = 0,
    same_prompts: SamePrompts = False,
    json_file: JsonFile = None,
    url: Url = None,
) -> None:
    """Load the gateway of --url or the settings; report TTFT, TPOT, ITL, throughput and goodput, by lane and key.

    Closed loop with --concurrency; open loop with --rate, or at the times of a trace. Ctrl-C reports what was measured.
    """
    with report_errors():
        if rate is not None and (trace is not None or concurrency is not None):
            raise CommandError("--rate cannot be combined with --trace or --concurrency")
        rows = [] if trace is None else cut(trace, read_file(trace, None, bad_rows), part)
        is_open = rate is not None or (trace is not None and concurrency is None)
        most = requests or (len(rows) if rows else load.MOST_REQUESTS if duration else DEFAULT_REQUESTS)
        plan = _BenchPlan(
            setup={},
            rows=rows,
            keys=load.read_keys(key or _own_key(keys_file), keys_file, zipf),
            prompts=load.TokenRange.parse(prompt_tokens, "--prompt-tokens"),
            outputs=load.TokenRange.parse(output_tokens, "--output-tokens"),
            targets=_targets(target or []),
            latency_share=latency_share,
            rate=rate,
            speed=speed,
            concurrency=None if is_open else concurrency or 8,
            requests=min(most, len(rows)) if rows else most,
            duration_s=duration,
            most_open=most_open,
            timeout_s=timeout,
            seed=seed,
            same_prompts=same_prompts,
            api=api,
            ignore_eos=ignore_eos,
        )
        plan = msgspec.structs.replace(plan, setup=_setup(plan, trace, part))
        if json_file is not None:
            check_writable(json_file)
        found = uvloop.run(_run(plan, target_url(url), model))
        if json_file is not None:
            write_whole(json_file, [msgspec.json.encode(found)])
        report.show_report(found)
        if found.interrupted:
            raise typer.Exit(INTERRUPTED)


@app.command(cls=OutputCommand)
def compare(
    first: Annotated[Path, typer.Argument(metavar="A.json", help="Output of `bench --json`.")],
    second: Annotated[Path, typer.Argument(metavar="B.json", help="Output of another run.")],
    output: Output = OutputForm.TABLE,
) -> None:
    """Compare two runs side by side; changes are relative to the first."""
    with report_errors():
        a, b = report.read_report(first), report.read_report(second)
        rows = report.compared(a, b)
        show(rows, output, lambda: report.show_compared(rows))
        for each in report.differences(a, b):
            typer.echo(f"different: {each}", err=True)


def _own_key(keys_file: Path | None) -> list[str]:
    return [] if keys_file is not None else [key for key in (os.environ.get(KEY_VARIABLE),) if key]


def _targets(stated: Sequence[str]) -> dict[str, LaneTarget]:
    targets = dict(DEFAULT_TARGETS)
    for each in stated:
        lane, *figures = each.split(":")
        try:
            targets[LaneName(lane).value] = LaneTarget(*map(float, figures))
        except (ValueError, TypeError):
            raise CommandError(
                f"--target: write LANE:TTFT_MS:TPOT_MS, such as latency:1000:100, not {each[:40]!r}"
            ) from None
    return targets


def _setup(plan: _BenchPlan, trace: Path | None, part: str | None) -> dict[str, object]:
    return {
        "trace": None if trace is None else trace.name,
        "slice": part,
        **{name: getattr(plan, name) for name in COMPARED},
        "prompt_tokens": [plan.prompts.least, plan.prompts.most],
        "output_tokens": [plan.outputs.least, plan.outputs.most],
        "keys": {key.name: key.weight for key in plan.keys},
    }


async def _run(plan: _BenchPlan, url: str, model: str | None) -> BenchReport:
    served, vocabulary = await _look(url, plan.keys[0].key, model, plan.api)
    bench = BenchRun(
        Endpoint(url, PATHS[plan.api]),
        plan.keys,
        lambda request, prompt: _body(plan, served, request, prompt),
        PromptMaker(f"{plan.seed}/{'' if plan.same_prompts else secrets.token_hex(8)}", vocabulary),
        plan.timeout_s,
    )
    started_at = time.time()
    progress = report.BenchProgress(bench.tally, plan.requests, plan.duration_s)
    watching = asyncio.create_task(progress.show())
    loading = asyncio.create_task(_load(plan, bench))
    with suppress(ValueError, RuntimeError):  # only the main thread can handle signals
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, loading.cancel)
    try:
        await loading
        interrupted = False
    except asyncio.CancelledError:
        interrupted = True
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    setup = {**plan.setup, "model": served}
    return _report(plan, bench.tally, setup, started_at, interrupted=interrupted)


async def _load(plan: _BenchPlan, bench: BenchRun) -> None:
    mix = load.Mix(plan.keys, plan.latency_share, random.Random(f"{plan.seed}/mix"))
    if plan.rows:
        asked = load.replayed(plan.rows, mix, plan.speed)
    else:
        asked = load.drawn(mix, plan.prompts, plan.outputs, plan.rate, random.Random(f"{plan.seed}/sizes"))
    is_open = plan.concurrency is None
    asked = load.bounded(asked, plan.requests, plan.duration_s, is_open=is_open)
    if plan.concurrency is None:
        await bench.opened(asked, plan.most_open)
    else:
        await bench.closed(asked, plan.concurrency, plan.duration_s)


def _body(plan: _BenchPlan, model: str, request: load.BenchRequest, prompt: Sequence[int] | str) -> dict[str, object]:
    body: dict[str, object] = {
        "model": model,
        "max_tokens": request.output_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
    }
    if plan.ignore_eos:
        body["ignore_eos"] = True
    if plan.api == "chat":
        return {**body, "messages": [{"role": "user", "content": prompt}]}
    return {**body, "prompt": prompt}


async def _look(url: str, key: str, model: str | None, api: str) -> tuple[str, list[int]]:
    headers = {"authorization": f"Bearer {key}"}
    try:
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=ASK_S) as http:
            answer = await http.get("/v1/models")
            if not answer.is_success:
                raise refused(answer)
            listed = [str(each["id"]) for each in answer.json()["data"]]
            if not listed:
                raise CommandError(f"{url} serves no model to this key")
            name = model or listed[0]
            if api == "chat":
                return name, []
            body = {"model": name, "prompt": " " + " ".join(WORDS), "add_special_tokens": False}
            answer = await http.post("/tokenize", json=body)
            return name, sorted(set(answer.json()["tokens"])) if answer.is_success else []
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise no_gateway(url, error) from None
    except (ValueError, LookupError, TypeError):
        raise CommandError(f"{url} does not answer like Fairlane: is FAIRLANE_URL right?") from None


def _report(
    plan: _BenchPlan, tally: Tally, setup: dict[str, object], started_at: float, *, interrupted: bool
) -> BenchReport:
    done, seconds = tally.done, tally.seconds
    lanes = lanes_of(done)
    tenants = dict.fromkeys(key.name for key in plan.keys)
    lags = sorted(each.lag_s for each in done)
    return BenchReport(
        setup=setup,
        started_at=started_at,
        duration_s=seconds,
        interrupted=interrupted,
        lag_p99_ms=percentile(lags, 99) * 1e3 if lags else 0.0,
        unsent=tally.unsent,
        total=group(done, sum(tally.gaps.values(), Gaps()), seconds, plan.targets),
        lanes={
            lane: group([each for each in done if each.lane == lane], tally.gaps[lane], seconds, plan.targets)
            for lane in lanes
        },
        tenants={
            name: group([each for each in done if each.tenant == name], None, seconds, plan.targets) for name in tenants
        },
        targets=plan.targets,
        requests=done,
    )
