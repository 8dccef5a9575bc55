"""`templates/serviceaccount.yaml`."""

from tests.chart.conftest import Render


def test_the_pods_run_under_an_account_of_their_own(render: Render) -> None:
    chart = render()
    (account,) = chart.all("ServiceAccount")

    assert account["automountServiceAccountToken"] is False
    for component in ("gateway", "worker"):
        assert chart.pod(component)["serviceAccountName"] == account["metadata"]["name"]


def test_an_existing_account_is_used_and_none_is_made(render: Render) -> None:
    chart = render("single")

    assert chart.all("ServiceAccount") == []
    assert chart.pod("gateway")["serviceAccountName"] == "shared"


def test_annotations_tie_the_account_to_a_cloud_identity(render: Render) -> None:
    (account,) = render(values={"serviceAccount": {"annotations": {"role": "r"}}}).all("ServiceAccount")

    assert account["metadata"]["annotations"] == {"role": "r"}
