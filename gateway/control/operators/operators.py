"""Authentication of operators: by the admin key or a token if one is sent, else by the session."""

from starlette.types import Scope

from fairlane.gateway.control.operators.admin_key import AdminKeys, Guesses
from fairlane.gateway.control.operators.admin_tokens import AdminTokens, operator_of
from fairlane.gateway.control.operators.operator import OWNER, Operator
from fairlane.gateway.control.operators.sessions import Sessions, check_origin, session_of
from fairlane.gateway.errors import invalid_api_key
from fairlane.gateway.identity.credentials import bearer


class Operators:
    """Authenticates the operators of an installation. Every call may raise redis.RedisError."""

    def __init__(
        self, admin_keys: AdminKeys, tokens: AdminTokens, sessions: Sessions, guesses: Guesses | None = None
    ) -> None:
        self.tokens = tokens
        self.sessions = sessions
        self._admin_keys = admin_keys
        self._guesses = guesses or Guesses()

    async def calling(self, scope: Scope, address: str) -> Operator:
        """Return the operator of a call.

        Raises ApiError as `showing` does, and `origin_not_allowed` if another site may have sent the request."""
        if _shows_secret(scope):
            return await self.showing(scope, address)
        check_origin(scope)
        return await self.sessions.operator(session_of(scope) or "")

    async def showing(self, scope: Scope, address: str) -> Operator:
        """Return the operator of a request with the admin key or a token.

        Raises ApiError `invalid_api_key`, with a delay after many wrong keys from one address, and
        `rate_limit_exceeded`."""
        operator = await self._of_secret(bearer(scope["headers"]))
        if operator is None:
            await self._guesses.slow(address)
            raise invalid_api_key()
        return operator

    async def still(self, scope: Scope) -> Operator:
        """Return the operator of a call in progress. Raises ApiError `invalid_api_key` once the credentials are not
        valid."""
        if not _shows_secret(scope):
            return await self.sessions.operator(session_of(scope) or "")
        operator = await self._of_secret(bearer(scope["headers"]))
        if operator is None:
            raise invalid_api_key()
        return operator

    async def _of_secret(self, secret: str) -> Operator | None:
        token = await self.tokens.shown(secret)
        if token is not None:
            return operator_of(token)
        return OWNER if await self._admin_keys.works(secret) else None


def _shows_secret(scope: Scope) -> bool:
    return session_of(scope) is None or any(name == b"authorization" for name, _ in scope["headers"])
