"""What each property of the fleet's figures means: overview, history and who operates. Beside `descriptions.py`."""

from collections.abc import Mapping

FIGURES: Mapping[str, str] = {
    "LaneFiguresView.goodput": "Part of the requests of the window that met the lane's targets; null: none ended",
    "LaneFiguresView.queue_wait_ms": "Wait until a worker began, of requests of the window; null: none was measured",
    "LaneFiguresView.refused": "Requests of the window that a limit, a deadline or the system's load refused",
    "LaneFiguresView.requests": "Requests that ended in the window",
    "LaneFiguresView.tpot_ms": "Mean time between a request's tokens, of the window; null: none was measured",
    "LaneFiguresView.ttft_ms": "Time to the first token, of requests of the window; null: none was measured",
    "KvPoolView.blocks": "Blocks of the pool",
    "KvPoolView.free": "Blocks that hold nothing that is in use",
    "KvPoolView.host_blocks": "Blocks that host memory can hold",
    "KvPoolView.host_free": "Of these, those that hold nothing",
    "OverviewModel.workers": "Workers that take its jobs",
    "OverviewView.models": "Every model that was announced in the last seven days",
    "OverviewView.refusals": "Requests of the window that were refused, by code",
    "OverviewView.tenants": "Those with most work first, 64 at most",
    "OverviewView.workers": "Every worker that is alive",
    "kv": "How full its KV pool is",
    "kv_blocks": "KV blocks that its running and waiting choices hold",
    "p50": "Milliseconds that half of them did not exceed",
    "p95": "Milliseconds that 95 in 100 did not exceed",
    "p99": "Milliseconds that 99 in 100 did not exceed",
    "window_s": "Seconds that counts and distributions look back",
}
