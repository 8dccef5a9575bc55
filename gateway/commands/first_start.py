"""What `serve` prepares in an empty store, so that the first request works as pasted."""

import redis.asyncio

from gateway.operators import AdminKeys
from quotas.api_keys import KeyStore
from quotas.tenants import TenantExists, TenantStore
from scheduler.settings import SharedSettings

DEMO = "demo"
_CURL = """\
  curl {url}/v1/chat/completions -H 'Authorization: Bearer {key}' -H 'Content-Type: application/json' \\
    -d '{{"model": "{model}", "max_tokens": 64, "temperature": 0,
         "messages": [{{"role": "user", "content": "What is the capital of France?"}}]}}'
"""


async def first_start(client: redis.asyncio.Redis, budgets: redis.asyncio.Redis, settings: SharedSettings) -> str:
    """Make the admin key and the `demo` tenant where there are none yet; what to tell the operator, ready to print.

    `budgets`: the store of tenants. Both keys are shown here and never again. Raises redis.RedisError,
    StoreUnavailable.
    """
    greeting = ""
    admin_key = await AdminKeys(client, settings.admin_key).ensure()
    if admin_key is not None:
        greeting += f"Admin key, shown this once: {admin_key}\n"
    demo_key = await _demo_key(budgets)
    if demo_key is not None:
        curl = _CURL.format(url=settings.url, key=demo_key, model=settings.model)
        greeting += f"A tenant `{DEMO}` with one key, shown this once. Try:\n{curl}"
    return greeting


async def _demo_key(client: redis.asyncio.Redis) -> str | None:
    tenants = TenantStore(client)
    if await tenants.list(limit=1):
        return None
    try:
        demo = await tenants.create({"id": DEMO, "name": "Demo"})
    except TenantExists:  # another `serve` on the same store was quicker
        return None
    return (await KeyStore(client).create(demo, {"name": "demo"})).secret
