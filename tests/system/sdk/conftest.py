"""The official SDKs, unmodified, against one running Fairlane with the default model."""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, NamedTuple

import openai
import pytest

from tests.support.system.harness import Server

_numbers = count()


class Tenant(NamedTuple):
    """One that was made for a case."""

    id: str
    key: str


NewTenant = Callable[..., Tenant]
NewKey = Callable[..., str]


@pytest.fixture(scope="session")
def new_tenant(server: Server) -> NewTenant:
    """Make a tenant of these fields."""

    def make(**fields: Any) -> Tenant:
        name = f"sdk-{next(_numbers)}"
        return Tenant(name, server.tenant(name, **fields))

    return make


@pytest.fixture(scope="session")
def new_key(new_tenant: NewTenant) -> NewKey:
    """The same; its key."""
    return lambda **fields: new_tenant(**fields).key


@pytest.fixture(scope="session")
def key(new_key: NewKey) -> str:
    """Of a tenant without limits, which may use both lanes."""
    return new_key(lanes=["latency", "throughput"])


@pytest.fixture(scope="session")
def client(server: Server, key: str) -> Iterator[openai.OpenAI]:
    """It tries nothing twice."""
    with server.sdk(key, max_retries=0, timeout=60) as opened:
        yield opened
