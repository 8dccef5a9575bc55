"""The last responses of WebSockets, in memory only: a connection can continue from them though they are not stored."""

from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field

# Responses that one connection can continue from, and the bytes of those of a tenant and of all.
MOST_RESPONSES = 8
MOST_TENANT_BYTES, MOST_BYTES = 16 * 2**20, 64 * 2**20


@dataclass(eq=False)
class RecentResponses:
    """Those of all connections. A tenant with too many bytes loses its oldest ones, and so does the tenant with most if
    there are too many in total."""

    most_bytes: int = MOST_BYTES
    most_tenant_bytes: int = MOST_TENANT_BYTES
    held_bytes: int = field(default=0, init=False)
    # By tenant and response, oldest first.
    _kept: dict[str, OrderedDict[str, bytes]] = field(default_factory=dict, init=False)
    _tenant_bytes: Counter[str] = field(default_factory=Counter, init=False)

    def keep(self, tenant: str, response_id: str, content: bytes) -> None:
        self._kept.setdefault(tenant, OrderedDict())[response_id] = content
        self._add(tenant, len(content))
        while self._tenant_bytes[tenant] > self.most_tenant_bytes:
            self._forget_oldest(tenant)
        while self.held_bytes > self.most_bytes:
            self._forget_oldest(max(self._tenant_bytes, key=self._tenant_bytes.__getitem__))

    def read(self, tenant: str, response_id: str) -> bytes | None:
        own = self._kept.get(tenant)
        return None if own is None else own.get(response_id)

    def forget(self, tenant: str, response_id: str) -> None:
        own = self._kept.get(tenant, OrderedDict())
        if response_id in own:
            self._add(tenant, -len(own.pop(response_id)))
            if not own:
                del self._kept[tenant], self._tenant_bytes[tenant]

    def _forget_oldest(self, tenant: str) -> None:
        self.forget(tenant, next(iter(self._kept[tenant])))

    def _add(self, tenant: str, count: int) -> None:
        self.held_bytes += count
        self._tenant_bytes[tenant] += count


@dataclass(eq=False)
class Recent:
    """Those of one connection."""

    all: RecentResponses
    # Tenant and response, oldest first.
    _own: deque[tuple[str, str]] = field(default_factory=deque, init=False)
    # The one that the current message continues from.
    _asked: tuple[str, str] | None = field(default=None, init=False)

    def keep(self, tenant: str, response_id: str, content: bytes) -> None:
        if len(self._own) == MOST_RESPONSES:
            self.all.forget(*self._own.popleft())
        self._own.append((tenant, response_id))
        self.all.keep(tenant, response_id, content)

    def read(self, tenant: str, response_id: str) -> bytes | None:
        """Return a response that the connection still has, for the current message."""
        if (tenant, response_id) not in self._own:
            return None
        self._asked = tenant, response_id
        return self.all.read(tenant, response_id)

    def ended(self, *, has_failed: bool) -> None:
        """End a message. If it failed, forget the response that it continued from, as OpenAI does."""
        asked, self._asked = self._asked, None
        if has_failed and asked is not None and asked in self._own:
            self._own.remove(asked)
            self.all.forget(*asked)

    def close(self) -> None:
        while self._own:
            self.all.forget(*self._own.pop())
