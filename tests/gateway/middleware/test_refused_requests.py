"""Wrong requests count against a limit of their own: generous, by key, and full again within a minute."""

import pytest

from fairlane.gateway.errors import ApiError
from fairlane.gateway.middleware.tenant import MINUTE_S, RefusedRequests
from tests.support.gateway.served import ASKED, CHAT, error_of, serving, settings

MIB = 2**20


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def is_let_through(refused: RefusedRequests, key_id: str = "a") -> bool:
    try:
        refused.check(key_id)
    except ApiError:
        return False
    return True


def test_wrong_requests_are_slowed_to_so_many_a_minute_and_no_other_keys() -> None:
    clock = Clock()
    refused = RefusedRequests(60, clock=clock)

    for _ in range(60):
        assert is_let_through(refused)
        refused.count("a", 400, 100)

    assert not is_let_through(refused)
    assert is_let_through(refused, "b")
    with pytest.raises(ApiError) as told:
        refused.check("a")
    assert told.value.code == "rate_limit_exceeded"
    assert told.value.retry_after_s == pytest.approx(1.0)
    clock.now_s += 1.0
    assert is_let_through(refused)
    clock.now_s += MINUTE_S
    refused.count("a", 400, 59 * 64 * 1024 - 1)
    assert is_let_through(refused)


@pytest.mark.parametrize(
    ("status", "body_bytes", "cost", "work_s"),
    [
        (400, 0, 1, 0.0),
        (413, 0, 1, 0.0),
        (400, 8 * MIB, 129, 0.0),
        (429, 1_000, 0, 0.0),
        (429, 8 * MIB, 128, 0.0),
        (503, 8 * MIB, 0, 0.0),
        (403, 0, 0, 0.0),
        (400, 300_000, 111, 0.11),
    ],
)
def test_what_a_refusal_costs(status: int, body_bytes: int, cost: int, work_s: float) -> None:
    refused = RefusedRequests(129, clock=Clock())

    refused.count("a", status, body_bytes, work_s)
    for _ in range(129 - cost):
        assert is_let_through(refused)
        refused.count("a", 400, 0)

    assert not is_let_through(refused)


@pytest.mark.anyio
async def test_a_flood_of_wrong_requests_ends_in_429_and_leaves_other_tenants_alone(valkey_url: str) -> None:
    async with serving(settings(valkey_url, section={"refused_per_minute": 3})) as served:
        await served.tenant("acme")
        await served.tenant("globex")

        told = [error_of(await served.post(CHAT, b"{")) for _ in range(3)]
        right = await served.post(CHAT, ASKED)

        assert told == [(400, "invalid_request_error")] * 3
        assert error_of(right) == (429, "rate_limit_exceeded")
        assert right.json()["error"]["limit"]["name"] == "refused_requests_per_minute"
        assert int(right.headers["retry-after"]) >= 1
        assert (await served.post(CHAT, ASKED, tenant="globex")).status_code == 200


@pytest.mark.anyio
async def test_a_body_that_takes_long_to_refuse_counts_for_its_time(valkey_url: str) -> None:
    async with serving(settings(valkey_url, section={"refused_per_minute": 20})) as served:
        await served.tenant("acme")
        costly = b'{"model": "tiny", "prompt": [' + b",".join([b"[1,2]"] * 49_000) + b"]}"

        answers = [(await served.post("/v1/completions", costly)).status_code for _ in range(2)]

    assert answers == [400, 429]
