"""Rendering of a snapshot as text: tables of lanes, tenants and workers, and KV blocks as bars or as a map.

Names are shown without control characters, and never interpreted as markup."""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fairlane.cli.printer import duration, printable
from fairlane.cli.top.picture import Picture, Run, TopBlocks, TopLane, TopSpread, TopTenant, TopWorker

LANE_STYLES = {"latency": "cyan", "throughput": "magenta"}
OTHER_STYLE = "blue"
GOOD, BAD, NOTE = "green", "red", "yellow"
# For the first tenants of the map; the others get OTHER_STYLE.
TENANT_STYLES = ("cyan", "magenta", "green", "yellow", "red", "blue")
FREE, RUNS, STOPPED, COPIED, CACHED = "·", "█", "▓", "▒", "░"
# Marks by state: running, stopped, with a copy on the host, idle in the cache.
MARKS = {"running": RUNS, "waiting": STOPPED, "swapped": STOPPED, "clean": COPIED, "copy": COPIED, "cached": CACHED}
BAR = 10
MOST_REFUSALS = 4
WORKER_NAME, TENANT_NAME = 18, 24
# Columns by which tenants can be sorted, with their fields; by name if there is none.
TENANT_SORTS = {"tokens/s": "tokens_per_s", "running": "running", "queued": "queued", "kv": "kv_blocks", "tenant": ""}
MAP_ROWS = 2
# Tables omit columns below this width.
NARROW = 100


def header(picture: Picture, url: str, *, paused: bool, filtered: str) -> Text:
    """Render the status line: address, time and errors."""
    overview = picture.overview
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append("fairlane top ", style="bold")
    line.append(f"{url}  ")
    if overview.at:
        line.append(datetime.fromtimestamp(overview.at, UTC).strftime("%H:%M:%SZ  "))
    if paused:
        line.append("PAUSED  ", style=NOTE)
    if filtered:
        line.append(f"filter {filtered!r}  ", style=NOTE)
    if picture.trouble:
        line.append(printable(picture.trouble), style=BAD)
    elif overview.refusals:
        most = Counter(overview.refusals).most_common(MOST_REFUSALS)
        line.append("refused: " + ", ".join(f"{printable(code)} {count:,}" for code, count in most), style=NOTE)
    return line


def lanes_panel(lanes: Sequence[TopLane]) -> RenderableType:
    """Render each lane's queue, work and latencies, with targets."""
    if not lanes:
        return _nothing("no lane was reported yet")
    table = _table("lane", "queued", "oldest", "run", "pre", "tok/s", "TTFT p95", "TPOT p95", "good")
    for lane in lanes:
        table.add_row(
            Text(printable(lane.lane), style=LANE_STYLES.get(lane.lane, OTHER_STYLE)),
            Text(f"{lane.queued:,}", style=NOTE if lane.queued else ""),
            duration(lane.oldest_wait_ms) if lane.oldest_wait_ms else "-",
            f"{lane.running:,}",
            Text(f"{lane.preempted:,}", style=NOTE if lane.preempted else ""),
            f"{lane.tokens_per_s:,.0f}",
            _against(lane.ttft_ms, lane.ttft_target_ms),
            _against(lane.tpot_ms, lane.tpot_target_ms),
            "-" if lane.goodput is None else f"{lane.goodput:.0%}",
        )
    return table


def _against(spread: TopSpread | None, target_ms: float | None) -> Text:
    aim = "" if target_ms is None else f"/{duration(target_ms)}"
    if spread is None:
        return Text(f"-{aim}")
    is_late = target_ms is not None and spread.p95 > target_ms
    return Text.assemble((duration(spread.p95), BAD if is_late else GOOD), aim)


def tenants_panel(tenants: Sequence[TopTenant], sort: str, filtered: str, blocks: int, width: int) -> RenderableType:
    """Render tenants with their share of KV blocks, sorted and filtered."""
    found = [each for each in tenants if filtered.lower() in each.tenant.lower()]
    if not found:
        return _nothing("no tenant with that name has work" if filtered else "no tenant has work")
    table = _table(
        "tenant", *(f"{name}▾" if name == sort else name for name in ("running", "queued", "tokens/s", "kv")), ""
    )
    field = TENANT_SORTS[sort]
    for each in sorted(found, key=lambda one: (-getattr(one, field) if field else 0.0, one.tenant)):
        share = each.kv_blocks / blocks if blocks else 0.0
        table.add_row(
            _short(each.tenant, TENANT_NAME),
            f"{each.running:,}",
            f"{each.queued:,}",
            f"{each.tokens_per_s:,.1f}",
            f"{each.kv_blocks:,}",
            _bar(share, 2 * BAR if width >= NARROW else BAR),
        )
    return table


def workers_panel(workers: Sequence[TopWorker], width: int) -> RenderableType:
    """Render each worker's load and speed."""
    if not workers:
        return _nothing("no worker is alive")
    wide = width >= NARROW
    table = _table(
        "worker", *(("model",) if wide else ()), "state", "run", "wait", "pre", "tok/s", "step", "KV used", ""
    )
    for each in workers:
        used = each.blocks_total - each.blocks_free
        table.add_row(
            _short(each.id, WORKER_NAME),
            *((_short(each.model, TENANT_NAME),) if wide else ()),
            Text("draining", style=NOTE) if each.draining else "serving",
            f"{sum(each.running.values()):,}",
            f"{sum(each.waiting.values()):,}",
            f"{sum(each.preempted.values()):,}",
            f"{sum(each.tokens_per_s.values()):,.0f}",
            duration(each.step_ms),
            f"{used:,}/{each.blocks_total:,}",
            _bar(used / each.blocks_total if each.blocks_total else 0.0, BAR),
        )
    return table


def blocks_panel(picture: Picture, width: int, *, by_tenant: bool = False) -> RenderableType:
    """Render the map of each worker's blocks; without maps, the used blocks on device and host."""
    if picture.maps:
        maps = [_map(each, width, by_tenant=by_tenant) for each in picture.maps]
        return Group(*maps, _legend(picture.maps, by_tenant=by_tenant))
    workers = picture.overview.workers
    if not workers:
        return _nothing("")
    table = _table("worker", "device", "", "host", "")
    for each in workers:
        device, host = (each.blocks_total, each.blocks_free), (each.host_slots_total, each.host_slots_free)
        table.add_row(_short(each.id, WORKER_NAME), *_pool(*device), *_pool(*host))
    return table


def _legend(maps: Sequence[TopBlocks], *, by_tenant: bool) -> Text:
    if by_tenant:
        tenants = dict.fromkeys(name for each in maps for name in each.tenants[: len(TENANT_STYLES)] if name)
        owners = [
            (f"{RUNS} {printable(name)[:TENANT_NAME]}  ", _tenant_style(place)) for place, name in enumerate(tenants)
        ]
    else:
        owners = [(f"{RUNS} {name}  ", style) for name, style in LANE_STYLES.items()]
    states = f"{STOPPED} stopped  {COPIED} copied  {CACHED} cached  {FREE} free"
    return Text.assemble(*owners, states, no_wrap=True, overflow="ellipsis")


def _tenant_style(place: int) -> str:
    return TENANT_STYLES[place] if 0 <= place < len(TENANT_STYLES) else OTHER_STYLE


def _pool(total: int, free: int) -> tuple[str, Text]:
    return f"{total - free:,}/{total:,}", _bar((total - free) / total if total else 0.0, 2 * BAR)


def _map(blocks: TopBlocks, width: int, *, by_tenant: bool) -> Text:
    room = max(10, width - 2)
    text = Text(
        f"{printable(blocks.worker)[:WORKER_NAME]} {blocks.blocks:,} blocks, {blocks.host_blocks:,} host slots\n"
    )
    for runs, rows in ((blocks.runs, MAP_ROWS), (blocks.host_runs, 1)):
        cells = list(_cells(blocks, runs, room * rows, by_tenant=by_tenant))
        for row in range(0, len(cells), room):
            for (mark, style), alike in groupby(cells[row : row + room]):
                text.append(mark * len(list(alike)), style=style)
            text.append("\n")
    text.rstrip()
    return text


def _cells(blocks: TopBlocks, runs: Sequence[Run], room: int, *, by_tenant: bool) -> Iterator[tuple[str, str]]:
    looks = [(run[0], _look(blocks, run, by_tenant=by_tenant)) for run in runs if run[0] > 0]
    total = sum(count for count, _ in looks)
    cells = min(room, total)
    place, left = 0, looks[0][0] if looks else 0
    for cell in range(cells):
        wanted = (cell + 1) * total // cells - cell * total // cells
        seen: Counter[tuple[str, str]] = Counter()
        while wanted:
            taken = min(wanted, left)
            seen[looks[place][1]] += taken
            wanted, left = wanted - taken, left - taken
            if not left and place + 1 < len(looks):
                place += 1
                left = looks[place][0]
        yield seen.most_common(1)[0][0]


def _look(blocks: TopBlocks, run: Run, *, by_tenant: bool) -> tuple[str, str]:
    mark = MARKS.get(blocks.state(run), FREE)
    if mark == FREE:
        return mark, "dim"
    if by_tenant:
        return mark, _tenant_style(run[1])
    lane = blocks.lane(run)
    return mark, "dim" if lane is None else LANE_STYLES.get(lane, OTHER_STYLE)


def _bar(share: float, cells: int) -> Text:
    filled = min(cells, max(round(share * cells), 1 if share > 0 else 0))
    style = BAD if share > 0.95 else NOTE if share > 0.8 else GOOD
    return Text.assemble(("█" * filled, style), ("·" * (cells - filled), "dim"))


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for place, column in enumerate(columns):
        left = place == 0 or column in ("", "state", "model")
        table.add_column(column, justify="left" if left else "right", no_wrap=True)
    return table


def _short(name: str, most: int) -> Text:
    shown = printable(name)
    return Text(shown if len(shown) <= most else f"{shown[: most - 1]}…")


def _nothing(why: str) -> Text:
    return Text(why, style="dim")
