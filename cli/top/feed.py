"""Source of the data of `fairlane top`, the best that the gateway offers:

    live       the stream of `/admin/v1/live`: the overview about each second, and the map of blocks if available
    overview   `/admin/v1/overview` each second, if there is no stream or no room in it
    parts      `/admin/v1/lanes` and `/workers` each second, on a gateway with neither

An unavailable gateway is retried each second; the last picture stays, with the error."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import httpx
import msgspec

from fairlane.cli.client import URL_VARIABLE
from fairlane.cli.top.picture import Picture, TopLane, TopOverview, TopWorker, read_maps, read_overview

ADMIN = "/admin/v1"
# A stream silent for this long, without even a keep-alive, is reopened.
SILENT_S = 30.0
ASK_S = 10.0
PAGE = 1000
REFUSED_S = 10.0
NOT_THERE, NOT_LET_IN = (404, 405), (401, 403)

OnPicture = Callable[[Picture], None]


class _Page(msgspec.Struct):
    data: msgspec.Raw


class _ErrorMessage(msgspec.Struct):
    message: str = ""


class _ErrorDocument(msgspec.Struct):
    error: _ErrorMessage


class NotServed(Exception):
    """The gateway does not have this call, or its stream has no room."""


class TroubleError(Exception):
    """Why there is no new snapshot, in one line."""


class KeyRefused(TroubleError):
    """The key was refused; frequent retries would look like guessing."""


class Feed:
    """Reports each new snapshot until cancelled."""

    def __init__(
        self,
        url: str,
        key: str,
        on_picture: OnPicture,
        every_s: float,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._transport = transport
        self._url, self._headers = url, {"authorization": f"Bearer {key}"}
        self._on_picture, self._every_s = on_picture, every_s
        self._picture = Picture()

    async def run(self) -> None:
        timeout = httpx.Timeout(ASK_S, read=SILENT_S)
        async with httpx.AsyncClient(
            base_url=self._url, headers=self._headers, timeout=timeout, transport=self._transport
        ) as http:
            while True:
                pause_s = self._every_s
                try:
                    await self._ways(http)
                except TroubleError as trouble:
                    self._report(trouble=str(trouble))
                    pause_s = REFUSED_S if isinstance(trouble, KeyRefused) else pause_s
                except httpx.HTTPError as error:
                    reason = type(error).__name__
                    self._report(trouble=f"no gateway answers at {self._url} ({reason}): is {URL_VARIABLE} right?")
                except (msgspec.DecodeError, UnicodeDecodeError):
                    self._report(trouble=f"{self._url} does not answer like Fairlane")
                await asyncio.sleep(pause_s)

    async def _ways(self, http: httpx.AsyncClient) -> None:
        for way in (self._live, self._overview, self._parts):
            try:
                await way(http)
            except NotServed:
                continue
            return

    def _report(self, *, trouble: str = "", **changes: object) -> None:
        self._picture = msgspec.structs.replace(self._picture, trouble=trouble, **changes)
        self._on_picture(self._picture)

    async def _live(self, http: httpx.AsyncClient) -> None:
        async with http.stream("GET", f"{ADMIN}/live", headers={"accept": "text/event-stream"}) as answer:
            if not answer.is_success:
                await answer.aread()
            _check(answer)
            async for event, document in _events(answer):
                if event == "overview":
                    self._report(overview=read_overview(document))
                elif event == "kv":
                    self._report(maps=read_maps(document), trouble=self._picture.trouble)
                elif event == "unavailable":
                    self._report(trouble=msgspec.json.decode(document, type=_ErrorMessage).message)
        raise TroubleError(f"{self._url} ended its stream")

    async def _overview(self, http: httpx.AsyncClient) -> None:
        while True:
            self._report(overview=read_overview(await _get(http, "/overview")))
            await asyncio.sleep(self._every_s)

    async def _parts(self, http: httpx.AsyncClient) -> None:
        while True:
            lanes = await _page(http, "/lanes")
            workers = await _page(http, "/workers")
            overview = TopOverview(
                at=time.time(),
                lanes=msgspec.json.decode(lanes, type=list[TopLane]),
                workers=msgspec.json.decode(workers, type=list[TopWorker]),
            )
            self._report(overview=overview)
            await asyncio.sleep(self._every_s)


async def _get(http: httpx.AsyncClient, path: str) -> bytes:
    answer = await http.get(f"{ADMIN}{path}")
    _check(answer)
    return answer.content


async def _page(http: httpx.AsyncClient, path: str) -> msgspec.Raw:
    return msgspec.json.decode(await _get(http, f"{path}?limit={PAGE}"), type=_Page).data


def _check(answer: httpx.Response) -> None:
    if answer.is_success:
        return
    if answer.status_code in NOT_THERE or answer.status_code == httpx.codes.TOO_MANY_REQUESTS:
        raise NotServed
    try:
        message = msgspec.json.decode(answer.content, type=_ErrorDocument).error.message
    except msgspec.DecodeError:
        message = f"answers {answer.status_code}"
    kind = KeyRefused if answer.status_code in NOT_LET_IN else TroubleError
    raise kind(f"{answer.url.host}: {message}")


async def _events(answer: httpx.Response) -> AsyncIterator[tuple[str, str]]:
    event, data = "", []
    async for line in answer.aiter_lines():
        name, _, value = line.partition(":")
        if name == "event":
            event = value.strip()
        elif name == "data":
            data.append(value.removeprefix(" "))
        elif not line and data:
            yield event, "\n".join(data)
            event, data = "", []
