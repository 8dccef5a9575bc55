"""Paths that mean to lead elsewhere, and routes on the wrong port. They are sent as they stand here."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from tests.support.system.harness import ADMIN_KEY, MODEL, Server
from tests.system.attacks.rows import Row, compared
from tests.system.attacks.target import Address, bearer, heard, metrics, operators, request, tenants

KIND = "paths"
Port = Literal["tenants", "operators", "metrics"]
Who = Literal["nobody", "tenant", "operator"]

PATHS: Sequence[tuple[Port, Who, str, str]] = [
    ("tenants", "operator", "GET /admin/v1/tenants", "404"),
    ("tenants", "operator", "GET //admin/v1/tenants", "404"),
    ("tenants", "operator", "GET /admin%2fv1%2ftenants", "404"),
    ("tenants", "operator", "GET /%61dmin/v1/tenants", "404"),
    ("tenants", "operator", "GET /ADMIN/v1/tenants", "404"),
    ("tenants", "operator", "GET /./admin/v1/tenants", "404"),
    ("tenants", "operator", "GET /healthz/../admin/v1/tenants", "404"),
    ("tenants", "operator", "GET /v1/models/../../admin/v1/tenants", "401"),
    ("tenants", "operator", "GET /admin/v1/tenants;a=b", "404"),
    ("tenants", "operator", "GET http://x/admin/v1/tenants", "404"),
    ("tenants", "operator", "POST /console/session", "404"),
    ("tenants", "operator", "GET /console/app.js", "404"),
    ("tenants", "nobody", "GET /metrics", "401"),
    ("tenants", "tenant", "GET /metrics", "401"),
    ("tenants", "tenant", "GET /metrics/", "404"),
    ("tenants", "nobody", "GET /healthz/../v1/models", "404"),
    ("tenants", "nobody", "GET /v1/models?path=/healthz", "401"),
    ("tenants", "nobody", "GET /v1/models/../../healthz", "401"),
    ("tenants", "tenant", "GET //v1/models", "200"),
    ("tenants", "tenant", "GET /v1//models", "200"),
    ("tenants", "tenant", "GET /v1/models/..%2f..%2f..%2fetc%2fpasswd", "404"),
    ("tenants", "tenant", "GET /v1/models/../../../etc/passwd", "404"),
    ("tenants", "tenant", f"GET /v1/models/{MODEL}/config.json", "404"),
    ("tenants", "tenant", f"GET /v1/models/{MODEL}%00", "404"),
    ("tenants", "tenant", "POST /v1/completions/", "400"),
    ("tenants", "tenant", "POST /v1%2fcompletions", "400"),
    ("tenants", "tenant", "GET /%ff%fe", "404"),
    ("tenants", "tenant", "GET /%", "404"),
    ("operators", "operator", "GET /console/../../../../etc/passwd", "404"),
    ("operators", "operator", "GET /console/%2e%2e/config.py", "404"),
    ("operators", "operator", "GET /console/..%2fconfig.py", "404"),
    ("operators", "operator", "GET /console//etc/passwd", "404"),
    ("operators", "operator", "GET /admin/v1//tenants", "404"),
    ("operators", "operator", "GET /admin/v1/tenants/..%2f..%2fworkers", "404"),
    ("operators", "operator", "GET /admin/v1/tenants/%00", "404"),
    ("operators", "operator", "GET /admin/v1/tenants/*", "404"),
    ("operators", "nobody", "GET /admin/v1/tenants", "401"),
    ("operators", "nobody", "GET /console/../admin/v1/tenants", "404"),
    ("operators", "nobody", "GET //admin/v1/tenants", "404"),
    ("operators", "nobody", "GET /metrics", "401"),
    ("operators", "tenant", "GET /v1/models", "404"),
    ("metrics", "operator", "GET /admin/v1/tenants", "404"),
    ("metrics", "tenant", "GET /v1/models", "404"),
    ("metrics", "nobody", "GET /metrics/../admin/v1/tenants", "404"),
]
"""On which port, with whose key, what is asked, and the statuses that may answer it."""


def rows(server: Server) -> Iterator[Row]:
    """Each path."""
    keys: Mapping[Who, Mapping[str, str]] = {
        "nobody": {},
        "tenant": bearer(server.tenant("paths")),
        "operator": bearer(ADMIN_KEY),
    }
    ports: Mapping[Port, Address] = {
        "tenants": tenants(server),
        "operators": operators(server),
        "metrics": metrics(server),
    }
    for port, who, asked, expected in PATHS:
        method, _, path = asked.partition(" ")
        whose = "no key" if who == "nobody" else f"the {who}'s key"
        answer = heard(ports[port], request(method, path, keys[who]))
        yield compared(KIND, f"`{asked}` on the {port}' port, {whose}", expected, answer.outcome)
