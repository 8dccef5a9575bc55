"""The list of models, where a key and its tenant each name many."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from fairlane.gateway.api.models import Models
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


async def listed(tenant: tuple[str, ...] | None, key: tuple[str, ...] | None) -> list[str]:
    """The names that a key of this tenant is shown, of so many models."""
    scopes = Scopes(models=key)
    identity = Identity(
        Tenant(id="acme", root="acme", models=tenant), ApiKey(id="k", tenant="acme", created_at=0.0, scopes=scopes)
    )
    fleet: Any = SimpleNamespace(find=lambda: [a_model(f"model-{number}") for number in range(MANY)])
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await Models(fleet).list(a_context(Caller(identity), send=send))
    return [each["id"] for each in msgspec.json.decode(sent[-1]["body"])["data"]]


async def test_both_tenant_and_key_bound_what_is_listed() -> None:
    assert len(await listed(None, None)) == MANY
    assert await listed(("model-1", "model-2"), None) == ["model-1", "model-2"]
    assert await listed(("model-1", "model-2"), ("model-2", "model-3")) == ["model-2"]
    assert await listed((), ("model-2",)) == []


async def test_many_models_are_not_each_searched_for_among_many_names() -> None:
    names = tuple(Name(f"model-{number}") for number in range(MANY))
    Name.compared = 0

    assert len(await listed(names, names)) == MANY
    assert Name.compared <= 4 * MANY
