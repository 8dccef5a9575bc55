"""The stand-in of vLLM with a model that takes images: shapes as vLLM 0.32 has them.

An image of b bytes becomes 2 + b % 3 tokens. Only bytes that begin as a PNG does are one. A turn is
`TURN [before image after | text]... END`."""

import base64
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.support.worker.vllm_stand_in import VOCABULARY, VllmStandIn

TURN, END, TEXT, BEFORE, AFTER, TARGET, PATCH = 3, 4, 5, 6, 7, 90, 91
MAGIC = b"\x89PNG"


def tokens_of(image: bytes) -> int:
    return 2 + len(image) % 3


@dataclass
class VisionStandIn(VllmStandIn):
    """One server, as `VllmStandIn` is."""

    takes: tuple[str, ...] = ("image",)
    form: str = "between"
    """Of its chat template: `between` a text's parts, `leading` them, `numbered`, or `broken`: the text after an
    image is another."""
    expands: str = "well"
    """Or `longer`, `moved`, `silent`: it does not tell; `never`: no token stands for an image."""
    names: dict[str, int] | None = None
    """Texts that are one token."""
    rendered: int = 0

    def _routes(self) -> list[Route]:
        own = {"/v1/chat/completions/render": self._render, "/tokenize": self._tokenize}
        return [*super()._routes(), *(Route(path, act, methods=["POST"]) for path, act in own.items())]

    async def _tokenize(self, request: Request) -> Response:
        known = (self.names or {}).get((await request.json())["prompt"])
        return JSONResponse({"count": 1, "tokens": [8, 9] if known is None else [known]})

    async def _render(self, request: Request) -> Response:
        self.rendered += 1
        body = await request.json()
        assert body["mm_payload"] == "none"
        content = body["messages"][0]["content"]
        if self.form == "leading":
            content.sort(key=lambda part: part["type"] == "text")
        ids, places = [TURN], list[dict[str, int]]()
        for part in content:
            kind = part["type"].removesuffix("_url")
            if kind == "text":
                ids.append(TEXT + bool(places and self.form == "broken"))
                continue
            image = _data(part[part["type"]])
            if kind not in self.takes or not image.startswith(MAGIC):
                return JSONResponse({"error": {"message": f"At most 0 {kind}(s)"}}, 400)
            ids += [BEFORE] * (1 + len(places) * (self.form == "numbered"))
            places.append({"offset": len(ids), "length": tokens_of(image)})
            ids += [*_expansion(image), AFTER]
        features = {"mm_hashes": {}, "mm_placeholders": {"image": places}, "kwargs_data": None} if places else None
        return JSONResponse({"request_id": "chatcmpl-1", "token_ids": [*ids, END], "features": features})

    def read(self, body: dict[str, Any]) -> dict[str, Any] | Response:
        images = [_data(part) for part in body.get("content_parts") or ()]
        if any(not image.startswith(MAGIC) for image in images):
            return JSONResponse({"error": {"message": "Failed to load image"}}, 400)
        ids, places, waiting = list[int](), list[dict[str, int]](), [*images]
        target = None if self.expands == "never" else TARGET
        for token in body["token_ids"]:
            if token == target and waiting:
                image = waiting.pop(0)
                places.append({"offset": len(ids) + (self.expands == "moved"), "length": tokens_of(image)})
                ids += [*_expansion(image), *[PATCH] * (self.expands == "longer")]
            else:
                assert token < VOCABULARY
                ids.append(token)
        if waiting:
            return JSONResponse({"error": {"message": "Failed to apply prompt replacement"}}, 500)
        told = {"prompt_token_ids": ids, "mm_placeholders": {"image": places} if places else None}
        is_told = body.get("return_token_ids") and self.expands != "silent"
        return {**body, "token_ids": ids, "told": told if is_told else {}}

    def _whole(self, body: dict[str, Any]) -> dict[str, Any]:
        told: dict[str, Any] = body["told"]
        return super()._whole(body) | told

    def more(self, body: dict[str, Any], number: int) -> dict[str, Any]:
        told: dict[str, Any] = body["told"]
        return told if number == 1 else {}


def _expansion(image: bytes) -> list[int]:
    return [TARGET, *[PATCH] * (tokens_of(image) - 1)]


def _data(part: dict[str, Any]) -> bytes:
    spec, _, data = str(part["url"]).partition(",")
    assert spec.startswith("data:")
    assert spec.endswith(";base64")
    return base64.b64decode(data)
