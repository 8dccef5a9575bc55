"""Requests that are no HTTP/1.1, or too much of it: each is refused or served, never both, and nothing hangs.

Each shape ends its connection where it is served, so one that is read as two requests is answered twice.
"""

from collections.abc import Iterator, Mapping

from tests.support.system.harness import Server
from tests.system.attacks.rows import Row, compared
from tests.system.attacks.target import heard, tenants

KIND = "HTTP shapes"
_HEAD = "GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
_POST = "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer KEY\r\n"
_WEB_SOCKET = (
    "GET /v1/responses HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    "authorization: Bearer KEY\r\nsec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
_HIDDEN = "GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n"


def _line(line: str) -> str:
    return f"{line}\r\nhost: x\r\nconnection: close\r\n\r\n"


def _header(header: str) -> str:
    return f"{_HEAD}{header}\r\n\r\n"


def _framed(framing: str, body: str = "") -> str:
    return f"{_POST}{framing}\r\n\r\n{body}"


def _chunked(chunks: str) -> str:
    return _framed("transfer-encoding: chunked", chunks)


SHAPES: Mapping[str, tuple[str, str]] = {
    "bytes that are no request": ("nonsense\r\n\r\n", "400"),
    "a TLS greeting": ("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "400"),
    "the preface of HTTP/2": ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "400"),
    "a request of HTTP/0.9": ("GET /healthz\r\n\r\n", "400"),
    "the version HTTP/0.9": (_line("GET /healthz HTTP/0.9"), "400"),
    "the version HTTP/2.0": (_line("GET /healthz HTTP/2.0"), "400"),
    "the version HTTP/1.9": (_line("GET /healthz HTTP/1.9"), "400"),
    "the version HTTQ/1.1": (_line("GET /healthz HTTQ/1.1"), "400"),
    "HTTP/1.0 without a host": ("GET /healthz HTTP/1.0\r\n\r\n", "200"),
    "HTTP/1.0 with chunks": ("POST /healthz HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", "400"),
    "no method": (_line(" /healthz HTTP/1.1"), "400"),
    "a method in lower case": (_line("get /healthz HTTP/1.1"), "400"),
    "a method that nobody knows": (_line("STEAL /healthz HTTP/1.1"), "400"),
    "a method of 10,000 letters": (_line("G" * 10_000 + " /healthz HTTP/1.1"), "400"),
    "TRACE": (_line("TRACE /healthz HTTP/1.1"), "405"),
    "CONNECT": (_line("CONNECT other:443 HTTP/1.1"), "400"),
    "OPTIONS *": (_line("OPTIONS * HTTP/1.1"), "400 or 404"),
    "no path": (_line("GET  HTTP/1.1"), "400"),
    "a space in the path": (_line("GET /health z HTTP/1.1"), "400"),
    "a NUL in the path": (_line("GET /health\0z HTTP/1.1"), "400"),
    "a byte above 127 in the path": (_line("GET /health\xffz HTTP/1.1"), "400 or 404"),
    "an absolute URI": (_line("GET http://x/healthz HTTP/1.1"), "200"),
    "an absolute URI with an impossible port": (_line("GET http://x:99999999/healthz HTTP/1.1"), "400"),
    "an authority for a path": (_line("GET x:80 HTTP/1.1"), "400"),
    "a path of 40,000 bytes": (_line(f"GET /{'a' * 40_000} HTTP/1.1"), "431"),
    "a header injected by the path": (_line("GET /%0d%0aset-cookie:%20a=b HTTP/1.1"), "404"),
    "a header injected by the request id": (_header("x-request-id: a%0d%0aset-cookie: a=b"), "200"),
    "empty lines before a request": ("\r\n" * 10_000 + _HEAD + "\r\n", "200"),
    "empty lines without end": ("\r\n" * 30_000, "431"),
    "no host": ("GET /healthz HTTP/1.1\r\nconnection: close\r\n\r\n", "400"),
    "two hosts": (_header("host: y"), "400"),
    "a header of 40,000 bytes": (_header("x: " + "a" * 40_000), "431"),
    "a header without end": (_HEAD + "x: " + "a" * 1_000_000, "431"),
    "200 headers": (_header("\r\n".join(["a: b"] * 200)), "431"),
    "an API key of 40,000 bytes": (_header("authorization: Bearer " + "a" * 40_000), "431"),
    "a folded header": (_header("x: a\r\n b"), "400"),
    "a space before the first header": ("GET /healthz HTTP/1.1\r\n x: a\r\nhost: x\r\n\r\n", "400"),
    "a space before the colon": (_header("x : a"), "400"),
    "a header without a colon": (_header("xa"), "400"),
    "a header without a name": (_header(": a"), "400"),
    "a NUL in a header": (_header("x: a\0b"), "400"),
    "a NUL in a header's name": (_header("x\0: a"), "400"),
    "a bare CR in a header": (_header("x: a\rset-cookie: b"), "400"),
    "lines that end in LF alone": (_header("x: a").replace("\r\n", "\n"), "400"),
    "a header's name above 127": (_header("x\xe9: a"), "400"),
    "a wish for a web socket": (
        "GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: upgrade, close\r\nupgrade: websocket\r\n\r\n",
        "200",
    ),
    "a web socket, and 20,000 empty frames": (_WEB_SOCKET + "\x89\x80\0\0\0\0" * 20_000, "426 or 426 400 or closed"),
    "a body's length twice": (_framed("content-length: 2\r\ncontent-length: 2", "{}"), "400"),
    "two lengths of a body": (_framed("content-length: 2\r\ncontent-length: 40", "{}" + _HIDDEN), "400"),
    "a length with a list": (_framed("content-length: 2, 2", "{}"), "400"),
    "a length below 0": (_framed("content-length: -2", "{}"), "400"),
    "a length with a sign": (_framed("content-length: +2", "{}"), "400"),
    "a length in hexadecimal": (_framed("content-length: 0x2", "{}"), "400"),
    "an empty length": (_framed("content-length: ", "{}"), "400"),
    "a length of 40 digits": (_framed("content-length: " + "9" * 40), "400"),
    "a length of 18 digits": (_framed("content-length: " + "9" * 18), "413"),
    "a length and chunks": (
        _framed(f"content-length: {4 + len(_HIDDEN)}\r\ntransfer-encoding: chunked", "0\r\n\r\n" + _HIDDEN),
        "400",
    ),
    "chunks and a length": (_framed("transfer-encoding: chunked\r\ncontent-length: 5", "0\r\n\r\n" + _HIDDEN), "400"),
    "chunks twice": (_framed("transfer-encoding: chunked\r\ntransfer-encoding: chunked", "0\r\n\r\n"), "400"),
    "a coding that is none": (_framed("transfer-encoding: xchunked", "0\r\n\r\n"), "400"),
    "a coding that hides another": (_framed("transfer-encoding: chunked, identity", "0\r\n\r\n"), "400"),
    "a compressed coding": (_framed("transfer-encoding: gzip, chunked", "0\r\n\r\n"), "400"),
    "a chunk's size that is none": (_chunked("size\r\n"), "400"),
    "a chunk's size below 0": (_chunked("-1\r\n{\r\n"), "400"),
    "a chunk's size with a prefix": (_chunked("0x2\r\n{}\r\n0\r\n\r\n"), "400"),
    "a chunk's size of 17 digits": (_chunked("F" * 17 + "\r\n{}"), "400"),
    "a chunk longer than its size": (_chunked("2\r\n{}{}\r\n0\r\n\r\n"), "400"),
    "a chunk's size that ends in LF alone": (_chunked("2\n{}\r\n0\r\n\r\n"), "400"),
    "a chunk's extension without end": (_chunked("2;" + "a" * 1_000_000), "400 or 431"),
    "trailers without end": (_chunked("2\r\n{}\r\n0\r\n" + "a: b\r\n" * 100_000), "400 or 431"),
}
"""What is sent, with KEY for a tenant's, and the statuses of all that may be answered."""


def rows(server: Server) -> Iterator[Row]:
    """Each shape, and what is left of the server after them."""
    key, logged = server.tenant("shapes"), len(server.log())
    for name, (shape, expected) in SHAPES.items():
        answer = heard(tenants(server), shape.replace("KEY", key).encode("latin-1"))
        injected = b"\nset-cookie" in answer.raw.lower()
        yield compared(KIND, name, expected, "a header injected" if injected else answer.outcome)
    alive = heard(tenants(server), f"{_HEAD}\r\n".encode()).outcome
    faults = "faults in the log" if "failed\n" in server.log()[logged:] else "no fault in the log"
    yield compared(KIND, "the server, after all of these", "200, no fault in the log", f"{alive}, {faults}")
