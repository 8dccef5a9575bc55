"""Values that could not work are refused with a sentence that names them."""

from typing import Any

import pytest

from tests.chart.conftest import Render
from tests.support.chart import RefusedError

HOLDER = {"leaseHolder": {"image": {"repository": "registry.example.com/fairlane-lease-holder"}}}
FOLDER = {"files": {"url": "file:///var/lib/fairlane/files"}}
ISSUED = {"enabled": True, "issuerRef": {"name": "links"}}
POLITE = {"name": "polite", "path": "/weights/polite", "maxSequences": 8}
NO_TARGETS = {"latency": None, "throughput": None}


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"store": {"existingSecret": ""}}, "store.existingSecret is required: name the Secret"),
        (
            {"store": {"existingSecret": ""}, "valkey": {"enabled": True}},
            "valkey.existingSecret is required: create a Secret",
        ),
        ({"worker": {"autoscaling": {"enabled": True}}}, "keda.existingSecret is required where KEDA asks the gateway"),
        (
            {"valkey": {"enabled": True}},
            "store.existingSecret and valkey.enabled exclude each other: a store of your own, or one of the release",
        ),
        (
            {"worker": {"autoscaling": {"enabled": True, "minReplicas": 5}}},
            "worker.autoscaling.minReplicas must not be more than maxReplicas",
        ),
        (
            {"gateway": {"autoscaling": {"enabled": True, "minReplicas": 11}}},
            "gateway.autoscaling.minReplicas must not be more than maxReplicas",
        ),
        (
            {"worker": {"autoscaling": {"enabled": True, "queuedTokens": NO_TARGETS, "running": NO_TARGETS}}},
            "worker.autoscaling needs a target: queuedTokens or running, of one lane at least",
        ),
        ({"config": {"gateway": {"link_host": "10.0.0.1"}}}, "config.gateway.link_host belongs to the chart"),
        ({"config": {"gateway": {"link_port": 9999}}}, "config.gateway.link_port belongs to the chart"),
        ({"config": {"link_tls": {"ca": "/ca.pem"}}}, "config.link_tls belongs to the chart"),
        (
            {"linkTls": {"existingSecret": "links", "certManager": ISSUED}},
            "linkTls.existingSecret and linkTls.certManager.enabled exclude each other",
        ),
        ({"linkTls": {"certManager": {"enabled": True}}}, "linkTls.certManager.issuerRef.name is required"),
        (
            {"gateway": {"linkPort": 8000}, "config": {"gateway": {"processes": 2}}},
            "gateway.linkPort: the gateway's processes listen for workers on 2 ports from 8000 on, one of which is",
        ),
        (
            {"gateway": {"linkPort": 65535}, "config": {"gateway": {"processes": 2}}},
            "gateway.linkPort: no 2 ports from 65535 on",
        ),
        (
            {"keda": {"source": "prometheus"}},
            "keda.prometheus.serverAddress is required where keda.source is prometheus",
        ),
        (
            {"keda": {"prometheus": {"serverAddress": "http://prometheus:9090"}}},
            "keda.prometheus.serverAddress and keda.source=metrics-api exclude each other",
        ),
        (
            {"monitoring": {"serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": True}}},
            "monitoring.serviceMonitor and monitoring.podMonitor exclude each other",
        ),
        (
            {"worker": {"models": {"existingClaim": "weights", "create": True}}},
            "worker: existingClaim and create exclude each other",
        ),
        (
            {"worker": {"replicas": 2, "models": {"create": True, "accessModes": ["ReadWriteOnce"]}}},
            "worker: several pods need a claim with accessModes .ReadWriteMany.",
        ),
        (
            {"workers": {"small": {"models": {"create": True, "accessModes": ["ReadWriteOnce"]}, "replicas": 3}}},
            "workers.small: several pods need a claim",
        ),
        ({"workers": {"small": {"image": {"tag": "latest"}}}}, "workers.small.image.tag must not be latest"),
        ({"workers": {"small": {"config": {"engine": "vllm"}}}}, "workers.small.config.engine belongs to the chart"),
        ({"workers": {"s" * 40: {}}, "nameOverride": "b" * 50}, "is too long a name"),
        (
            {**HOLDER, "engines": {"a": {"model": "m", "url": "http://v:8000", "autoscaling": {"enabled": True}}}},
            "engines.a.autoscaling excludes a url: one engine has one lease holder",
        ),
        (
            {"gateway": {"replicas": 1, "autoscaling": {"enabled": True}}, "config": {"gateway": FOLDER}},
            "config.gateway.files.url must name a bucket .* where there is more than one gateway: 10 pods",
        ),
        ({"admin": {"existingSecret": ""}}, "admin.existingSecret is required: name the Secret"),
        ({"gateway": {"image": {"repository": ""}}}, "gateway.image.repository is required"),
        ({"worker": {"image": {"repository": ""}}}, "worker.image.repository is required"),
        ({"gateway": {"image": {"tag": "latest"}}}, "gateway.image.tag must not be latest"),
        ({"worker": {"image": {"tag": "latest"}}}, "worker.image.tag must not be latest"),
        ({"config": {"redis_url": "redis://:pw@h"}}, "config.redis_url would put a secret into a ConfigMap"),
        ({"config": {"quota_redis_url": "redis://:pw@h"}}, "config.quota_redis_url would put a secret .* quotaStore"),
        ({"config": {"admin_key": "k"}}, "config.admin_key would put a secret into a ConfigMap"),
        ({"config": {"data_dir": "/data"}}, "config.data_dir belongs to the chart"),
        ({"config": {"gateway": {"files": {"url": "file:///files"}}}}, "config.gateway.files.url must name a bucket"),
        (
            {"gateway": {"extraEnv": [{"name": "FAIRLANE_GATEWAY__FILES__URL", "value": "file:///files"}]}},
            "2 pods share no disk",
        ),
        ({"ingress": {"enabled": True}}, "ingress.host is required where ingress.enabled is true"),
        (
            {"engines": {"a": {"model": "m"}}},
            "leaseHolder.image.repository is required: name the image that was built with fairlane.remote",
        ),
        ({**HOLDER, "engines": {"a": {}}}, "engines.a.model is required: a hub id, or a directory under /weights"),
        ({**HOLDER, "engines": {"a": None}}, "engines.a.model is required"),
        ({**HOLDER, "engines": {"a" * 40: {"model": "m"}}, "nameOverride": "b" * 50}, "is too long a name"),
        (
            {**HOLDER, "engines": {"a": {"model": "m", "url": "http://vllm:8000", "replicas": 2}}},
            "engines.a.replicas must be 1 beside a url: one engine has one lease holder",
        ),
        (
            {**HOLDER, "engines": {"a": {"model": "m", "kind": "sglang"}}},
            "engines.a.url is required: of the engines the chart runs vllm alone",
        ),
        (
            {**HOLDER, "engines": {"a": {"model": "m", "leaseHolders": [{"maxSequences": 1}, {"maxSequences": 2}]}}},
            "engines.a.leaseHolders and vllm.lora.adapters name a model twice",
        ),
        (
            {**HOLDER, "engines": {"a": {"model": "m", "vllm": {"lora": {"adapters": [POLITE, POLITE]}}}}},
            "engines.a.leaseHolders and vllm.lora.adapters name a model twice",
        ),
        (
            {**HOLDER, "engines": {"a": {"model": "m", "url": "http://v", "vllm": {"lora": {"adapters": [POLITE]}}}}},
            "engines.a.vllm.lora.adapters are of vLLM in the pod: with a url, name each adapter in leaseHolders",
        ),
        (
            {**HOLDER, "engines": {"a": {"model": "m", "vllm": {"kvOffloading": {"gib": 56}}}}},
            "engines.a.vllm.resources.limits.memory must be more than vllm.sharedMemory and vllm.kvOffloading.gib",
        ),
        (
            {**HOLDER, "engines": {"a": {"model": "m"}}, "config": {"worker": {"metrics_port": 8000}}},
            "config.worker.metrics_port: the lease holders of engines.a listen on 1 ports from there on, one of which",
        ),
        ({"worker": {"podSpec": {"volumes": []}}}, "worker.podSpec.volumes belongs to the chart"),
        ({"gateway": {"podSpec": {"affinity": {}}}}, "gateway.podSpec.affinity belongs to the chart"),
        (
            {
                **HOLDER,
                "engines": {"a": {"model": "m", "extraEnv": [{"name": "VLLM_USE_RUST_FRONTEND", "value": "1"}]}},
            },
            "engines.a.extraEnv: VLLM_USE_RUST_FRONTEND would disable the middleware that keeps other pods from vLLM",
        ),
        (
            {**HOLDER, "engines": {"a": {"model": "m", "extraEnv": [{"name": "PYTHONPATH", "value": "/mine"}]}}},
            "engines.a.extraEnv: PYTHONPATH would disable the middleware",
        ),
        ({"httpRoute": {"enabled": True}}, "httpRoute.parentRefs is required where httpRoute.enabled is true"),
        (
            {**HOLDER, "engines": {"a": {"model": "m", "vllm": {"image": {"tag": "latest"}}}}},
            "engines.a.vllm.image.tag must not be latest",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_a_sentence(render: Render, values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RefusedError, match=sentence):
        render(values=values)


@pytest.mark.parametrize(
    ("values", "place"),
    [
        ({"gatway": {}}, "gatway"),
        ({"gateway": {"replica": 2}}, "gateway"),
        ({"gateway": {"replicas": -1}}, "gateway/replicas"),
        ({"gateway": {"replicas": "two"}}, "gateway/replicas"),
        ({"gateway": {"image": {"digest": "abc"}}}, "gateway/image/digest"),
        ({"gateway": {"service": {"type": "Magic"}}}, "gateway/service/type"),
        ({"gateway": {"linkPort": 0}}, "gateway/linkPort"),
        ({"linkTls": {"secretName": "links"}}, "linkTls"),
        ({"linkTls": {"certManager": {"duration": "1 year"}}}, "linkTls/certManager/duration"),
        ({"worker": {"startSeconds": 0}}, "worker/startSeconds"),
        ({"config": {"port": 80}}, "config/port"),
        ({"config": {"gateway": {"grace_s": -1}}}, "config/gateway/grace_s"),
        ({"config": {"gateway": {"processes": 0}}}, "config/gateway/processes"),
        ({"config": {"gateway": {"files": {"url": "bucket"}}}}, "config/gateway/files/url"),
        ({"config": {"worker": {"metrics_port": 0}}}, "config/worker/metrics_port"),
        ({"config": {"log_level": "loud"}}, "config/log_level"),
        ({"otlpEndpoint": "collector:4318"}, "otlpEndpoint"),
        ({"store": {"existingSecret": "not a name"}}, "store/existingSecret"),
        ({"engines": {"Not A Name": {}}}, "Not A Name"),
        ({"engines": {"a": {"modle": "m"}}}, "engines/a"),
        ({"engineDefaults": {"kind": "magic"}}, "engineDefaults/kind"),
        ({"engineDefaults": {"url": "vllm:8000"}}, "engineDefaults/url"),
        ({"engineDefaults": {"url": "http://me:pw@vllm:8000"}}, "engineDefaults/url"),
        ({"engineDefaults": {"leaseHolders": []}}, "engineDefaults/leaseHolders"),
        ({"engineDefaults": {"leaseHolders": [{"maxSequences": 0}]}}, "engineDefaults/leaseHolders/0/maxSequences"),
        ({"engineDefaults": {"vllm": {"tensorParallel": 0}}}, "engineDefaults/vllm/tensorParallel"),
        ({"engineDefaults": {"vllm": {"args": "--quantization fp8"}}}, "engineDefaults/vllm/args"),
        ({"engineDefaults": {"vllm": {"gpuResource": "gpu"}}}, "engineDefaults/vllm/gpuResource"),
        ({"engineDefaults": {"vllm": {"lora": {"maxRank": 24}}}}, "engineDefaults/vllm/lora/maxRank"),
        ({"engineDefaults": {"vllm": {"lora": {"adapters": [{"name": "a"}]}}}}, "engineDefaults/vllm/lora/adapters/0"),
        ({"engineDefaults": {"vllm": {"kvOffloading": {"gib": -1}}}}, "engineDefaults/vllm/kvOffloading/gib"),
        (
            {"engineDefaults": {"vllm": {"kvOffloading": {"backend": "disk"}}}},
            "engineDefaults/vllm/kvOffloading/backend",
        ),
        ({"httpRoute": {"timeout": "an hour"}}, "httpRoute/timeout"),
        ({"httpRoute": {"parentRefs": [{"namespace": "gateways"}]}}, "httpRoute/parentRefs/0"),
        ({"extraObjects": [1]}, "extraObjects/0"),
        ({"gateway": {"sidecars": [{"image": "tools:1"}]}}, "gateway/sidecars/0"),
        ({"worker": {"extraVolumes": {"a": {}}}}, "worker/extraVolumes"),
        ({"hub": {"token": "hf_"}}, "hub"),
        ({"leaseHolder": {"replicas": 2}}, "leaseHolder"),
        ({"worker": {"gpu": {"count": "one"}}}, "worker/gpu/count"),
        ({"worker": {"gpu": {"count": -1}}}, "worker/gpu/count"),
        ({"worker": {"gpu": {"resource": "gpu"}}}, "worker/gpu/resource"),
        ({"worker": {"resources": {"limits": {"memory": "8 Gi"}}}}, "worker/resources/limits/memory"),
        ({"worker": {"resources": {"limit": {}}}}, "worker/resources"),
        ({"worker": {"config": {"kv_memry": "1GiB"}}}, "worker/config"),
        ({"workers": {"a": {"config": {"kv_memory": "lots"}}}}, "workers/a"),
        ({"worker": {"autoscaling": {"minReplicas": 0}}}, "worker/autoscaling/minReplicas"),
        ({"worker": {"autoscaling": {"queuedTokens": {"latncy": 1}}}}, "worker/autoscaling/queuedTokens"),
        ({"worker": {"models": {"accessModes": ["ReadWrite"]}}}, "worker/models/accessModes"),
        ({"keda": {"source": "hope"}}, "keda/source"),
        ({"networkPolicy": {"dns": []}}, "networkPolicy/dns"),
        ({"networkPolicy": {"tenants": [{"cidr": "10.0.0.0/8"}]}}, "networkPolicy/tenants"),
        ({"monitoring": {"serviceMonitor": {"interval": "often"}}}, "monitoring/serviceMonitor/interval"),
        ({"valkey": {"persistence": {"size": "big"}}}, "valkey/persistence/size"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_by_the_schema(render: Render, values: dict[str, Any], place: str) -> None:
    with pytest.raises(RefusedError, match=place):
        render(values=values)


def test_one_gateway_may_keep_files_in_a_folder(render: Render) -> None:
    assert render(values={"gateway": {"replicas": 1}, "config": {"gateway": FOLDER}}).manifests


def test_an_image_is_needed_of_what_runs_alone(render: Render) -> None:
    nothing_but_a_gateway = {"worker": {"enabled": False, "image": {"repository": ""}}}

    assert render(values=nothing_but_a_gateway).components == ["gateway"]


def test_latest_is_allowed_beside_a_digest_because_the_digest_wins(render: Render) -> None:
    digest = "sha256:" + "0" * 64

    chart = render(values={"worker": {"image": {"tag": "latest", "digest": digest}}})

    assert chart.container("worker")["image"].endswith(f"@{digest}")


def test_an_engine_may_have_modules_next_to_the_chart_s(render: Render) -> None:
    path = {"name": "PYTHONPATH", "value": "/etc/fairlane-engine:/mine"}

    chart = render(values={**HOLDER, "engines": {"a": {"model": "m", "extraEnv": [path]}}})

    env = chart.container("engine-a", "vllm")["env"]
    assert [each["value"] for each in env if each["name"] == "PYTHONPATH"] == [path["value"]]


def test_requirements_render_nothing(render: Render) -> None:
    assert all(manifest["kind"] and manifest["metadata"]["name"] for manifest in render().manifests)
