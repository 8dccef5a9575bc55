"""The Services: one for each plane of the gateway, and one for the metrics of each kind of worker."""

from tests.chart.conftest import Render


def test_the_service_leads_to_the_gateway_s_named_port(render: Render) -> None:
    service = render().named("Service", "fairlane")

    assert service["spec"]["ports"] == [{"name": "http", "port": 8000, "targetPort": "http", "appProtocol": "http"}]


def test_type_port_and_annotations_are_the_operator_s(render: Render) -> None:
    wanted = {"type": "LoadBalancer", "port": 80, "annotations": {"a": "b"}}

    chart = render(values={"gateway": {"service": wanted}})
    service, operators = chart.named("Service", "fairlane"), chart.named("Service", "fairlane-admin")

    assert service["spec"]["type"] == "LoadBalancer"
    assert service["spec"]["ports"][0]["port"] == 80
    assert service["metadata"]["annotations"] == {"a": "b"}
    assert operators["spec"]["type"] == "ClusterIP"


def test_operators_have_a_service_of_their_own_that_the_ingress_does_not_lead_to(render: Render) -> None:
    chart = render("production")
    operators = chart.named("Service", "serving-admin")
    (ingress,) = chart.all("Ingress")
    (path,) = ingress["spec"]["rules"][0]["http"]["paths"]

    assert operators["spec"]["ports"] == [{"name": "admin", "port": 8001, "targetPort": "admin", "appProtocol": "http"}]
    assert path["backend"]["service"]["name"] != operators["metadata"]["name"]


def test_without_a_port_of_their_own_operators_share_the_tenants_service(render: Render) -> None:
    chart = render(values={"config": {"admin_port": 0}})

    assert "fairlane-admin" not in {service["metadata"]["name"] for service in chart.all("Service")}
    assert "admin" not in [port["name"] for port in chart.container("gateway")["ports"]]


def test_metrics_have_a_service_of_their_own_by_which_every_pod_is_found(render: Render) -> None:
    chart = render("gpu")
    gateways, workers = chart.named("Service", "fairlane-metrics"), chart.named("Service", "fairlane-worker")

    assert [each["spec"]["ports"][0]["port"] for each in (gateways, workers)] == [9090, 9200]
    for each in (gateways, workers):
        assert each["spec"]["clusterIP"] == "None"
        assert each["metadata"]["labels"]["fairlane.dev/plane"] == "metrics"


def test_each_lease_holder_of_a_pod_tells_its_metrics_at_a_port_of_its_own(render: Render) -> None:
    service = render("sidecar").named("Service", "fairlane-engine-qwen")

    assert {port["name"]: port["port"] for port in service["spec"]["ports"]} == {
        "engine": 8000,
        "metrics": 9100,
        "metrics-1": 9101,
    }


def test_no_two_planes_share_a_service_and_the_ingress_leads_to_tenants_alone(render: Render) -> None:
    chart = render("production")
    planes = {
        service["metadata"]["name"]: service["metadata"]["labels"]["fairlane.dev/plane"]
        for service in chart.all("Service")
    }
    (ingress,) = chart.all("Ingress")
    backends = {path["backend"]["service"]["name"] for path in ingress["spec"]["rules"][0]["http"]["paths"]}

    assert {*planes.values()} == {"tenants", "admin", "metrics"}
    assert {planes[name] for name in backends} == {"tenants"}
    assert all(len(service["spec"]["ports"]) == 1 for service in chart.all("Service"))
