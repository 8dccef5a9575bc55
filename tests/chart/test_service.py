"""`templates/gateway/service.yaml`."""

from tests.chart.conftest import Render


def test_the_service_leads_to_the_gateway_s_named_port(render: Render) -> None:
    _, service = render().all("Service")

    assert service["spec"]["ports"] == [{"name": "http", "port": 8000, "targetPort": "http", "appProtocol": "http"}]


def test_type_port_and_annotations_are_the_operator_s(render: Render) -> None:
    wanted = {"type": "LoadBalancer", "port": 80, "annotations": {"a": "b"}}

    operators, service = render(values={"gateway": {"service": wanted}}).all("Service")

    assert service["spec"]["type"] == "LoadBalancer"
    assert service["spec"]["ports"][0]["port"] == 80
    assert service["metadata"]["annotations"] == {"a": "b"}
    assert operators["spec"]["type"] == "ClusterIP"


def test_operators_have_a_service_of_their_own_that_the_ingress_does_not_lead_to(render: Render) -> None:
    chart = render("production")
    operators, _ = chart.all("Service")
    (ingress,) = chart.all("Ingress")
    (path,) = ingress["spec"]["rules"][0]["http"]["paths"]

    assert operators["spec"]["ports"] == [{"name": "admin", "port": 8001, "targetPort": "admin", "appProtocol": "http"}]
    assert path["backend"]["service"]["name"] != operators["metadata"]["name"]


def test_without_a_port_of_their_own_operators_share_the_tenants_service(render: Render) -> None:
    chart = render(values={"config": {"admin_port": 0}})

    assert [service["metadata"]["name"] for service in chart.all("Service")] == ["fairlane"]
    assert "admin" not in [port["name"] for port in chart.container("gateway")["ports"]]
