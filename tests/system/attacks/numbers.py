"""Numbers and lists in a request, and requests that are refused again and again."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping

from tests.support.system.harness import MODEL, Server
from tests.system.attacks.bodies import BODIES
from tests.system.attacks.rows import Row, compared
from tests.system.attacks.target import bearer, heard, request, tenants

KIND = "numbers"
PATH = "/v1/completions"


def _with(**fields: object) -> bytes:
    return json.dumps({"model": MODEL, "prompt": "a", "max_tokens": 1, **fields}).encode()


def _raw(field: str) -> bytes:
    return f'{{"model": "{MODEL}", "prompt": "a", "max_tokens": 1, {field}}}'.encode()


REQUESTS: Mapping[str, bytes] = {
    "129 prompts": _with(prompt=["a"] * 129),
    "129 choices": _with(n=129),
    "two prompts with 65 choices": _with(prompt=["a", "a"], n=65),
    "no prompt": _with(prompt=[]),
    "at least 10¹⁸ tokens of output": _with(min_tokens=10**18),
    "10³⁰ tokens of output": _with(max_tokens=10**30),
    "a number of 4,000 digits": _raw(f'"seed": {"7" * 4_000}'),
    "a number beyond all floats": _raw('"temperature": 1e999'),
    "a number that is none": _raw('"temperature": NaN'),
    "a number below 0": _with(temperature=-1),
    "10,000 stops": _with(stop=["a"] * 10_000),
    "a stop of 1 MB": _with(stop="a" * 1_000_000),
    "logprobs of 10⁹ tokens": _with(logprobs=10**9),
    "a bias for 100,000 tokens": _with(logit_bias={str(number): 1 for number in range(100_000)}),
    "token ids outside the vocabulary": _with(prompt=[2**40]),
    "token ids below 0": _with(prompt=[-1]),
    "a prompt beyond the context": _with(prompt=[1] * 100_000),
    "1,000 objects in each other": _raw('"stop": ' + '{"a": ' * 1_000 + "1" + "}" * 1_000),
    "half of a surrogate pair": _raw('"suffix": "\\ud800"'),
    "a text for a number": _with(max_tokens="1" * 10_000),
    "5,000 unknown fields": _raw(", ".join(f'"f{number}": 1' for number in range(5_000))),
}
"""Each of them too much."""


def rows(server: Server) -> Iterator[Row]:
    """Each is refused; and of those that are refused, not without end."""
    key = bearer(server.tenant("numbers"))
    for name, body in REQUESTS.items():
        yield compared(KIND, name, "400 or 413", heard(tenants(server), request("POST", PATH, key, body)).outcome)
    yield from _refused(server)


def _refused(server: Server) -> Iterator[Row]:
    """Bodies of 8 MB are 128 requests each, of 3,000 in a minute."""
    attacker, person = bearer(server.tenant("refused")), bearer(server.tenant("not-refused"))
    large, small = BODIES["texts"].made(), _with()
    asked = [heard(tenants(server), request("POST", PATH, attacker, large)).outcome for _ in range(40)]
    seen = ", ".join(f"{count} times {outcome}" for outcome, count in sorted(Counter(asked).items()))
    yield Row(KIND, "40 refused bodies of 8 MB", "24 or so times 400, then 429", seen, _ends_in_429(asked))
    while heard(tenants(server), request("POST", PATH, attacker, large)).outcome == "429":
        pass  # until one is read again, which leaves the bucket empty for 2.6 s
    seen = heard(tenants(server), request("POST", PATH, attacker, small)).outcome
    yield compared(KIND, "a right request after them", "429", seen)
    seen = heard(tenants(server), request("POST", PATH, person, small)).outcome
    yield compared(KIND, "another tenant's", "200", seen)


def _ends_in_429(outcomes: list[str]) -> bool:
    """Some a little later are right again: the bucket fills by one of them in 2.6 s."""
    first = outcomes.index("429") if "429" in outcomes else 0
    return 20 <= first <= 32 and set(outcomes[:first]) == {"400"} and outcomes[first:].count("429") >= 4
