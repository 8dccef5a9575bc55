"""NetworkPolicies: who may reach which plane, and where pods may connect to."""

from typing import Any

from tests.chart.conftest import Render
from tests.support.chart import Chart

Peers = list[dict[str, Any]]


def may_reach(chart: Chart, component: str) -> dict[str | int, Peers | None]:
    """By port: the peers that a policy lets in; None: everyone."""
    return {
        port["port"]: rule.get("from")
        for rule in chart.one("NetworkPolicy", component)["spec"]["ingress"]
        for port in rule["ports"]
    }


def components(peers: Peers | None) -> list[str]:
    return [peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for peer in peers or []]


def namespace(name: str) -> dict[str, Any]:
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}


def on(**values: Any) -> dict[str, Any]:
    return {"networkPolicy": {"enabled": True, **values}}


def test_there_is_none_unless_asked(render: Render) -> None:
    assert render().all("NetworkPolicy") == []


def test_tenants_reach_their_plane_alone(render: Render) -> None:
    reach = may_reach(render(values=on()), "gateway")

    assert reach["http"] is None
    assert reach["metrics"] == [namespace("monitoring")]
    assert reach.keys() == {"http", "metrics", "link"}


def test_operators_reach_theirs_where_they_are_named(render: Render) -> None:
    reach = may_reach(render("redis-tls"), "gateway")

    assert reach["admin"] == [namespace("operations")]


def test_keda_reaches_the_admin_api_where_it_asks_there(render: Render) -> None:
    prometheus = {"source": "prometheus", "prometheus": {"serverAddress": "http://prometheus:9090"}}

    assert may_reach(render("keda"), "gateway")["admin"] == [namespace("keda")]
    assert "admin" not in may_reach(render("keda", values={"keda": prometheus}), "gateway")


def test_where_the_planes_are_one_who_may_reach_either_reaches_it(render: Render) -> None:
    reach = may_reach(render("keda", values={"config": {"admin_port": 0}}), "gateway")

    assert namespace("keda") in (reach["http"] or [])
    assert "admin" not in reach


def test_where_tenants_come_from_one_namespace_the_release_s_own_test_still_passes(render: Render) -> None:
    chart = render("keda")
    ingress, own = may_reach(chart, "gateway")["http"] or []
    (test,) = chart.all("Pod")

    assert ingress == namespace("ingress-nginx")
    assert own["podSelector"]["matchLabels"].items() <= test["metadata"]["labels"].items()


def test_nobody_but_prometheus_reaches_a_worker(render: Render) -> None:
    chart = render("two-models")

    for component in ("worker", "worker-small"):
        assert may_reach(chart, component) == {"metrics": [namespace("monitoring")]}
    assert may_reach(render(values=on(prometheus=[])), "worker") == {}


def test_only_the_release_s_workers_reach_the_links_of_gateways(render: Render) -> None:
    chart = render("two-models")
    sidecar = render("sidecar", values=on())

    assert components(may_reach(chart, "gateway")["link"]) == ["worker", "worker-small"]
    assert components(may_reach(sidecar, "gateway")["link"]) == ["engine-qwen"]


def test_a_release_without_workers_opens_no_link(render: Render) -> None:
    reach = may_reach(render(values={**on(), "worker": {"enabled": False}}), "gateway")

    assert reach.keys() == {"http", "metrics"}


def test_workers_reach_the_links_of_every_process_of_a_gateway(render: Render) -> None:
    chart = render("redis-tls", values={"config": {"gateway": {"processes": 3}}})
    _, rule, _ = chart.one("NetworkPolicy", "worker")["spec"]["egress"]
    names = ["link", "link-1", "link-2"]
    labels = chart.one("Deployment", "gateway")["spec"]["template"]["metadata"]["labels"]

    assert [port["port"] for port in rule["ports"]] == names
    assert rule["to"][0]["podSelector"]["matchLabels"].items() <= labels.items()
    assert {*names} <= may_reach(chart, "gateway").keys()


def test_of_an_engine_s_pod_prometheus_alone_reaches_the_metrics(render: Render) -> None:
    reach = may_reach(render("sidecar", values=on()), "engine-qwen")

    assert reach == {port: [namespace("monitoring")] for port in (8000, "metrics", "metrics-1")}


def test_the_release_s_own_store_is_reached_by_its_pods_alone(render: Render) -> None:
    chart = render("two-models")

    assert components(may_reach(chart, "valkey")["valkey"]) == ["gateway", "worker", "worker-small"]
    assert chart.one("NetworkPolicy", "valkey")["spec"]["egress"] == []


def test_where_pods_connect_to_is_bounded_where_the_operator_lists_it(render: Render) -> None:
    free = render(values=on()).one("NetworkPolicy", "gateway")["spec"]
    bounded = render("redis-tls").one("NetworkPolicy", "worker")["spec"]

    assert free["policyTypes"] == ["Ingress"]
    assert bounded["policyTypes"] == ["Ingress", "Egress"]
    assert [[port["port"] for port in rule["ports"]] for rule in bounded["egress"]] == [[53, 53], ["link"], [6380]]


def test_dns_is_asked_of_the_cluster_s_servers_alone(render: Render) -> None:
    dns, *_ = render("redis-tls").one("NetworkPolicy", "worker")["spec"]["egress"]
    mine = {"ipBlock": {"cidr": "169.254.20.10/32"}}
    given, _ = render("redis-tls", values={"networkPolicy": {"dns": [mine]}}).one("NetworkPolicy", "gateway")["spec"][
        "egress"
    ]

    assert dns["to"] == [
        {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
            "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
        }
    ]
    assert given["to"] == [mine]


def test_pods_whose_connections_are_bounded_still_reach_the_release_s_own_store(render: Render) -> None:
    chart = render("two-models", values=on(egress=[]))
    labels = chart.one("StatefulSet", "valkey")["spec"]["template"]["metadata"]["labels"]

    for component in ("gateway", "worker", "worker-small"):
        _, store, *_ = chart.one("NetworkPolicy", component)["spec"]["egress"]
        assert store["to"][0]["podSelector"]["matchLabels"].items() <= labels.items()
