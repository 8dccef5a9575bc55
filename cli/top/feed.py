"""Source of the data of `fairlane top`: the stream of `/admin/v1/live`, or `/admin/v1/overview` at intervals if the
stream has no room. An unavailable gateway is retried; the last picture stays, with the error."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import httpx
import msgspec

from fairlane.cli.client import CommandError, no_gateway, refused
from fairlane.cli.top.picture import BlockMaps, Picture, TopOverview

LIVE, OVERVIEW = "/admin/v1/live", "/admin/v1/overview"
# A stream silent for this long, without even a keep-alive, is reopened.
SILENT_S = 30.0
ASK_S = 10.0
# Pause after a refused key: frequent retries would look like guessing.
REFUSED_S = 10.0


class _Unavailable(msgspec.Struct):
    message: str = ""


class KeyRefused(CommandError):
    """The key was refused."""


@dataclass(slots=True)
class Feed:
    """Reports each new snapshot until cancelled."""

    url: str
    key: str
    on_picture: Callable[[Picture], None]
    every_s: float
    transport: httpx.AsyncBaseTransport | None = None
    _picture: Picture = field(default_factory=Picture)

    async def run(self) -> None:
        headers, timeout = {"authorization": f"Bearer {self.key}"}, httpx.Timeout(ASK_S, read=SILENT_S)
        async with httpx.AsyncClient(
            base_url=self.url, headers=headers, timeout=timeout, transport=self.transport
        ) as http:
            while True:
                pause_s = self.every_s
                try:
                    await self._stream(http)
                except CommandError as error:
                    self._report(trouble=str(error))
                    pause_s = REFUSED_S if isinstance(error, KeyRefused) else pause_s
                except httpx.HTTPError as error:
                    self._report(trouble=str(no_gateway(self.url, error)))
                except (msgspec.DecodeError, UnicodeDecodeError):
                    self._report(trouble=f"{self.url} does not answer like Fairlane")
                await asyncio.sleep(pause_s)

    def _report(self, *, trouble: str = "", **changes: object) -> None:
        self._picture = msgspec.structs.replace(self._picture, trouble=trouble, **changes)
        self.on_picture(self._picture)

    async def _stream(self, http: httpx.AsyncClient) -> None:
        async with http.stream("GET", LIVE, headers={"accept": "text/event-stream"}) as answer:
            if answer.status_code != httpx.codes.TOO_MANY_REQUESTS:
                await _check(answer)
                async for event, document in _events(answer):
                    if event == "overview":
                        self._report(overview=msgspec.json.decode(document, type=TopOverview))
                    elif event == "kv":
                        maps = msgspec.json.decode(document, type=BlockMaps).workers
                        self._report(maps=maps, trouble=self._picture.trouble)
                    elif event == "unavailable":
                        self._report(trouble=msgspec.json.decode(document, type=_Unavailable).message)
                raise CommandError(f"{self.url} ended its stream")
        while True:
            answer = await http.get(OVERVIEW)
            await _check(answer)
            self._report(overview=msgspec.json.decode(answer.content, type=TopOverview))
            await asyncio.sleep(self.every_s)


async def _check(answer: httpx.Response) -> None:
    if not answer.is_success:
        await answer.aread()
        kind = KeyRefused if answer.status_code in (401, 403) else CommandError
        raise kind(f"{answer.url.host}: {refused(answer)}")


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
