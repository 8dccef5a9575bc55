"""The list of models, and each of them."""

import openai
import pytest

from tests.support.system.harness import MODEL, Server
from tests.support.system.sdk import refused
from tests.system.sdk.conftest import NewKey

pytestmark = [pytest.mark.system, pytest.mark.anyio]


def test_models_are_listed(client: openai.OpenAI) -> None:
    page = client.models.list()

    assert page.object == "list"
    assert [model.id for model in page] == [MODEL]
    assert {(model.object, model.owned_by) for model in page} == {("model", "fairlane")}
    assert all(model.created > 0 for model in page)


def test_a_model_is_found_by_its_name(client: openai.OpenAI) -> None:
    assert client.models.retrieve(MODEL) == client.models.list().data[0]


def test_an_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    error = refused(client.models.retrieve, "gpt-4")

    assert isinstance(error, openai.NotFoundError)
    assert (error.code, error.param) == ("model_not_found", "model")


def test_a_model_that_a_tenant_may_not_use_is_not_listed(server: Server, new_key: NewKey) -> None:
    with server.sdk(new_key(models=["another"]), max_retries=0) as client:
        assert client.models.list().data == []
        assert refused(client.models.retrieve, MODEL).code == "model_not_allowed"


async def test_the_asynchronous_client_gives_the_same(server: Server, key: str) -> None:
    async with server.async_sdk(key, max_retries=0) as client:
        assert [model.id async for model in client.models.list()] == [MODEL]
        assert (await client.models.retrieve(MODEL)).id == MODEL


@pytest.mark.parametrize("method", ["delete"])
def test_what_models_cannot_do_is_refused(client: openai.OpenAI, method: str) -> None:
    assert refused(getattr(client.models, method), MODEL).status_code == 405
