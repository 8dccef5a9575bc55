"""Lane, tier and deadlines: the rules of the contract as a table."""

import math
from typing import Any

import pytest

from fairlane.gateway.dialects.openai.requests import GenerationRequest
from fairlane.gateway.errors import ApiError
from fairlane.gateway.request.service_level import agree, asks_progress
from fairlane.quotas.api_keys import ApiKey, Identity, Scopes
from fairlane.quotas.tenants import Tenant
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, LATENCY, THROUGHPUT

Lanes = tuple[str, ...]
BOTH: Lanes = ("latency", "throughput")


def identity(lanes: Lanes = BOTH, default: str = "latency", key_lanes: Lanes | None = None) -> Identity:
    tenant = Tenant(id="acme", root="acme", lanes=lanes, default_lane=default)
    return Identity(tenant, ApiKey(id="k", tenant="acme", created_at=0.0, scopes=Scopes(lanes=key_lanes)))


def service_level(who: Identity | None = None, headers: dict[str, str] | None = None, **fields: Any) -> Any:
    request = GenerationRequest(model="tiny", **fields)
    given = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    return agree(request, given, who or identity(), DEFAULT_LANES)


@pytest.mark.parametrize(
    ("tier", "default", "allowed", "lane", "told"),
    [
        (None, "latency", BOTH, "latency", "default"),
        (None, "throughput", BOTH, "throughput", "default"),
        ("auto", "throughput", BOTH, "throughput", "default"),
        ("default", "latency", BOTH, "latency", "default"),
        ("scale", "latency", BOTH, "latency", "default"),
        ("priority", "throughput", BOTH, "latency", "priority"),
        ("fast", "throughput", BOTH, "latency", "priority"),
        ("flex", "latency", BOTH, "throughput", "flex"),
        ("priority", "throughput", ("throughput",), "throughput", "default"),
        ("flex", "latency", ("latency",), "latency", "default"),
    ],
)
def test_the_tier_chooses_the_lane_where_the_tenant_may_use_it(
    tier: str | None, default: str, allowed: Lanes, lane: str, told: str
) -> None:
    agreed = service_level(identity(allowed, default), service_tier=tier)

    assert (agreed.lane.name, agreed.service_tier) == (lane, told)


@pytest.mark.parametrize(
    ("header", "tier", "told"),
    [("latency", "priority", "priority"), ("throughput", "priority", "default"), ("throughput", "flex", "flex")],
)
def test_the_header_wins_over_the_tier(header: str, tier: str, told: str) -> None:
    agreed = service_level(headers={"x-fairlane-lane": header}, service_tier=tier)

    assert (agreed.lane.name, agreed.service_tier) == (header, told)


@pytest.mark.parametrize("who", [identity(("throughput",), "throughput"), identity(key_lanes=("throughput",))])
def test_a_lane_by_header_is_strict(who: Identity) -> None:
    with pytest.raises(ApiError) as refused:
        service_level(who, {"x-fairlane-lane": "latency"})

    assert refused.value.code == "lane_not_allowed"


def test_a_lane_that_does_not_exist_names_the_header() -> None:
    with pytest.raises(ApiError) as refused:
        service_level(headers={"x-fairlane-lane": "express"})

    assert (refused.value.code, refused.value.param) == ("invalid_request_error", "x-fairlane-lane")


def test_a_keys_own_lanes_replace_a_default_that_it_may_not_use() -> None:
    assert service_level(identity(key_lanes=("throughput",))).lane is THROUGHPUT
    with pytest.raises(ApiError) as refused:
        service_level(identity(("latency",), key_lanes=("throughput",)))
    assert refused.value.code == "lane_not_allowed"


def test_lane_targets_are_no_deadlines() -> None:
    agreed = service_level()

    assert (agreed.deadline_ms, agreed.hard_ttft_ms) == (None, None)
    assert (agreed.ttft_ms, agreed.max_wait_ms) == (LATENCY.ttft_ms, LATENCY.max_wait_ms)


def test_the_shorter_of_two_stated_deadlines_holds() -> None:
    assert service_level(headers={"x-fairlane-deadline-ms": "500"}, deadline_ms=900.0).deadline_ms == 500
    assert service_level(headers={"x-fairlane-deadline-ms": "900"}, deadline_ms=500.0).deadline_ms == 500


def test_a_stated_deadline_is_when_the_first_token_is_due_at_the_latest() -> None:
    assert service_level(deadline_ms=500.0).ttft_ms == 500
    assert service_level(headers={"x-fairlane-ttft-ms": "200"}, deadline_ms=500.0).ttft_ms == 200


def test_our_header_for_the_first_token_wins_over_llm_ds() -> None:
    assert service_level(headers={"x-llm-d-slo-ttft-ms": "300"}).hard_ttft_ms == 300
    assert service_level(headers={"x-fairlane-ttft-ms": "200", "x-llm-d-slo-ttft-ms": "300"}).hard_ttft_ms == 200


def test_a_stated_deadline_replaces_the_lanes_longest_wait() -> None:
    assert service_level(deadline_ms=5e5).max_wait_ms == math.inf
    assert service_level(headers={"x-fairlane-ttft-ms": "500000"}).max_wait_ms == math.inf
    assert service_level(headers={"x-stainless-read-timeout": "5"}, deadline_ms=5e5).max_wait_ms == 5_000


def test_the_sdks_patience_bounds_plain_waits_alone() -> None:
    patience = {"x-stainless-read-timeout": "5"}

    assert service_level(headers=patience).max_wait_ms == 5_000
    assert service_level(headers=patience, stream=True).max_wait_ms == LATENCY.max_wait_ms
    assert service_level(headers={"x-stainless-read-timeout": "None"}).max_wait_ms == LATENCY.max_wait_ms


def test_of_a_wish_for_progress_sent_twice_the_last_holds() -> None:
    for values in ([b"1", b"0"], [b"yes", b"0"], [b"0", b"1"]):
        given = [(b"x-fairlane-progress", value) for value in values]
        wish = agree(GenerationRequest(model="tiny"), given, identity(), DEFAULT_LANES).tells_progress

        assert asks_progress(given) is wish is (values[-1] == b"1")


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "1e10", "", "5s"])
def test_a_deadline_has_to_be_a_time(value: str) -> None:
    with pytest.raises(ApiError) as refused:
        service_level(headers={"x-fairlane-ttft-ms": value})

    assert refused.value.param == "x-fairlane-ttft-ms"
