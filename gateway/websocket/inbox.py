"""What a WebSocket has received and not answered: whole messages that wait, a part of one, and their memory."""

from collections import deque

from fairlane.gateway.errors import ApiError
from fairlane.gateway.http.body_budget import BodyBudget, BodyHold

# Messages behind the one that is being answered.
MOST_WAITING = 4
# Frames of a connection: this many, more with its bytes and its age. A client may split messages and send pings, but
# parsing takes about 10 µs a frame, however short it is.
MOST_FRAMES, FRAME_BYTES, FRAMES_PER_S = 256, 256, 16


class Inbox:
    """The messages of one connection."""

    def __init__(self, bodies: BodyBudget, tenant: str, now_s: float) -> None:
        self._bodies, self._tenant = bodies, tenant
        self._began_s = now_s
        self.frames = 0
        self._received_bytes = 0
        self._parts: list[bytes] = []
        self._hold = self._new_hold()
        self._waiting: deque[tuple[bytes, BodyHold]] = deque()

    def __len__(self) -> int:
        """Whole messages that wait."""
        return len(self._waiting)

    @property
    def has_part(self) -> bool:
        return bool(self._parts)

    def count_bytes(self, count: int) -> ApiError | None:
        """Count received bytes. Return the error if the tenant has no room for them."""
        self._received_bytes += count
        if self._hold.takes(count):
            return None
        refusal, self._hold.refusal = self._hold.refusal, None
        return refusal

    def is_flooded(self, now_s: float) -> bool:
        """Whether there were more frames than the bytes and the age of the connection explain."""
        allowed = self._received_bytes // FRAME_BYTES + int((now_s - self._began_s) * FRAMES_PER_S)
        return self.frames > MOST_FRAMES + allowed

    def put(self, part: bytes, *, is_last: bool) -> bool:
        """Add a part of a message. Return False if too many messages wait."""
        self._parts.append(part)
        if is_last and len(self._waiting) < MOST_WAITING:
            self._waiting.append((b"".join(self._parts), self._hold))
            self._hold = self._new_hold()
            self._parts.clear()
        return not (is_last and self._parts)

    def take(self) -> tuple[bytes, BodyHold]:
        return self._waiting.popleft()

    def release_rest(self) -> None:
        """Hold nothing for what came beside messages."""
        if self._hold.held_bytes:
            self._hold.release()
            self._hold = self._new_hold()

    def forget_waiting(self) -> None:
        for _, hold in self._waiting:
            hold.release()
        self._waiting.clear()

    def close(self) -> None:
        self.forget_waiting()
        self._parts.clear()
        self._hold.release()

    def _new_hold(self) -> BodyHold:
        hold = BodyHold(self._bodies)
        hold.claim(self._tenant, 0)
        return hold
