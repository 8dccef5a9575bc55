"""Our code against the recorded interface of each supported version of vLLM (interface.py), without vLLM."""

import ast
import asyncio
import inspect
import re
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from fairlane.scheduler.protocol.messages import Sampling
from fairlane.worker.remote import media
from fairlane.worker.remote.api import Api, GenerationRequest
from fairlane.worker.remote.pooling import PoolingApi
from fairlane.worker.remote.vllm import VllmApi
from fairlane.worker.vllm import SUPPORTED
from fairlane.worker.vllm.ranked_queue import RankedQueue
from tests.support.vllm import PYTHON, needs_vllm
from tests.support.worker.openai_stand_in import card
from tests.support.worker.remote import facts_of
from tests.support.worker.vllm_stand_in import VllmStandIn
from tests.worker.vllm import interface

POOLED = {
    "embeddings": "entrypoints/pooling/embed/protocol.py:EmbeddingCompletionRequest",
    "scores": "entrypoints/pooling/scoring/protocol.py:RerankRequest",
}


@pytest.fixture(params=SUPPORTED)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def forms(version: str, owner: str) -> dict[str, str]:
    """The names of a class, and how they are recorded."""
    return {form.partition("(")[0]: form for form in interface.recorded(version).get(owner, ())}


def signature(form: str) -> inspect.Signature:
    """Of a recorded method, as it is called."""
    made = inspect.signature(eval(f"lambda {form.partition('(')[2].removesuffix(')')}: ..."))  # noqa: S307 - ours
    return made.replace(parameters=[one for name, one in made.parameters.items() if name != "self"])


def calls() -> Iterator[tuple[str, ast.Call]]:
    """Our calls of what is vLLM's, by its class and name."""
    for node in interface.nodes():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = interface.CLASSES.get(ast.unparse(node.func.value))
            if owner is not None and not any(isinstance(one, ast.Starred) for one in node.args):
                yield owner, node


def test_all_that_we_use_is_there(version: str) -> None:
    found = {owner: names - {*forms(version, owner)} for owner, names in interface.used().items()}

    assert not {owner: names for owner, names in found.items() if names}


def test_methods_that_we_override_have_our_parameters(version: str) -> None:
    ours = {
        name: form for path in interface.OURS for name, form in interface.members(ast.parse(path.read_text())).items()
    }
    theirs = forms(version, interface.SCHEDULER)

    assert {"schedule", "_reserve_prefill_lookahead"} < interface.overridden()
    for name in interface.overridden() - {"__init__"}:
        assert ours[name] == theirs[name]


def test_methods_that_we_call_take_our_arguments(version: str) -> None:
    bound = set()
    for owner, call in calls():
        name = ast.unparse(call.func).rpartition(".")[2]
        if "(" in (form := forms(version, owner).get(name, "")):
            signature(form).bind(*call.args, **{str(one.arg): one.value for one in call.keywords})
            bound.add(name)

    assert {"_preempt_request", "get_computed_blocks", "accept_tokens"} <= bound


def test_our_queue_is_vllms(version: str) -> None:
    for name, form in forms(version, interface.QUEUE).items():
        ours = inspect.signature(getattr(RankedQueue, name))
        assert len(ours.parameters) == len(signature(form).parameters) + 1, name


def bodies(server: VllmStandIn, api: Api, request: GenerationRequest) -> list[dict[str, Any]]:
    """What the server is asked for a request."""
    facts_of(api)
    serving = api.serving(card())
    server.asked.clear()

    async def run() -> None:
        async with aclosing(serving.generate(request)) as pieces:
            assert [piece async for piece in pieces]
        await serving.close()

    asyncio.run(run())
    return server.asked


def test_requests_have_recorded_fields_alone() -> None:
    every = Sampling(logprobs=2, prompt_logprobs=1, min_tokens=1)
    request = GenerationRequest("a", (5, 6, 7), 3, every, priority=0, cache_salt="salt")
    with VllmStandIn() as server:
        asked = bodies(server, VllmApi(server.url, None), request)

    wire = {owner.rpartition(":")[2]: {*fields.split()} for owner, fields in interface.FIELDS.items()}
    assert len(asked) == 2
    assert media.fields(request, {}).keys() <= wire["GenerateRequest"]
    for body in asked:
        assert body.keys() <= wire["GenerateRequest"]
        assert body["sampling_params"].keys() <= wire["SamplingParams"]
        assert (body.get("stream_options") or {}).keys() <= wire["StreamOptions"]


@pytest.mark.parametrize("kind", POOLED)
def test_requests_of_pooling_models_have_recorded_fields_alone(kind: str) -> None:
    inputs = (1, 2) if kind == "embeddings" else (1, 1)
    request = GenerationRequest("a", (5, 6, 7)[: sum(inputs)], 1, Sampling(), 0, cache_salt="salt", inputs=inputs)
    with VllmStandIn(pools=kind) as server:
        asked = bodies(server, PoolingApi("vllm", server.url, None), request)

    assert asked
    assert all(body.keys() <= {*interface.FIELDS[POOLED[kind]].split()} for body in asked)


@needs_vllm
def test_the_record_is_that_of_the_installed_version() -> None:
    [package] = Path(PYTHON).parents[1].glob("lib/python*/site-packages/vllm")
    [minor] = re.findall(r"^__version__ = version = '(\d+\.\d+)", (package / "_version.py").read_text(), re.MULTILINE)

    assert interface.record(package.parent) == interface.recorded(minor)
