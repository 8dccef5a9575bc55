"""`templates/gateway/deployment.yaml`."""

from tests.helm.conftest import Render


def test_the_gateway_alone_holds_the_admin_key(render: Render) -> None:
    chart = render()

    assert chart.env("gateway")["FAIRLANE_ADMIN_KEY"] == {"secretKeyRef": {"name": "fairlane-admin", "key": "key"}}
    assert "FAIRLANE_ADMIN_KEY" not in chart.env("worker")


def test_the_gateway_alone_knows_a_store_of_the_budgets_own(render: Render) -> None:
    chart = render(values={"quotaStore": {"existingSecret": "budgets"}})

    assert chart.env("gateway")["FAIRLANE_QUOTA_REDIS_URL"] == {"secretKeyRef": {"name": "budgets", "key": "url"}}
    assert "FAIRLANE_QUOTA_REDIS_URL" not in chart.env("worker")
    assert "FAIRLANE_QUOTA_REDIS_URL" not in render().env("gateway")


def test_alive_and_ready_are_asked_apart(render: Render) -> None:
    container = render().container("gateway")

    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}


def test_the_port_is_the_one_of_the_settings(render: Render) -> None:
    chart = render(values={"config": {"port": 9000}})

    assert chart.container("gateway")["ports"] == [{"name": "http", "containerPort": 9000}]
    assert chart.settings()["port"] == 9000


def test_the_endpoints_forget_a_pod_before_it_stops_accepting(render: Render) -> None:
    assert render().container("gateway")["lifecycle"]["preStop"] == {"sleep": {"seconds": 5}}


def test_a_rollout_never_has_fewer_gateways_than_asked(render: Render) -> None:
    rolling = render().one("Deployment", "gateway")["spec"]["strategy"]["rollingUpdate"]

    assert rolling == {"maxSurge": 1, "maxUnavailable": 0}
