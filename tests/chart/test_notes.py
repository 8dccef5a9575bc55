"""`templates/NOTES.txt`: what an operator reads after an install."""

import subprocess
from pathlib import Path

from tests.support.chart import CHART


def _notes(helm: Path, mode: str) -> str:
    command = [str(helm), "install", "fairlane", str(CHART), "--dry-run=client", "--namespace", "llm"]
    values = str(CHART / "ci" / f"{mode}-values.yaml")
    done = subprocess.run([*command, "--values", values], capture_output=True, text=True, check=True)
    return done.stdout.partition("NOTES:")[2]


def test_the_notes_lead_to_a_first_key(helm: Path) -> None:
    notes = _notes(helm, "minimal")

    assert "port-forward service/fairlane 8000:8000" in notes
    assert "get secret fairlane-admin" in notes
    assert "$ADMIN_URL/admin/v1/tenants" in notes


def test_the_notes_warn_where_files_stand_on_the_pods_own_disks(helm: Path) -> None:
    several, one, bucket = _notes(helm, "minimal"), _notes(helm, "single"), _notes(helm, "production")

    assert "WARNING: config.gateway.files.url is not set" in several
    assert "no other of the 2 gateways can read them" in several
    assert "They go with the pod." in one
    assert "WARNING" not in bucket


def test_the_notes_name_the_port_that_policies_of_others_must_allow(helm: Path) -> None:
    assert "workers connect to the gateway pods at port 8100." in _notes(helm, "minimal")
    assert "at port 8100" not in _notes(helm, "redis-tls")


def test_the_notes_name_the_ingress_where_there_is_one(helm: Path) -> None:
    assert "URL=https://llm.example.com" in _notes(helm, "production")
    assert "URL=https://llm.example.com" in _notes(helm, "vllm")  # a route of the Gateway API


def test_the_notes_say_what_is_served_and_by_what(helm: Path) -> None:
    own, sidecar, several = (_notes(helm, mode) for mode in ("minimal", "sidecar", "external-engine"))

    assert "SmolLM2-135M-Instruct by 1 worker(s)" in own
    assert "qwen3-32b by 2 pod(s) of vLLM" in sidecar
    assert "Qwen/Qwen3-235B-A22B by the vllm at http://vllm-large-1.llm:8000" in several
    assert "deployment/fairlane-worker" not in sidecar
    for name in ("worker", "engine-large-a", "engine-large-b", "engine-small"):
        assert f"rollout status deployment/fairlane-{name}\n" in several
