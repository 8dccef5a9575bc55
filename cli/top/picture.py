"""What `fairlane top` shows: the fleet at one moment, as far as the admin API told it.

Whatever an older gateway does not tell is None or empty, and shown as such. Fields that it tells beside these are left.
"""

from collections.abc import Sequence

import msgspec

Run = tuple[int, int, int, int]
"""Blocks in a row that are alike: how many; the tenant's and the lane's place in the map's lists (-1: none); state."""


class TopSpread(msgspec.Struct, frozen=True):
    """Percentiles, in milliseconds."""

    p50: float
    p95: float
    p99: float


class TopLane(msgspec.Struct, frozen=True):
    """One lane."""

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
    """One tenant that has work, or lately had."""

    tenant: str
    running: int = 0
    queued: int = 0
    tokens_per_s: float = 0.0
    kv_blocks: int = 0


class TopWorker(msgspec.Struct, frozen=True):
    """One worker."""

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
        """Its name."""
        return self.states[run[3]] if 0 <= run[3] < len(self.states) else ""

    def lane(self, run: Run) -> str | None:
        """In which lane its owner is; None: nobody's."""
        return self.lanes[run[2]] if 0 <= run[2] < len(self.lanes) else None


class TopOverview(msgspec.Struct, frozen=True):
    """The fleet at a glance."""

    at: float = 0.0
    lanes: Sequence[TopLane] = ()
    tenants: Sequence[TopTenant] | None = None
    """None: it was not told."""
    workers: Sequence[TopWorker] = ()
    refusals: dict[str, int] = {}


class Picture(msgspec.Struct, frozen=True):
    """What is known now."""

    overview: TopOverview = TopOverview()
    maps: Sequence[TopBlocks] = ()
    """Empty: nobody tells of single blocks."""
    trouble: str = ""
    """Why nothing newer is known; empty where all is well."""


def read_overview(document: bytes | str) -> TopOverview:
    """What the admin API answered. Raises msgspec.DecodeError."""
    return msgspec.json.decode(document, type=TopOverview)


class _Maps(msgspec.Struct):
    workers: Sequence[TopBlocks] = ()


def read_maps(document: bytes | str) -> Sequence[TopBlocks]:
    """The maps of all workers. Raises msgspec.DecodeError."""
    return msgspec.json.decode(document, type=_Maps).workers
