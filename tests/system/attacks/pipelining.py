"""Requests sent ahead of their answers: those within the bound are answered, then the connection is closed."""

import json
from collections.abc import Iterator

from tests.support.system.harness import MODEL, Server
from tests.system.attacks.rows import Row
from tests.system.attacks.target import KEPT_OPEN, bearer, heard, request, tenants

KIND = "pipelining"
SENT = 1_000
WITHIN = 17
"""One that is answered, and 16 that wait behind it."""


def rows(server: Server) -> Iterator[Row]:
    """A thousand of each in one piece."""
    key = KEPT_OPEN | bearer(server.tenant("pipelining"))
    body = json.dumps({"model": MODEL, "prompt": "a", "max_tokens": 1}).encode()
    asked = {
        "probes": request("GET", "/healthz", KEPT_OPEN),
        "questions without a key": request("GET", "/v1/models", KEPT_OPEN),
        "questions": request("GET", "/v1/models", key),
        "prompts": request("POST", "/v1/completions", key, body),
    }
    for name, one in asked.items():
        answer = heard(tenants(server), one * SENT)
        expected = f"{WITHIN} times {401 if 'without' in name else 200}, then closed"
        seen = _told(answer.statuses, ended=answer.ended)
        yield Row(KIND, f"{SENT:,} {name}, sent at once", expected, seen, seen == expected)
    answer = heard(tenants(server), asked["questions"] * 3 + b"nonsense\r\n\r\n")
    is_well = answer.ended and set(answer.statuses) <= {200, 400}
    seen = _told(answer.statuses, ended=answer.ended)
    yield Row(KIND, "three questions and nonsense behind them", "200 or 400 alone, then closed", seen, is_well)


def _told(statuses: tuple[int, ...], *, ended: bool) -> str:
    counted = {status: statuses.count(status) for status in sorted(set(statuses))}
    answers = ", ".join(f"{count} times {status}" for status, count in counted.items()) or "nothing"
    return f"{answers}, then {'closed' if ended else 'silence'}"
