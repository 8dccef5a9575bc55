"""`templates/gateway/ingress.yaml`."""

import pytest

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


@pytest.mark.parametrize(
    ("root_path", "path", "told"),
    [("", "", "/"), ("/llm", "", "/llm"), ("/a/llm/", "", "/a/llm"), ("/llm", "/llm/v1", "/llm/v1")],
)
def test_the_ingress_has_the_gateways_prefix(render: Render, root_path: str, path: str, told: str) -> None:
    values = {
        "ingress": {"enabled": True, "host": "llm.local", "path": path},
        "config": {"gateway": {"root_path": root_path}},
    }

    (ingress,) = render(values=values).all("Ingress")

    assert ingress["spec"]["rules"][0]["http"]["paths"][0]["path"] == told


def test_without_a_tls_secret_the_ingress_is_plain(render: Render) -> None:
    (ingress,) = render(values={"ingress": {"enabled": True, "host": "llm.local"}}).all("Ingress")

    assert "tls" not in ingress["spec"]
    assert "ingressClassName" not in ingress["spec"]
