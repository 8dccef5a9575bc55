"""`templates/gateway/service.yaml`."""

from tests.helm.conftest import Render


def test_the_service_leads_to_the_gateway_s_named_port(render: Render) -> None:
    (service,) = render().all("Service")

    assert service["spec"]["ports"] == [{"name": "http", "port": 8000, "targetPort": "http", "appProtocol": "http"}]


def test_type_port_and_annotations_are_the_operator_s(render: Render) -> None:
    wanted = {"type": "LoadBalancer", "port": 80, "annotations": {"a": "b"}}

    (service,) = render(values={"gateway": {"service": wanted}}).all("Service")

    assert service["spec"]["type"] == "LoadBalancer"
    assert service["spec"]["ports"][0]["port"] == 80
    assert service["metadata"]["annotations"] == {"a": "b"}
