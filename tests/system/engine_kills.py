"""Engines, lease holders and gateways killed under running streams: no token lost or doubled, and the books balance.

python -m tests.system.engine_kills [--schedules 50] [--seed 1] [--vllm PYTHON --model DIRECTORY]

A store, two gateways, two lease holders (`fairlane worker --engine vllm`) and the engine before which each stands are
processes of their own. A schedule is a crowd of streams amid which one engine, one lease holder and one gateway get
SIGKILL, each when so many tokens have been told as its seed draws, and are started again. The engines are stand-ins
whose next token depends on all before it, so that one that is lost or comes twice shows in all that follow; or, with
--vllm, vLLM itself in float32, whose answers are compared with those of undisturbed requests: where two tokens were
less than 1e-3 apart it may go either way, which is counted and not compared. At the end each tenant's ledger is
compared with what its clients received, and nothing may be reserved or open. Ends with 1 where anything is
not as it must be.
"""

import asyncio
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from pathlib import Path

from tests.support.system.appended import Account
from tests.support.system.chaos import Process, kill
from tests.support.system.engine_clients import Asked, Clients, Kind, Told
from tests.support.system.engine_world import Engine, EngineWorld
from tests.support.system.kills import KillsCase, KillsReport, parser_of, run_all
from tests.support.worker.vllm_stand_in import continuation
from tests.support.worker.word_model import write_word_model

PER_WORLD = 10
"""Schedules of one store: one that lives much longer rewrites its file, which then no longer says what happened."""
NEAR_TIE = 1e-3
"""Distance of two log-probabilities below which a greedy answer may go either way."""
VLLM_WITHIN_S = 1_800.0
"""Within which a request must end before one that takes minutes to start where others take the processor too."""
UNREPORTED = 32
"""Output tokens of a request whose gateway and lease holder die together, since its last extension."""
AMPLE = 10**8
TENANTS = {Kind.PATIENT: "patient", Kind.LEAVER: "leaver", Kind.ONCE: "once"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case(KillsCase):
    """Schedules in one world."""

    schedules: int
    requests: int = 12
    prompts: int = 8
    """That differ."""
    max_tokens: int = 48


@dataclass
class Report(KillsReport[Case]):
    """What became of them: how requests ended by who asked, and the output tokens in the ledgers."""

    tokens: int = 0
    """Compared, each by request, choice and index."""
    near_ties: int = 0
    """Answers that parted there, and were compared up to there."""


@dataclass
class References:
    """What each prompt is answered undisturbed."""

    prompts: list[tuple[int, ...]]
    texts: dict[tuple[int, ...], str] = field(default_factory=dict)
    tokens: dict[tuple[int, ...], list[str]] = field(default_factory=dict)
    margins: dict[tuple[int, ...], list[float]] = field(default_factory=dict)


async def run(world: EngineWorld, case: Case) -> Report:
    """All schedules, in a world that has begun."""
    report, began_s = Report(case), time.monotonic()
    await world.ready()
    limits = {"tokens_per_month": AMPLE}
    keys = {kind: await world.tenant(tenant, limits=limits) for kind, tenant in TENANTS.items()}
    clients = Clients(world.urls, world.model_name, keys, world.chooser)
    if world.vllm:
        clients.within_s = VLLM_WITHIN_S
    undisturbed = await _references(world, clients, case)
    answers = list[Told]()
    for number in range(case.schedules):
        crowd = [
            _drawn(world.chooser, 1_000 * (number + 1) + place, case, undisturbed) for place in range(case.requests)
        ]
        answers += await _schedule(world, clients, crowd, report)
        await world.ready()
        done = f"schedule {number + 1}: {report.deaths.total()} kills, {clients.progress.tokens} tokens told"
        sys.stderr.write(f"seed {case.seed}, {done}, {time.monotonic() - began_s:.0f} s\n")
    for tenant in TENANTS.values():
        await world.landed(tenant)
    await world.engines_idle()
    report.took_s = time.monotonic() - began_s
    report.ends = clients.ends
    for told in answers:
        _compare(told, undisturbed, report)
    await _judge(world, answers, case, undisturbed, report)
    return report


async def _references(world: EngineWorld, clients: Clients, case: Case) -> References:
    """Of the stand-ins by the sum that they compute; vLLM is asked."""
    ids = range(3, 97) if not world.vllm else range(1_000, 20_000)
    prompts = [tuple(world.chooser.sample(ids, world.chooser.randint(2, 24))) for _ in range(case.prompts)]
    found = References(prompts)
    for number, prompt in enumerate(prompts):
        if world.vllm:
            told = await clients.ask(Asked(number, Kind.ONCE, prompt, 1, case.max_tokens))
            assert told.end == "whole", told.end
            found.texts[prompt], found.tokens[prompt] = told.texts[0], told.tokens[0]
            found.margins[prompt] = told.margins[0]
        else:
            found.tokens[prompt] = [f"w{token}" for token in continuation(prompt, case.max_tokens)]
            found.texts[prompt] = "".join(found.tokens[prompt])
            found.margins[prompt] = [1.0] * case.max_tokens
    clients.ends.clear()
    return found


def _drawn(chooser: random.Random, number: int, case: Case, undisturbed: References) -> Asked:
    kind = chooser.choices([Kind.PATIENT, Kind.LEAVER, Kind.ONCE], [6, 2, 2])[0]
    n, length = chooser.choice((1, 1, 2, 3)), chooser.randint(case.max_tokens // 4, case.max_tokens)
    tier = chooser.choice(("auto", "priority", "flex"))
    leaves_after = chooser.randint(1, n * length) if kind is Kind.LEAVER else 0
    has_logprobs = kind is not Kind.PATIENT or chooser.random() < 0.5
    return Asked(number, kind, chooser.choice(undisturbed.prompts), n, length, tier, has_logprobs, leaves_after)


async def _schedule(world: EngineWorld, clients: Clients, crowd: Sequence[Asked], report: Report) -> list[Told]:
    """A crowd, and three deaths amid it."""
    chooser, told_before = world.chooser, clients.progress.tokens
    sure = sum(asked.n * asked.max_tokens for asked in crowd if asked.kind is Kind.PATIENT)
    victims: list[Process] = [chooser.choice(kind) for kind in (world.engines, world.workers, world.gateways)]
    deaths = [
        asyncio.create_task(
            _death(world, clients, victim, told_before + chooser.randrange(1, max(2, sure // 2)), report)
        )
        for victim in victims
    ]
    answers = await asyncio.gather(*(clients.ask(asked) for asked in crowd))
    await asyncio.gather(*deaths)
    return answers


async def _death(world: EngineWorld, clients: Clients, victim: Process, tokens: int, report: Report) -> None:
    away_s = world.chooser.uniform(0.0, report.case.longest_away_s)
    await clients.progress.reach(tokens)
    await asyncio.to_thread(kill, victim, away_s)
    kind = "engine" if isinstance(victim, Engine) else "gateway" if victim in world.gateways else "lease holder"
    report.deaths[kind] += 1


def _compare(told: Told, undisturbed: References, report: Report) -> None:
    """Every token that a client was told."""
    asked = told.asked
    report.faults += told.faults
    for choice in range(len(told.texts)):
        parted, count = _parted(told, choice, undisturbed)
        if parted is not None and undisturbed.margins[asked.prompt][parted] < NEAR_TIE:
            report.near_ties += 1
        elif parted is not None:
            report.faults.append(f"request {asked.number}, choice {choice}: another token at {parted}")
        report.tokens += count if parted is None else parted
    if asked.kind is not Kind.PATIENT:
        return
    report.expect(f"request {asked.number} ended", told.end, "whole")
    if asked.has_logprobs:
        report.expect(f"request {asked.number}, tokens", [*map(len, told.tokens)], [asked.max_tokens] * asked.n)
    if told.usage is not None:
        report.expect(f"request {asked.number}, usage", told.usage["completion_tokens"], asked.n * asked.max_tokens)
        report.expect(f"request {asked.number}, prompt", told.usage["prompt_tokens"], len(asked.prompt))


def _parted(told: Told, choice: int, undisturbed: References) -> tuple[int | None, int]:
    """Index of the first token that is another than undisturbed, if one is, and how many tokens there are."""
    asked = told.asked
    wanted = undisturbed.tokens[asked.prompt]
    if asked.has_logprobs:
        tokens = told.tokens[choice]
        pairs = enumerate(zip(tokens, wanted, strict=False))
        return next((at for at, (token, other) in pairs if token != other), None), len(tokens)
    text, whole = told.texts[choice].rstrip("\N{REPLACEMENT CHARACTER}"), undisturbed.texts[asked.prompt]
    pairs_of_text = enumerate(zip(text, whole, strict=False))
    shared = next((at for at, (one, other) in pairs_of_text if one != other), min(len(text), len(whole)))
    ends = [*accumulate(len(token) for token in wanted[: asked.max_tokens])]
    if shared == len(text) and shared > (ends[-2] if len(ends) > 1 else 0):
        return None, asked.max_tokens
    return next((at for at, end in enumerate(ends) if end > shared), asked.max_tokens - 1), asked.max_tokens


async def _judge(
    world: EngineWorld, answers: Sequence[Told], case: Case, undisturbed: References, report: Report
) -> None:
    """Ledgers and budgets."""
    for kind, tenant in TENANTS.items():
        account = Account(tenant, AMPLE).follow(world.directory)
        charged = {booking: int(entry["output_tokens"]) for booking, entry in account.ledger.items()}
        report.charged += sum(charged.values())
        spent = sum(int(entry["prompt_tokens"]) for entry in account.ledger.values()) + sum(charged.values())
        report.expect(f"{tenant}: tokens of the month", account.spent, spent)
        report.expect(f"{tenant}: held", account.held, 0)
        usage = (await world.admin("GET", f"/tenants/{tenant}/usage"))["total"]
        report.expect(f"{tenant}: usage", usage["output_tokens"], sum(charged.values()))
        mine = [told for told in answers if told.asked.kind is kind]
        delivered = sum(_delivered(told) for told in mine)
        if kind is Kind.PATIENT:
            report.expect(f"{tenant}: charged", sum(charged.values()), delivered)
            prompts = sum(len(told.asked.prompt) for told in mine)
            report.expect(f"{tenant}: prompt tokens", usage["prompt_tokens"], prompts)
        elif delivered > sum(charged.values()) + case.schedules * UNREPORTED:
            report.faults.append(f"{tenant}: {delivered} tokens delivered, {sum(charged.values())} charged")
    for log in sorted(world.directory.glob("*.log")):
        lines = log.read_text(errors="replace").splitlines()
        bad = [line for line in lines if "Traceback" in line or "failed:" in line] if "engine" not in log.name else []
        report.expect(f"{log.name}, bad lines", bad[:3], [])


def _delivered(told: Told) -> int:
    return told.count if told.usage is None else int(told.usage["completion_tokens"])


async def lives(directory: Path, case: Case, *, vllm: str = "", model: Path | None = None) -> Report:
    """A world of its own for the case."""
    settings = {"LEASE_S": "2"}
    if vllm:  # which is away for a minute, and takes the processor from all others
        settings = {"LEASE_S": "6", "GATEWAY__STORE_TIMEOUT_S": "5", "GATEWAY__RESERVATION_LEASE_S": "5"}
        settings |= {"LANES__LATENCY__MAX_WAIT_S": "900", "ORPHAN_GRACE_S": "900"}
    served = model or write_word_model(directory / "model")
    with EngineWorld(
        directory, random.Random(case.seed), settings, step_s=0.02, vllm=vllm, model=served, count=1 if vllm else 2
    ) as world:
        return await run(world, case)


COLUMNS: dict[str, Callable[[Report], object]] = {
    "seed": lambda each: each.case.seed,
    "schedules": lambda each: each.case.schedules,
    "kills: engine, lease holder, gateway": lambda each: (
        f"{each.deaths['engine']}, {each.deaths['lease holder']}, {each.deaths['gateway']}"
    ),
    "answers, near-ties": lambda each: f"{each.ends.total()}, {each.near_ties}",
    "tokens": lambda each: f"{each.tokens:,}",
    "charged": lambda each: f"{each.charged:,}",
}


def main() -> int:
    """Run it; 1 where anything is not as it must be."""
    parser = parser_of(__doc__)
    parser.add_argument("--schedules", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--vllm", default="", help="Python of an environment that has vLLM; else stand-ins")
    parser.add_argument("--model", type=Path, help="a directory, which vLLM serves")
    options = parser.parse_args()
    if options.vllm and options.model is None:
        parser.error("--vllm needs --model DIRECTORY")
    cases = [
        Case(schedules=min(PER_WORLD, options.schedules - first), seed=options.seed + first)
        for first in range(0, options.schedules, PER_WORLD)
    ]
    return run_all(cases, partial(lives, vllm=options.vllm, model=options.model), COLUMNS, options.keep)


if __name__ == "__main__":
    raise SystemExit(main())
