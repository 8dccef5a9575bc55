"""`templates/gateway/httproute.yaml`: tenants' way in by the Gateway API."""

from typing import Any

import pytest

from tests.chart.conftest import Render
from tests.support.chart import Manifest

PARENT = {"name": "public", "namespace": "gateways", "sectionName": "https"}


def on(**values: Any) -> dict[str, Any]:
    return {"httpRoute": {"enabled": True, "parentRefs": [PARENT], **values}}


def rule(render: Render, values: dict[str, Any]) -> Manifest:
    (route,) = render(values=values).all("HTTPRoute")
    (only,) = route["spec"]["rules"]
    return dict(only)


def test_there_is_no_route_unless_asked(render: Render) -> None:
    assert render().all("HTTPRoute") == []


def test_the_route_leads_to_the_tenants_service_alone(render: Render) -> None:
    chart = render("vllm")
    (route,), service = chart.all("HTTPRoute"), chart.named("Service", "fairlane")

    assert route["spec"]["parentRefs"] == [PARENT]
    assert route["spec"]["hostnames"] == ["llm.example.com"]
    assert route["spec"]["rules"][0]["backendRefs"] == [
        {"name": service["metadata"]["name"], "port": service["spec"]["ports"][0]["port"]}
    ]


@pytest.mark.parametrize(
    ("root_path", "path", "told"), [("", "", "/"), ("/llm", "", "/llm"), ("/a/llm/", "", "/a/llm"), ("", "/v1", "/v1")]
)
def test_the_route_has_the_gateways_prefix(render: Render, root_path: str, path: str, told: str) -> None:
    values = on(path=path) | {"config": {"gateway": {"root_path": root_path}}}

    assert rule(render, values)["matches"] == [{"path": {"type": "PathPrefix", "value": told}}]


@pytest.mark.parametrize(("timeout", "told"), [({}, {"request": "0s"}), ({"timeout": "1h30m"}, {"request": "1h30m"})])
def test_streams_and_websockets_last_as_long_as_they_like(
    render: Render, timeout: dict[str, str], told: dict[str, str]
) -> None:
    assert rule(render, on(**timeout))["timeouts"] == told


def test_without_a_timeout_the_gateway_s_own_holds(render: Render) -> None:
    assert "timeouts" not in rule(render, on(timeout=""))


def test_filters_annotations_and_labels_reach_the_route(render: Render) -> None:
    filters = [{"type": "RequestHeaderModifier", "requestHeaderModifier": {"remove": ["x-debug"]}}]
    values = on(filters=filters, annotations={"note": "y"}, labels={"team": "x"})
    (route,) = render(values=values).all("HTTPRoute")

    assert rule(render, values)["filters"] == filters
    assert route["metadata"]["annotations"] == {"note": "y"}
    assert route["metadata"]["labels"]["team"] == "x"


def test_the_service_says_that_it_serves_websockets_where_gateways_look_for_it(render: Render) -> None:
    def protocol(values: dict[str, Any]) -> str:
        return str(render(values=values).named("Service", "fairlane")["spec"]["ports"][0]["appProtocol"])

    assert protocol({}) == "http"
    assert protocol(on()) == "kubernetes.io/ws"
    assert protocol(on() | {"gateway": {"service": {"appProtocol": "http"}}}) == "http"


def test_a_route_stands_next_to_an_ingress(render: Render) -> None:
    chart = render("adapters")
    (route,), (ingress,) = chart.all("HTTPRoute"), chart.all("Ingress")

    assert route["spec"]["rules"][0]["matches"][0]["path"]["value"] == "/llm"
    assert ingress["spec"]["rules"][0]["http"]["paths"][0]["path"] == "/llm"
