"""Admin calls on request traces of this gateway's machine, and simulations of them."""

import asyncio
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, cast

import msgspec
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from typing_extensions import TypedDict  # before Python 3.12, pydantic supports only this TypedDict

from fairlane.common.views import about, view_of
from fairlane.gateway.control.admin.call import NOT_CACHED, Call
from fairlane.gateway.control.admin.inputs import PageQuery, SimulationBody, TraceContentQuery
from fairlane.gateway.control.admin.operation import Operations
from fairlane.gateway.control.admin.views import Page, page
from fairlane.gateway.control.operators.operator import Role
from fairlane.gateway.errors import ApiError, invalid, not_found
from fairlane.gateway.http.connections import OPERATORS
from fairlane.gateway.http.exchange import exchange_of
from fairlane.gateway.http.multipart import FILE, read_form
from fairlane.gateway.insight.request_traces import files
from fairlane.gateway.insight.request_traces.figures import SimulationView
from fairlane.gateway.insight.request_traces.simulate_process import SimulationTask
from fairlane.scheduler.protocol.messages import WorkerStatus
from fairlane.scheduler.simulation.calibration import Calibration, CalibrationError, preset, read_calibration

TRACE = "application/octet-stream"
MOST_UPLOAD_BYTES = 256 * 2**20
UPLOAD_TIMEOUT_S = 600.0
# `hardware` value: calibrated as a live worker.
FLEET = "fleet"


class TraceView(TypedDict):
    """One trace. Times are Unix seconds."""

    name: Annotated[str, about("Name for reading and simulating it")]
    kind: Annotated[Literal["recorded", "uploaded"], about("Its origin")]
    bytes: Annotated[int, about("Size in bytes")]
    changed_at: Annotated[float, about("Unix seconds of the last write")]


class TraceForm(TypedDict):
    """The body of an upload, as multipart/form-data."""

    file: Annotated[
        str,
        Field(
            description="What `fairlane record` wrote, CSV of `arrival_s,prompt_tokens,output_tokens`, or Mooncake's",
            json_schema_extra={"format": "binary", "contentMediaType": TRACE},
        ),
    ]


operations = Operations()


@operations.add("GET /traces")
async def list_traces(call: Call, query: PageQuery) -> Page[TraceView]:
    """List the request traces recorded on or uploaded to this gateway's machine, newest first."""
    found = await asyncio.to_thread(call.parts.traces.listed)
    following = [each for each in found if query.after is None or files.order(each.name) < files.order(query.after)]
    return page(following, query.limit, partial(view_of, TraceView), lambda each: each.name)


@operations.add("GET /traces/{trace}", role=Role.OPERATOR, media=(TRACE,))
async def get_trace(call: Call, query: TraceContentQuery) -> Response:
    """Return a trace's bytes from an offset to its current end."""
    path = await _path(call, call.path["trace"])
    if call.parts.trace_reads.is_first(call.operator.actor, path.name):
        await call.parts.audit.append(call.note("trace.read", path.name, None, {"offset": query.offset}))
    return StreamingResponse(_chunks(path, query.offset), media_type=TRACE, headers=NOT_CACHED)


@operations.add("POST /traces", role=Role.OPERATOR, status=201, form=TraceForm, codes=("unavailable",))
async def upload_trace(call: Call) -> TraceView:
    """Upload a request trace for simulation."""
    request, folder = call.request, call.parts.traces
    try:
        path = await asyncio.to_thread(folder.new, "uploaded")
        draft = path.with_suffix(files.DRAFT)
        try:
            await _received(request, draft)
            await asyncio.to_thread(draft.replace, path)
        except BaseException:
            await asyncio.to_thread(draft.unlink, missing_ok=True)
            raise
        await asyncio.to_thread(folder.sweep, "uploaded")
        size = (await asyncio.to_thread(path.stat)).st_size
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ApiError(f"The trace cannot be kept here: {reason}.", "unavailable") from None
    await call.parts.audit.append(call.note("trace.upload", path.name, None, {"bytes": size}))
    return {"name": path.name, "kind": "uploaded", "bytes": size, "changed_at": time.time()}


@operations.add("POST /simulations", role=Role.OPERATOR, codes=("not_found", "overloaded", "request_exceeds_limit"))
async def simulate(call: Call, body: SimulationBody) -> SimulationView:
    """Simulate a trace with the real scheduler in virtual time; one simulation at a time."""
    workers = [status for status in await call.parts.fleet.workers() if not status.draining]
    path = await _path(call, body.trace)
    await call.parts.audit.append(call.note("simulation.run", body.trace, None, body.model_dump(mode="json")))
    task = SimulationTask(
        name=body.trace,
        path=str(path),
        workers=body.workers or max(1, len(workers)),
        hardware=body.hardware or FLEET,
        calibration=_hardware(body.hardware, workers),
        **body.model_dump(exclude={"trace", "workers", "hardware"}),
    )
    return cast(SimulationView, await call.parts.simulator.run(task))


def of_worker(status: WorkerStatus) -> Calibration:
    """Return a calibration from a worker's heartbeat. Raise CalibrationError."""
    return read_calibration(
        msgspec.json.encode(
            {
                "step": status.step_weights,
                "block_size": status.block_size,
                "blocks": status.blocks_total,
                "host_slots": status.host_slots_total,
                "max_sequences": status.max_sequences,
            }
        )
    )


def _hardware(name: str | None, workers: list[WorkerStatus]) -> Calibration:
    if name is not None:
        try:
            return preset(name)
        except ValueError as error:
            raise invalid("hardware", f"`hardware` is not known: {error}.") from None
    for status in workers:
        try:
            return of_worker(status)
        except CalibrationError:  # it has not learnt its costs, or runs another engine
            continue
    raise invalid("hardware", "`hardware` must be named: no worker has measured its costs.")


async def _path(call: Call, name: str) -> Path:
    path = await asyncio.to_thread(call.parts.traces.path, name)
    if path is None:
        raise not_found("trace")
    return path


async def _received(request: Request, draft: Path) -> None:
    with await asyncio.to_thread(draft.open, "xb") as file:

        async def write(part: bytes) -> None:
            await asyncio.to_thread(file.write, part)

        form = await read_form(
            request.receive,
            request.scope["headers"],
            write,
            max_file_bytes=MOST_UPLOAD_BYTES,
            timeout_s=UPLOAD_TIMEOUT_S,
            hold=exchange_of(request.scope).hold,
            tenant=OPERATORS,
        )
    if form.file_name is None:
        raise invalid(FILE, f"`{FILE}` is missing.")


async def _chunks(path: Path, start: int) -> AsyncIterator[bytes]:
    parts = files.read(path, start)
    while part := await asyncio.to_thread(next, parts, b""):
        yield part
