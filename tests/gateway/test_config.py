"""The gateway's settings: sources, ranges, and the one line that a wrong one is answered with."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fairlane.common.settings_error import SettingsError
from fairlane.gateway.config import CommandLine, parse, read

STORE = {"FAIRLANE_REDIS_URL": "redis://localhost:6379"}

FALLBACKS = "FAIRLANE_GATEWAY__QUOTA_FALLBACKS__"


def line(*arguments: str) -> CommandLine:
    return parse(arguments)


def test_the_defaults_are_those_of_the_contract() -> None:
    settings = read(line(), STORE)

    assert (settings.host, settings.port, settings.data_dir) == ("127.0.0.1", 8000, ".fairlane")
    assert settings.gateway.reservation_lease_s == 30
    assert settings.http_limits.max_header_bytes == 32 * 1024


def test_links_of_the_console_are_those_that_are_set() -> None:
    url = "https://traces.example/t/{trace_id}"
    settings = read(line(), STORE | {"FAIRLANE_GATEWAY__TRACE_URL": url})
    assert settings.gateway.links == {"trace": url}

    with pytest.raises(SettingsError, match="grafana_url"):
        read(line(), STORE | {"FAIRLANE_GATEWAY__GRAFANA_URL": "javascript:alert(1)"})


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "fairlane.yaml"
    file.write_text("port: 1\nhost: 10.0.0.1\ngateway: {max_body_bytes: 1MiB, grace_s: 7}\nworker: {anything: 1}\n")
    environ = {**STORE, "FAIRLANE_PORT": "2", "FAIRLANE_GATEWAY__GRACE_S": "8"}

    settings = read(line("--config", str(file), "--port", "3"), environ)

    assert (settings.port, settings.host) == (3, "10.0.0.1")
    assert (settings.gateway.max_body_bytes, settings.gateway.grace_s) == (2**20, 8)


@pytest.mark.parametrize(
    ("environ", "complaint"),
    [
        ({}, "setting redis_url: a gateway needs a store"),
        ({"FAIRLANE_REDIS_URL": "http://x"}, "setting redis_url: must start with"),
        ({**STORE, "FAIRLANE_GATEWAY__LINK_HOST": "0.0.0.0"}, "setting gateway.link_host: workers connect"),  # noqa: S104
        ({**STORE, "FAIRLANE_GATEWAY__LINK_HOST": "::"}, "setting gateway.link_host: workers connect to this"),
        (
            {**STORE, "FAIRLANE_GATEWAY__LINK_PORT": "65534", "FAIRLANE_GATEWAY__PROCESSES": "3"},
            "setting gateway.link_port: no 3 ports from 65534 on",
        ),
        ({"FAIRLANE_REDIS_URL": "redis+sentinel://h"}, "setting redis_url: must be redis"),
        ({"FAIRLANE_REDIS_URL": "redis+sentinel://h:x/s"}, "setting redis_url: must name Sentinels as host:port"),
        ({"FAIRLANE_REDIS_URL": "redis+sentinel://h/s?x=1"}, "setting redis_url: must be redis"),
        ({"FAIRLANE_REDIS_URL": "redis+cluster://"}, "setting redis_url: must name nodes as host:port"),
        ({"FAIRLANE_REDIS_URL": "redis+cluster://h:1,"}, "setting redis_url: must name nodes as host:port"),
        ({"FAIRLANE_REDIS_URL": "redis+cluster://h:70000"}, "setting redis_url: must name nodes as host:port"),
        ({"FAIRLANE_REDIS_URL": "redis+cluster://h/3"}, "setting redis_url: must be redis"),
        ({"FAIRLANE_REDIS_URL": "redis+cluster://h?ssl_ca_certs=a"}, "setting redis_url: must be redis"),
        (
            {**STORE, "FAIRLANE_QUOTA_REDIS_URL": "rediss+cluster://h?db=1"},
            "setting quota_redis_url: must be redis",
        ),
        ({**STORE, "FAIRLANE_QUOTA_REDIS_URL": "http://x"}, "setting quota_redis_url: must start with"),
        ({**STORE, "FAIRLANE_GATEWAY__QUOTA_FALLBACK": "open"}, "setting gateway.quota_fallback: "),
        ({**STORE, f"{FALLBACKS}TOKENS_PER_DAY": "shut"}, "setting gateway.quota_fallbacks"),
        ({**STORE, f"{FALLBACKS}TOKENS": "fail_open"}, "setting gateway.quota_fallbacks.tokens: no such limit"),
        ({**STORE, "FAIRLANE_GATEWAY__FILES__URL": "/var/files"}, "setting gateway.files.url: must be a URL"),
        ({**STORE, "FAIRLANE_GATEWAY__FILES__LINES": "0"}, "setting gateway.files.lines: "),
        ({**STORE, "FAIRLANE_PORT": "70000"}, "setting port: "),
        ({**STORE, "FAIRLANE_GATEWAY__GRACE_S": "-1"}, "setting gateway.grace_s: "),
        ({**STORE, "FAIRLANE_GATEWAY__RESERVATION_LEASE_S": "0.1"}, "setting gateway.reservation_lease_s: "),
        ({**STORE, "FAIRLANE_GATEWAY__TRACE_SAMPLE": "2"}, "setting gateway.trace_sample: "),
        ({**STORE, "FAIRLANE_GATEWAY__PROCESSES": "0"}, "setting gateway.processes: "),
        ({**STORE, "FAIRLANE_GATEWAY__PROCESSES": "65"}, "setting gateway.processes: "),
        ({**STORE, "FAIRLANE_GATEWAY__NONSENSE": "1"}, "setting gateway.nonsense: no such setting"),
        ({**STORE, "FAIRLANE_CONFIG": "/nowhere/fairlane.yaml"}, "/nowhere/fairlane.yaml: cannot be read"),
    ],
)
def test_a_wrong_setting_is_named(environ: dict[str, str], complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint.replace(".", r"\.")):
        read(line(), environ)


ISSUER = {
    "name": "login",
    "issuer": "https://login.example.com/",
    "jwks_url": "https://login.example.com/keys",
    "audience": ["fairlane"],
    "algorithms": ["RS256"],
    "tenant_claim": "org",
    "tenants": {"acme-org": "acme"},
}


@pytest.mark.parametrize(
    ("issuers", "complaint"),
    [
        ([{**ISSUER, "algorithms": ["HS256"]}], "setting gateway.issuers[0].algorithms[0]: invalid enum value"),
        ([{**ISSUER, "algorithms": ["none"]}], "setting gateway.issuers[0].algorithms[0]: invalid enum value"),
        ([{**ISSUER, "algorithms": []}], "setting gateway.issuers[0].algorithms: "),
        ([{**ISSUER, "audience": []}], "setting gateway.issuers[0].audience: "),
        ([{**ISSUER, "jwks_url": "http://login.example.com/keys"}], "setting gateway.issuers[0].jwks_url: must begin"),
        ([{**ISSUER, "jwks_url": "https://me:secret@login/keys"}], "setting gateway.issuers[0].jwks_url: must begin"),
        ([{**ISSUER, "jwks_url": "https://[/"}], "setting gateway.issuers[0].jwks_url: must begin"),
        ([{**ISSUER, "tenants": {}}], "setting gateway.issuers[0].tenants: "),
        ([{**ISSUER, "tenants": {"a": "no tenant"}}], "setting gateway.issuers[0].tenants: must name tenants"),
        ([{**ISSUER, "leeway_s": 301}], "setting gateway.issuers[0].leeway_s: "),
        ([{**ISSUER, "tenant_claim": ""}], "setting gateway.issuers[0]: tenant_claim"),
        ([{**ISSUER, "name": "a/b"}], "setting gateway.issuers[0].name: "),
        ([ISSUER, {**ISSUER, "name": "other"}], "setting gateway.issuers[1].issuer: is listed twice"),
        ([ISSUER, {**ISSUER, "issuer": "https://other/"}], "setting gateway.issuers[1].name: is another"),
        ([{**ISSUER, "jku": "x"}], "setting gateway.issuers[0].jku: no such setting"),
        (
            [{**ISSUER, "groups": [{"group": "a", "limits": {"tokens": 1}}]}],
            "setting gateway.issuers[0].groups[0].limits.tokens: no such limit",
        ),
        (
            [{**ISSUER, "groups": [{"group": "a", "scopes": {"act_as": ["acme"]}}]}],
            "setting gateway.issuers[0].groups[0].scopes.act_as: only a key",
        ),
    ],
)
def test_a_wrong_issuer_is_named(tmp_path: Path, issuers: list[dict[str, object]], complaint: str) -> None:
    file = tmp_path / "fairlane.yaml"
    file.write_text(json.dumps({"gateway": {"issuers": issuers}}))  # JSON is YAML

    with pytest.raises(SettingsError, match=re.escape(complaint)):
        read(line("--config", str(file)), STORE)


def test_an_issuer_is_read_from_the_file(tmp_path: Path) -> None:
    file = tmp_path / "fairlane.yaml"
    groups = [{"group": "interns", "limits": {"tokens_per_minute": 5}, "scopes": {"lanes": ["latency"]}}]
    issuer = {**ISSUER, "groups": groups, "groups_claim": ["realm", "roles"]}
    file.write_text(json.dumps({"gateway": {"issuers": [issuer], "tenant_header_peers": ["10.0.0.0/8"]}}))

    section = read(line("--config", str(file)), STORE).gateway

    assert (section.issuers[0].groups_claim, section.issuers[0].groups[0].group) == (("realm", "roles"), "interns")
    assert "10.1.2.3" in section.tenant_header_peers


@pytest.mark.parametrize("name", ["authorization", "X-Tenant", "", "a b", "x-api-key", "api-key"])
def test_a_header_with_a_meaning_of_its_own_names_no_tenant(name: str, tmp_path: Path) -> None:
    file = tmp_path / "fairlane.yaml"
    file.write_text(json.dumps({"gateway": {"tenant_header": name}}))

    with pytest.raises(SettingsError, match=r"setting gateway\.tenant_header: "):
        read(line("--config", str(file)), STORE)


def test_the_admin_key_is_never_shown() -> None:
    settings = read(line(), {**STORE, "FAIRLANE_ADMIN_KEY": "very-secret" * 3})

    assert "very-secret" not in repr(settings)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environ", "status", "told"), [(STORE, 0, ""), ({"FAIRLANE_PORT": "x"}, 2, "gateway: setting port: ")]
)
def test_check_config_answers_by_its_status(environ: dict[str, str], status: int, told: str) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLANE_")}

    ended = subprocess.run(
        [sys.executable, "-m", "fairlane.gateway", "--check-config"],
        env={**clean, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (ended.returncode, ended.stdout) == (status, "")
    assert ended.stderr.startswith(told)
    assert len(ended.stderr.splitlines()) == (1 if told else 0)
