"""One declaration for each operation of the API: routing, validation, roles and the OpenAPI document follow from it."""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from inspect import get_annotations, getdoc
from typing import Any, Literal, TypeVar, get_args

from pydantic import BaseModel
from starlette.responses import Response

from fairlane.gateway.control.admin.inputs import Nothing
from fairlane.gateway.control.operators.operator import Role
from fairlane.gateway.errors import Code

PREFIX = "/admin/v1"
JSON = "application/json"
Who = Literal["tenant", "admin", "anyone"]
OPERATOR: tuple[Code, ...] = ("invalid_api_key", "rate_limit_exceeded", "quota_store_unavailable", "role_not_allowed")
# Errors of calls with a body.
ANY_BODY: tuple[Code, ...] = ("request_timeout", "request_too_large", "unsupported_encoding", "overloaded_memory")
BY_SESSION: tuple[Code, ...] = ("origin_not_allowed",)

Handler = TypeVar("Handler", bound=Callable[..., Awaitable[Any]])


@dataclass(frozen=True, slots=True, kw_only=True)
class Documented:
    """An operation as the OpenAPI document describes it."""

    method: str
    path: str
    name: str
    summary: str
    who: Who
    query: type[BaseModel] | None = None
    # A model, a union of models, or a TypedDict that is sent as a form.
    body: Any = None
    status: int = 200
    # Content type → type of the response; for a stream, of each event's data.
    answers: Mapping[str, Any]
    # Errors in addition to those of the HTTP layer.
    codes: tuple[Code, ...] = ()
    # The response has an `ETag`.
    tagged: bool = False
    if_match: bool = False
    # The lowest operator role that may call it; None: any role, or not an operator's call.
    role: Role | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation(Documented):
    """An operation of the admin API, with its handler."""

    role: Role
    # The path with Starlette's converters.
    route: str
    handler: Callable[..., Awaitable[Any]]
    # The query of a GET, else the body. None: the handler reads a form.
    input: type[BaseModel] | None


class Operations(list[Operation]):
    """The operations of one module, in the order of their declaration."""

    def add(
        self,
        call: str,
        *,
        role: Role | None = None,
        status: int = 200,
        tagged: bool = False,
        media: tuple[str, ...] = (JSON,),
        form: object = None,
        codes: tuple[Code, ...] = (),
    ) -> Callable[[Handler], Handler]:
        """Declare the decorated handler as the operation that serves a call, such as `GET /tenants`.

        Its name, the first paragraph of its docstring, its second parameter and its return type are the operation's
        name, summary, input and response.

        Args:
            role: The lowest role that may call it; None: `viewer` for reads, `owner` for changes.
            tagged: The object has an `ETag`.
            media: Content types of the response.
            form: A TypedDict that is sent as multipart/form-data and read by the handler.
            codes: Errors in addition to those of all calls and `not_found` of the path.
        """
        method, path = call.split()
        changes = method != "GET"
        if_match = tagged and changes and ("{" in path or method == "PUT")
        known: list[Code] = ["invalid_request_error", *OPERATOR, *codes]
        known += ["not_found"] if "{" in path else []
        known += ["precondition_failed"] if if_match else []
        known += [*ANY_BODY, *BY_SESSION] if changes else []

        def declare(handler: Handler) -> Handler:
            hints = get_annotations(handler)
            answer = hints.pop("return")
            paragraph, *_ = (getdoc(handler) or "").split("\n\n")
            given = next((kind for name, kind in hints.items() if name != "call"), None)
            self.append(
                Operation(
                    method=method,
                    path=PREFIX + re.sub(r":\w+}", "}", path),
                    route=path,
                    name=handler.__name__,
                    summary=" ".join(paragraph.split()).removesuffix("."),
                    who="admin",
                    handler=handler,
                    input=None if form else given or Nothing,
                    query=None if changes else given,
                    body=(form or given) if changes else None,
                    status=status,
                    answers=dict.fromkeys(media, _document_of(answer)),
                    codes=tuple(known),
                    tagged=tagged and method != "DELETE",
                    if_match=if_match,
                    role=role or (Role.OWNER if changes else Role.VIEWER),
                )
            )
            return handler

        return declare


def _document_of(answer: Any) -> Any:  # noqa: ANN401 - any type
    kinds = [kind for kind in get_args(answer) if kind is not Response]
    if answer is Response:
        return str
    return kinds[0] if Response in get_args(answer) else answer
