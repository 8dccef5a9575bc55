"""Objects of cert-manager, the Gateway API, KEDA and Prometheus' operator, by the shape that their definitions ask for:
closed, so that a misspelt field fails here and is not dropped by a cluster."""

from typing import Any

import jsonschema
import pytest

from tests.chart.conftest import Render
from tests.support.chart import MODES, Manifest

TEXT, COUNT, DURATION = (
    {"type": "string"},
    {"type": "integer", "minimum": 1},
    {"type": "string", "pattern": "^[0-9]+(s|m|h)$"},
)
TEXTS = {"type": "object", "additionalProperties": TEXT}


def shape(required: tuple[str, ...] = (), /, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": properties, "required": list(required)}


def several(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1}


RULES = shape(
    (),
    stabilizationWindowSeconds={"type": "integer", "minimum": 0, "maximum": 3600},
    selectPolicy={"enum": ["Max", "Min", "Disabled"]},
    policies=several(
        shape(
            ("type", "value", "periodSeconds"),
            type={"enum": ["Pods", "Percent"]},
            value=COUNT,
            periodSeconds={"type": "integer", "minimum": 1, "maximum": 1800},
        )
    ),
)
TRIGGER = shape(
    ("type", "metadata"),
    type={"enum": ["metrics-api", "prometheus"]},
    name=TEXT,
    metricType={"enum": ["AverageValue", "Value", "Utilization"]},
    metadata=TEXTS,
    authenticationRef=shape(("name",), name=TEXT, kind=TEXT),
)
RELABELING = shape((), sourceLabels=several(TEXT), targetLabel=TEXT, replacement=TEXT, regex=TEXT, action=TEXT)
ENDPOINT = shape(("port",), port=TEXT, path=TEXT, interval=DURATION, relabelings=several(RELABELING))
SELECTOR = shape((), matchLabels=TEXTS)
SHAPES = {
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): shape(
        ("parentRefs", "rules"),
        parentRefs=several(shape(("name",), name=TEXT, namespace=TEXT, sectionName=TEXT, port=COUNT)),
        hostnames=several(TEXT),
        rules=several(
            shape(
                ("backendRefs",),
                matches=several(shape(("path",), path=shape((), type={"enum": ["Exact", "PathPrefix"]}, value=TEXT))),
                filters=several({"type": "object"}),
                backendRefs=several(shape(("name", "port"), name=TEXT, port=COUNT)),
                timeouts=shape((), request=DURATION, backendRequest=DURATION),
            )
        ),
    ),
    ("cert-manager.io/v1", "Certificate"): shape(
        ("secretName", "issuerRef"),
        secretName=TEXT,
        commonName=TEXT,
        duration=DURATION,
        usages=several({"enum": ["digital signature", "server auth", "client auth"]}),
        privateKey=shape(
            (),
            algorithm={"enum": ["RSA", "ECDSA", "Ed25519"]},
            size=COUNT,
            rotationPolicy={"enum": ["Never", "Always"]},
        ),
        issuerRef=shape(("name",), name=TEXT, kind=TEXT, group=TEXT),
    ),
    ("keda.sh/v1alpha1", "ScaledObject"): shape(
        ("scaleTargetRef", "triggers"),
        scaleTargetRef=shape(("name",), name=TEXT, kind=TEXT, apiVersion=TEXT),
        pollingInterval=COUNT,
        minReplicaCount={"type": "integer", "minimum": 0},
        maxReplicaCount=COUNT,
        fallback=shape(("failureThreshold", "replicas"), failureThreshold=COUNT, replicas=COUNT),
        advanced=shape(
            (),
            restoreToOriginalReplicaCount={"type": "boolean"},
            horizontalPodAutoscalerConfig=shape((), behavior=shape((), scaleUp=RULES, scaleDown=RULES)),
        ),
        triggers=several(TRIGGER),
    ),
    ("keda.sh/v1alpha1", "TriggerAuthentication"): shape(
        ("secretTargetRef",),
        secretTargetRef=several(shape(("parameter", "name", "key"), parameter=TEXT, name=TEXT, key=TEXT)),
    ),
    ("monitoring.coreos.com/v1", "ServiceMonitor"): shape(
        ("selector", "endpoints"), selector=SELECTOR, endpoints=several(ENDPOINT)
    ),
    ("monitoring.coreos.com/v1", "PodMonitor"): shape(
        ("selector", "podMetricsEndpoints"), selector=SELECTOR, podMetricsEndpoints=several(ENDPOINT)
    ),
    ("monitoring.coreos.com/v1", "PrometheusRule"): shape(
        ("groups",),
        groups=several(
            shape(
                ("name", "rules"),
                name=TEXT,
                interval=DURATION,
                rules=several(
                    shape(
                        ("expr",),
                        expr=TEXT,
                        alert=TEXT,
                        record=TEXT,
                        labels=TEXTS,
                        annotations=TEXTS,
                        **{"for": DURATION, "keep_firing_for": DURATION},
                    )
                ),
            )
        ),
    ),
}


def custom(render: Render, mode: str) -> list[Manifest]:
    return [
        each for each in render(mode).manifests if "." in each["apiVersion"].partition("/")[0].removesuffix(".k8s.io")
    ]


@pytest.mark.parametrize("mode", MODES)
def test_every_custom_object_has_the_shape_of_its_definition(render: Render, mode: str) -> None:
    for manifest in custom(render, mode):
        jsonschema.validate(manifest["spec"], SHAPES[manifest["apiVersion"], manifest["kind"]])


def test_every_shape_is_one_that_some_values_render(render: Render) -> None:
    seen = {(each["apiVersion"], each["kind"]) for mode in MODES for each in custom(render, mode)}

    assert seen == SHAPES.keys()
