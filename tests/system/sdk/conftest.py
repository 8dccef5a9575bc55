"""The official SDKs, unmodified, against one running Fairlane with the default model."""

from collections.abc import Callable, Iterator
from itertools import count

import openai
import pytest

from tests.support.system.harness import Server

NewKey = Callable[..., str]
_numbers = count()


@pytest.fixture(scope="session")
def new_key(server: Server) -> NewKey:
    """Make a tenant of these fields for one case: its key."""
    return lambda **fields: server.tenant(f"sdk-{next(_numbers)}", **fields)


@pytest.fixture(scope="session")
def key(new_key: NewKey) -> str:
    """Of a tenant without limits, which may use both lanes."""
    return new_key(lanes=["latency", "throughput"])


@pytest.fixture(scope="session")
def client(server: Server, key: str) -> Iterator[openai.OpenAI]:
    """It tries nothing twice."""
    with server.sdk(key, max_retries=0, timeout=60) as opened:
        yield opened
