"""The console's sessions, forged and stolen."""

from collections.abc import Iterator, Mapping
from contextlib import closing

import httpx

from tests.support.system.harness import ADMIN_KEY, Server
from tests.system.attacks.rows import Row, compared
from tests.system.attacks.target import bearer, heard, operators, request, tenants

KIND = "cookies"
TENANTS, SESSION = "/admin/v1/tenants", "/console/session"


def rows(server: Server) -> Iterator[Row]:
    """What a cookie opens, and what it does not."""
    own = {"origin": server.admin_url, "x-fairlane-csrf": "1"}
    with closing(httpx.Client(base_url=server.admin_url, timeout=30.0)) as http:

        def status(method: str, path: str, headers: Mapping[str, str], body: object = None) -> str:
            http.cookies.clear()
            return str(http.request(method, path, headers=dict(headers), json=body).status_code)

        signed_in = http.post(SESSION, headers={**own, **bearer(ADMIN_KEY)})
        given = signed_in.headers["set-cookie"]
        session = {"cookie": given.partition(";")[0]}
        yield compared(KIND, "the cookie, for a script", "kept from it", _kept_from_scripts(given))
        forged = {
            "a forged session": "fairlane=" + "A" * 43,
            "an empty session": "fairlane=",
            "a session of 8,000 bytes": "fairlane=" + "A" * 8_000,
            "a session beyond ASCII": "fairlane=\xff\xfe",
            "a forged session before a real one": f"fairlane=A; {session['cookie']}",
            "a real session under another name": session["cookie"].replace("fairlane", "__Host-fairlane"),
        }
        for name, cookie in forged.items():
            asked = request("GET", TENANTS, {"cookie": cookie})
            yield compared(KIND, name, "401", heard(operators(server), asked).outcome)
        stolen: Mapping[str, dict[str, str]] = {
            "without `Origin` and CSRF header": {},
            "without `Origin`": {"x-fairlane-csrf": "1"},
            "without the CSRF header": {"origin": server.admin_url},
            "from another site": own | {"origin": "http://elsewhere"},
            "from a site whose name begins like it": own | {"origin": f"{server.admin_url}.elsewhere"},
            "from a page of no origin": own | {"origin": "null"},
            "from the tenants' port": own | {"origin": server.url},
        }
        for name, headers in stolen.items():
            seen = status("POST", TENANTS, session | headers, {"id": "stolen"})
            yield compared(KIND, f"a stolen session that writes {name}", "403", seen)
        seen = status("POST", TENANTS, session | own, {"id": "of-a-session"})
        yield compared(KIND, "the console's own page", "201", seen)
        seen = status("GET", TENANTS, {**session, **bearer("wrong")})
        yield compared(KIND, "a session beside a wrong key", "401", seen)
        seen = heard(tenants(server), request("GET", "/metrics", session)).outcome
        yield compared(KIND, "a session on the tenants' port", "401", seen)
        seen = status("POST", SESSION, {**own, **bearer(server.tenant("cookies"))})
        yield compared(KIND, "signing in with a tenant's key", "401", seen)
        seen = status("POST", SESSION, session | own)
        yield compared(KIND, "a session that renews itself", "401", seen)
        ended = f"{status('DELETE', SESSION, session | own)}, then {status('GET', TENANTS, session)}"
        yield compared(KIND, "a session that was signed out", "204, then 401", ended)


def _kept_from_scripts(cookie: str) -> str:
    attributes = {part.strip() for part in cookie.split(";")[1:]}
    missing = {"HttpOnly", "SameSite=Strict"} - attributes
    return f"without {', '.join(sorted(missing))}" if missing else "kept from it"
