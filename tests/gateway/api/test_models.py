"""The list of models, where a key and its tenant each name many."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from fairlane.gateway.api.models import Models
from fairlane.gateway.errors import ApiError
from fairlane.gateway.identity.auth import Caller
from fairlane.quotas.api_keys import ApiKey, Identity, Scopes
from fairlane.quotas.tenants import Tenant
from tests.support.gateway.one_request import a_context

pytestmark = pytest.mark.anyio
MANY = 500


class Name(str):
    """A model's name that counts how often it is compared."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def a_model(name: str) -> Any:
    card = SimpleNamespace(created_s=0, usual_draw={}, is_exact=True)
    return SimpleNamespace(name=name, text=SimpleNamespace(card=card), context_length=64)


async def listed(tenant: tuple[str, ...] | None, key: tuple[str, ...] | None, query: str | None = None) -> list[str]:
    """The names that a key of this tenant is shown, of so many models. `query`: of a page in Anthropic's format."""
    scopes = Scopes(models=key)
    identity = Identity(
        Tenant(id="acme", root="acme", models=tenant), ApiKey(id="k", tenant="acme", created_at=0.0, scopes=scopes)
    )
    fleet: Any = SimpleNamespace(find=lambda: [a_model(f"model-{number}") for number in range(MANY)])
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    context = a_context(Caller(identity), send=send)
    if query is not None:
        context.scope["query_string"] = query.encode()
        context.scope["headers"].append((b"anthropic-version", b"2023-06-01"))
    await Models(fleet).list(context)
    return [each["id"] for each in msgspec.json.decode(sent[-1]["body"])["data"]]


async def test_both_tenant_and_key_bound_what_is_listed() -> None:
    assert len(await listed(None, None)) == MANY
    assert await listed(("model-1", "model-2"), None) == ["model-1", "model-2"]
    assert await listed(("model-1", "model-2"), ("model-2", "model-3")) == ["model-2"]
    assert await listed((), ("model-2",)) == []


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("limit=1", ["model-0"]),
        ("after_id=model-497&lifecycle[]=active&lifecycle[]=retired", ["model-498", "model-499"]),
        ("after_id=model-1&limit=2", ["model-2", "model-3"]),
        ("before_id=model-2&limit=1", ["model-1"]),
        ("after_id=model-499", []),
    ],
)
async def test_anthropics_list_comes_in_pages(query: str, names: list[str]) -> None:
    assert await listed(None, None, query) == names


@pytest.mark.parametrize(("query", "param"), [("limit=0", "limit"), ("after_id=x", "after_id")])
async def test_a_page_that_is_none_is_refused_by_its_name(query: str, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        await listed(None, None, query)

    assert caught.value.param == param


async def test_many_models_are_not_each_searched_for_among_many_names() -> None:
    names = tuple(Name(f"model-{number}") for number in range(MANY))
    Name.compared = 0

    assert len(await listed(names, names)) == MANY
    assert Name.compared <= 4 * MANY
