"""`fairlane bench`: load a running gateway. `fairlane bench compare`: compare two runs."""

import asyncio
import os
import random
import secrets
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

import httpx
import msgspec
import typer
import uvloop

from fairlane.cli import client
from fairlane.cli.bench import load, report
from fairlane.cli.bench.connection import Endpoint
from fairlane.cli.bench.load import WORDS, PromptMaker
from fairlane.cli.bench.results import DEFAULT_TARGETS, BenchReport, Gaps, LaneTarget, group, percentile
from fairlane.cli.bench.run import BenchRun, Tally
from fairlane.cli.options import with_fields
from fairlane.cli.printer import Output, OutputCommand, OutputForm, default_command, show
from fairlane.cli.simulation.inputs import cut, read_file
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.simulation.trace import TraceRow

Option = typer.Option
KEY_VARIABLE = "OPENAI_API_KEY"
DEFAULT_REQUESTS = 100
ASK_S = 30.0
# Options that `compare` reports as differences between two runs.
COMPARED = (
    "speed", "rate", "concurrency", "requests", "duration_s", "latency_share", "api", "ignore_eos", "seed",
    "same_prompts",
)  # fmt: skip
PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
# Exit code after Ctrl-C, as in shells.
INTERRUPTED = 130


app = typer.Typer(cls=default_command("run"), add_completion=False)


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """The options of a run."""

    trace: Annotated[Path | None, Option(metavar="FILE", help="Replay its arrivals, sizes, lanes and tenants.")] = None
    rate: Annotated[float | None, Option(min=1e-6, help="Open loop: requests per second, as a Poisson process.")] = None
    concurrency: Annotated[int | None, Option(min=1, max=20_000, help="Closed loop: clients. [default: 8]")] = None
    requests: Annotated[
        int | None, Option("--requests", "-n", min=1, max=load.MOST_REQUESTS, help="Maximum number of requests.")
    ] = None
    duration_s: Annotated[float | None, Option("--duration", metavar="SECONDS", min=0.1, help="Sending time.")] = None
    speed: Annotated[float, Option(min=1e-6, help="Speed relative to the trace.")] = 1.0
    part: Annotated[str | None, Option("--slice", metavar="START:DURATION", help="Part of the trace (seconds).")] = None
    bad_rows: Annotated[Literal["fail", "skip"], Option("--bad-rows", help="Unusable rows: fail, or skip.")] = "fail"
    prompt_tokens: Annotated[str, Option(metavar="N or LEAST:MOST", help="Tokens per prompt, without a trace.")] = "256"
    output_tokens: Annotated[str, Option(metavar="N or LEAST:MOST", help="Tokens per answer, without a trace.")] = "64"
    key: Annotated[list[str] | None, Option("--key", help="Tenant's key; repeatable. Default: OPENAI_API_KEY.")] = None
    keys_file: Annotated[Path | None, Option("--keys", metavar="FILE", help="Lines KEY or NAME KEY [WEIGHT].")] = None
    zipf: Annotated[float, Option(min=0.0, max=10.0, help="Zipf exponent of the keys' shares; 0: equal.")] = 0.0
    latency_share: Annotated[float, Option(min=0.0, max=1.0, help="Latency share, unless the trace has lanes.")] = 1.0
    target: Annotated[
        list[str] | None,
        Option("--target", metavar="LANE:TTFT_MS:TPOT_MS", help="Targets for goodput; default to the lane's."),
    ] = None
    model: Annotated[str | None, Option(help="Name of the model; defaults to the gateway's first.")] = None
    api: Annotated[Literal["completions", "chat"], Option(help="Send token ids, or messages.")] = "completions"
    ignore_eos: Annotated[bool, Option("--ignore-eos/--stop-at-eos", help="Full length, or stop at EOS.")] = True
    most_open: Annotated[int, Option(min=1, max=20_000, help="Open loop: maximum concurrent requests.")] = 4_000
    timeout_s: Annotated[float, Option("--timeout", metavar="SECONDS", min=0.1, help="Timeout of one request.")] = 600.0
    seed: Annotated[int, Option(help="Seed of arrivals, sizes, lanes and keys.")] = 0
    same_prompts: Annotated[
        bool,
        Option(
            "--same-prompts",
            help="Derive prompts from the seed too, so that a second run finds them in the prefix cache.",
        ),
    ] = False
    json_file: Annotated[Path | None, Option("--json", metavar="FILE", help="File for all figures.")] = None


@dataclass(frozen=True, kw_only=True)
class _BenchPlan:
    # With all defaults filled in; no concurrency is an open loop.
    options: BenchOptions
    # Rows of a trace; empty if sizes are drawn.
    rows: Sequence[TraceRow]
    keys: Sequence[load.TenantKey]
    prompts: load.TokenRange
    outputs: load.TokenRange
    targets: dict[str, LaneTarget]


@app.command()
@with_fields(BenchOptions)
def run(*, url: client.Url = None, **options: Any) -> None:  # noqa: ANN401 - the fields of BenchOptions
    """Load the gateway of --url or the settings; report TTFT, TPOT, ITL, throughput and goodput, by lane and key.

    --url is needed unless FAIRLANE_HOST or FAIRLANE_PORT is set.

    Closed loop with --concurrency; open loop with --rate, or at the times of a trace. Ctrl-C reports what was measured.
    """
    with client.report_errors():
        plan = _planned(BenchOptions(**options))
        json_file = plan.options.json_file
        if json_file is not None:
            client.check_writable(json_file)
        found = uvloop.run(_run(plan, client.target_url(url)))
        if json_file is not None:
            client.write_whole(json_file, [msgspec.json.encode(found)])
        report.show_report(found)
        if found.interrupted:
            raise typer.Exit(INTERRUPTED)


def _planned(options: BenchOptions) -> _BenchPlan:
    trace, rate, concurrency = options.trace, options.rate, options.concurrency
    if rate is not None and (trace is not None or concurrency is not None):
        raise client.CommandError("--rate cannot be combined with --trace or --concurrency")
    rows = [] if trace is None else cut(trace, read_file(trace, None, options.bad_rows), options.part)
    own_key = [key for key in (os.environ.get(KEY_VARIABLE),) if key and options.keys_file is None]
    is_open = rate is not None or (trace is not None and concurrency is None)
    without_limit = len(rows) or (load.MOST_REQUESTS if options.duration_s else DEFAULT_REQUESTS)
    requests = options.requests or without_limit
    requests = min(requests, len(rows)) if rows else requests
    return _BenchPlan(
        options=replace(options, requests=requests, concurrency=None if is_open else concurrency or 8),
        rows=rows,
        keys=load.read_keys(options.key or own_key, options.keys_file, options.zipf),
        prompts=load.TokenRange.parse(options.prompt_tokens, "--prompt-tokens"),
        outputs=load.TokenRange.parse(options.output_tokens, "--output-tokens"),
        targets=_targets(options.target or []),
    )


@app.command(cls=OutputCommand)
def compare(
    first: Annotated[Path, typer.Argument(metavar="A.json", help="Output of `bench --json`.")],
    second: Annotated[Path, typer.Argument(metavar="B.json", help="Output of another run.")],
    output: Output = OutputForm.TABLE,
) -> None:
    """Compare two runs side by side; changes are relative to the first."""
    with client.report_errors():
        a, b = report.read_report(first), report.read_report(second)
        rows = report.compared(a, b)
        show(rows, output, lambda: report.show_compared(rows))
        for each in report.differences(a, b):
            typer.echo(f"different: {each}", err=True)


def _targets(stated: Sequence[str]) -> dict[str, LaneTarget]:
    targets = dict(DEFAULT_TARGETS)
    for each in stated:
        lane, *figures = each.split(":")
        try:
            targets[LaneName(lane).value] = LaneTarget(*map(float, figures))
        except (ValueError, TypeError):
            raise client.CommandError(
                f"--target: LANE:TTFT_MS:TPOT_MS, as latency:1000:100, not {each[:30]!r}"
            ) from None
    return targets


def _setup(plan: _BenchPlan, served: str) -> dict[str, object]:
    options = plan.options
    return {
        "trace": None if options.trace is None else options.trace.name,
        "slice": options.part,
        **{name: getattr(options, name) for name in COMPARED},
        "prompt_tokens": [plan.prompts.least, plan.prompts.most],
        "output_tokens": [plan.outputs.least, plan.outputs.most],
        "keys": {key.name: key.weight for key in plan.keys},
        "model": served,
    }


async def _run(plan: _BenchPlan, url: str) -> BenchReport:
    options = plan.options
    served, vocabulary = _look(url, plan.keys[0].key, options)
    bench = BenchRun(
        Endpoint(url, PATHS[options.api]),
        plan.keys,
        lambda request, prompt: _body(options, served, request, prompt),
        PromptMaker(f"{options.seed}/{'' if options.same_prompts else secrets.token_hex(8)}", vocabulary),
        options.timeout_s,
    )
    started_at = time.time()
    watching = asyncio.create_task(report.show_progress(bench.tally, plan.options.requests, options.duration_s))
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
    return _report(plan, bench.tally, _setup(plan, served), started_at, interrupted=interrupted)


async def _load(plan: _BenchPlan, bench: BenchRun) -> None:
    options = plan.options
    mix = load.Mix(plan.keys, options.latency_share, random.Random(f"{options.seed}/mix"))
    if plan.rows:
        asked = load.replayed(plan.rows, mix, options.speed)
    else:
        asked = load.drawn(mix, plan.prompts, plan.outputs, options.rate, random.Random(f"{options.seed}/sizes"))
    asked = islice(asked, options.requests)
    if options.concurrency is None:
        await bench.opened(asked, options.most_open, options.duration_s)
    else:
        await bench.closed(asked, options.concurrency, options.duration_s)


def _body(
    options: BenchOptions, model: str, request: load.BenchRequest, prompt: Sequence[int] | str
) -> dict[str, object]:
    body: dict[str, object] = {
        "model": model,
        "max_tokens": request.output_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
    }
    if options.ignore_eos:
        body["ignore_eos"] = True
    if options.api == "chat":
        return {**body, "messages": [{"role": "user", "content": prompt}]}
    return {**body, "prompt": prompt}


def _look(url: str, key: str, options: BenchOptions) -> tuple[str, list[int]]:
    """Return the model's name, and its ids of common words; no ids for chats or if it does not tokenize."""
    with httpx.Client(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=ASK_S) as http:
        first = client.first_model(http)
        name = options.model or first
        if options.api == "chat":
            return name, []
        body = {"model": name, "prompt": " " + " ".join(WORDS), "add_special_tokens": False}
        try:
            answer = http.post("/tokenize", json=body)
            return name, sorted(set(answer.json()["tokens"])) if answer.is_success else []
        except httpx.HTTPError as error:
            raise client.no_gateway(url, error) from None
        except (ValueError, LookupError, TypeError):
            raise client.CommandError(f"{url} does not answer like Fairlane: is FAIRLANE_URL right?") from None


def _report(
    plan: _BenchPlan, tally: Tally, setup: dict[str, object], started_at: float, *, interrupted: bool
) -> BenchReport:
    done, seconds = tally.done, tally.seconds
    used = {each.lane for each in done}
    lanes = [lane.value for lane in LaneName if lane.value in used]
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
