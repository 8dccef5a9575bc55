"""`templates/workloads/claim.yaml`: volumes for weights."""

from tests.chart.conftest import Render


def test_no_claim_is_made_unless_asked(render: Render) -> None:
    assert render().all("PersistentVolumeClaim") == []
    assert render("gpu").all("PersistentVolumeClaim") == []


def test_a_claim_on_wish_is_mounted_and_stays_when_the_release_goes(render: Render) -> None:
    chart = render("keda")
    (claim,) = chart.all("PersistentVolumeClaim")
    volumes = {volume["name"]: volume for volume in chart.pod("worker")["volumes"]}

    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert claim["spec"]["storageClassName"] == "shared"
    assert claim["spec"]["resources"]["requests"] == {"storage": "80Gi"}
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert volumes["models"]["persistentVolumeClaim"] == {"claimName": claim["metadata"]["name"]}


def test_an_engine_s_weights_have_theirs_which_the_lease_holder_reads(render: Render) -> None:
    weights = {"existingClaim": "", "create": True}
    chart = render("sidecar", values={"engines": {"qwen": {"weights": weights}}})
    (claim,) = chart.all("PersistentVolumeClaim")
    volumes = {volume["name"]: volume for volume in chart.pod("engine-qwen")["volumes"]}

    assert claim["metadata"]["name"] == "fairlane-engine-qwen-models"
    assert volumes["weights"]["persistentVolumeClaim"] == {"claimName": claim["metadata"]["name"]}
    mounts = chart.container("engine-qwen", "lease-holder")["volumeMounts"]
    assert {"name": "weights", "mountPath": "/weights", "readOnly": True} in mounts


def test_one_pod_may_have_a_claim_of_one_node(render: Render) -> None:
    models = {"create": True, "accessModes": ["ReadWriteOnce"]}

    (claim,) = render(values={"worker": {"models": models}}).all("PersistentVolumeClaim")

    assert "storageClassName" not in claim["spec"]  # the cluster's default
