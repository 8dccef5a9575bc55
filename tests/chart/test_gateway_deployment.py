"""`templates/gateway/deployment.yaml`."""

from tests.chart.conftest import Render


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

    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "metrics"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "metrics"}


def test_the_ports_are_those_of_the_settings(render: Render) -> None:
    chart = render(values={"config": {"port": 9000, "metrics_port": 9001, "admin_port": 9002}})

    assert chart.container("gateway")["ports"] == [
        {"name": "http", "containerPort": 9000},
        {"name": "metrics", "containerPort": 9001},
        {"name": "admin", "containerPort": 9002},
        {"name": "link", "containerPort": 8100},
    ]
    settings = chart.settings()
    assert (settings["port"], settings["metrics_port"], settings["admin_port"]) == (9000, 9001, 9002)


def test_each_pod_listens_for_workers_on_its_own_address(render: Render) -> None:
    chart = render(values={"gateway": {"linkPort": 8200}, "config": {"gateway": {"processes": 2}}})
    env = chart.env("gateway")
    ports = {port["name"]: port["containerPort"] for port in chart.container("gateway")["ports"]}

    assert env["FAIRLANE_GATEWAY__LINK_HOST"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    assert env["FAIRLANE_GATEWAY__LINK_PORT"] == "8200"
    assert (ports["link"], ports["link-1"]) == (8200, 8201)
    assert all(port["name"] != "link" for service in chart.all("Service") for port in service["spec"]["ports"])


def test_the_endpoints_forget_a_pod_before_it_stops_accepting(render: Render) -> None:
    def before_stop(kubernetes: str) -> object:
        return render(kubernetes=kubernetes).container("gateway")["lifecycle"]["preStop"]

    assert before_stop("1.30") == {"sleep": {"seconds": 5}}
    assert before_stop("1.29") == {"exec": {"command": ["sleep", "5"]}}  # which has no sleep of its own yet


def test_a_rollout_never_has_fewer_gateways_than_asked(render: Render) -> None:
    rolling = render().one("Deployment", "gateway")["spec"]["strategy"]["rollingUpdate"]

    assert rolling == {"maxSurge": 1, "maxUnavailable": 0}
