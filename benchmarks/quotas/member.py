"""A whole gateway in a process of its own, whose budgets' minute is as long as its starter says.

python -m benchmarks.quotas.member WINDOW_MS; all else comes from the environment, as a gateway's settings do.
"""

import os
import sys

import uvloop

from fairlane.gateway import config, server
from fairlane.gateway.http.ports import listen
from fairlane.gateway.runtime.resources import Resources
from fairlane.quotas.windows import Slicing


async def serve(window_ms: int) -> None:
    """Until SIGTERM."""
    settings = config.read(config.parse([]), os.environ)
    sockets = await listen(settings)
    resources = Resources(settings, slicing=Slicing(window_ms))
    await server.Server(server.configure(settings, resources), resources).serve(sockets["tenants"])


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
