"""Data of `fairlane top`: the fleet at one moment, as the admin API reports it.

Unknown fields are ignored."""

from collections.abc import Sequence

import msgspec

# Equal blocks in a row: their number, the indices of tenant and lane in the map's lists (-1: none), and of the state.
Run = tuple[int, int, int, int]


class TopSpread(msgspec.Struct, frozen=True):
    """Percentiles in milliseconds."""

    p95: float


class TopLane(msgspec.Struct, frozen=True):
    """The state of one lane."""

    lane: str
    queued: int = 0
    oldest_wait_ms: float = 0.0
    running: int = 0
    preempted: int = 0
    tokens_per_s: float = 0.0
    ttft_target_ms: float | None = None
    tpot_target_ms: float | None = None
    ttft_ms: TopSpread | None = None
    tpot_ms: TopSpread | None = None
    goodput: float | None = None


class TopTenant(msgspec.Struct, frozen=True):
    """One tenant with current or recent work."""

    tenant: str
    running: int = 0
    queued: int = 0
    tokens_per_s: float = 0.0
    kv_blocks: int = 0


class TopWorker(msgspec.Struct, frozen=True):
    """The state of one worker."""

    id: str
    model: str = ""
    draining: bool = False
    blocks_total: int = 0
    blocks_free: int = 0
    host_slots_total: int = 0
    host_slots_free: int = 0
    running: dict[str, int] = {}
    waiting: dict[str, int] = {}
    preempted: dict[str, int] = {}
    tokens_per_s: dict[str, float] = {}
    step_ms: float = 0.0


class TopBlocks(msgspec.Struct, frozen=True):
    """A worker's KV blocks in order, and its slots in host memory."""

    worker: str
    blocks: int = 0
    host_blocks: int = 0
    runs: Sequence[Run] = ()
    host_runs: Sequence[Run] = ()
    tenants: Sequence[str] = ()
    lanes: Sequence[str] = ()
    states: Sequence[str] = ()

    def state(self, run: Run) -> str:
        return self.states[run[3]] if 0 <= run[3] < len(self.states) else ""

    def lane(self, run: Run) -> str | None:
        return self.lanes[run[2]] if 0 <= run[2] < len(self.lanes) else None


class TopOverview(msgspec.Struct, frozen=True):
    """The state of the fleet."""

    at: float = 0.0
    lanes: Sequence[TopLane] = ()
    tenants: Sequence[TopTenant] = ()
    workers: Sequence[TopWorker] = ()
    refusals: dict[str, int] = {}


class Picture(msgspec.Struct, frozen=True):
    """All current data."""

    overview: TopOverview = TopOverview()
    # Empty if the gateway does not report single blocks.
    maps: Sequence[TopBlocks] = ()
    # Why there is no newer data; empty if there is no error.
    trouble: str = ""


class BlockMaps(msgspec.Struct, frozen=True):
    """The maps of all workers."""

    workers: Sequence[TopBlocks] = ()
