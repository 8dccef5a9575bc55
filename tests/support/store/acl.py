"""Change a store's settings and users for one test."""

from collections.abc import Iterator
from contextlib import contextmanager

import redis

from tests.support.store import topology


@contextmanager
def administering(url: str) -> Iterator["redis.Redis"]:
    """Open a client that may change the server's settings and users; what it changed is taken back at the end."""
    with redis.from_url(topology.one_server(url)) as client:
        yield client
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", 0)
        client.config_set("appendonly", "yes")
        client.acl_deluser("bounded")


def user_url(admin: "redis.Redis", url: str, *rules: str) -> str:
    """Make the user `bounded` with these rules of ACL SETUSER; the same server's URL with it."""
    admin.execute_command("ACL", "SETUSER", "bounded", "reset", "on", ">any", *rules)  # type: ignore[no-untyped-call]
    scheme, _, rest = url.partition("://")
    return f"{scheme}://bounded:any@{rest}"
