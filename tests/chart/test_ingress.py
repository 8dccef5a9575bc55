"""`templates/gateway/ingress.yaml`."""

from tests.chart.conftest import Render


def test_there_is_no_ingress_unless_asked(render: Render) -> None:
    assert render().all("Ingress") == []


def test_the_ingress_leads_to_the_service_over_tls(render: Render) -> None:
    chart = render("production")
    (ingress,), service = chart.all("Ingress"), chart.named("Service", "serving")

    (rule,) = ingress["spec"]["rules"]
    (path,) = rule["http"]["paths"]

    assert rule["host"] == "llm.example.com"
    assert path["backend"]["service"] == {"name": service["metadata"]["name"], "port": {"name": "http"}}
    assert ingress["spec"]["tls"] == [{"hosts": ["llm.example.com"], "secretName": "llm-example-com"}]
    assert ingress["spec"]["ingressClassName"] == "nginx"


def test_without_a_tls_secret_the_ingress_is_plain(render: Render) -> None:
    (ingress,) = render(values={"ingress": {"enabled": True, "host": "llm.local"}}).all("Ingress")

    assert "tls" not in ingress["spec"]
    assert "ingressClassName" not in ingress["spec"]
