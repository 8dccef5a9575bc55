"""What a door says of schemas and grammars: served, or refused by name; and nothing that it is sent ends it."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from typing import ClassVar

import msgspec
import psutil
import pytest

from fairlane.gateway.dialects.grammar import checker as grammar_checker
from fairlane.gateway.dialects.grammar.check_process import CheckResult
from fairlane.gateway.dialects.grammar.checker import MOST_WAITING, SLOW_S, GrammarChecker
from fairlane.gateway.dialects.grammar.structure import Structure
from fairlane.gateway.errors import ApiError
from fairlane.scheduler.protocol.grammar_limits import MAX_COMPILED_BYTES

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
PARAM = "response_format"
NESTED: object = {}
for _ in range(100):
    NESTED = {"type": "object", "properties": {"a": NESTED}}


@pytest.fixture
async def checker() -> AsyncIterator[GrammarChecker]:
    made = GrammarChecker()
    yield made
    await made.aclose()


async def fault_of(checker: GrammarChecker, structure: Structure, tenant: str = "acme") -> ApiError:
    with pytest.raises(ApiError) as refused:
        await checker.check(structure, tenant)
    return refused.value


def children() -> list[psutil.Process]:
    """The processes that check grammars; other tests have some of their own."""
    module = "fairlane.gateway.dialects.grammar.check_process"
    return [each for each in psutil.Process().children() if module in each.cmdline()]


def grammar(text: str) -> Structure:
    return Structure("grammar", text, PARAM)


def json_structure(schema: object, param: str) -> Structure:
    return Structure("json_schema", json.dumps(schema), param)


def choice_structure(choices: list[str], param: str) -> Structure:
    return Structure("choice", json.dumps(choices), param)


def regex(text: str) -> Structure:
    return Structure("regex", text, PARAM)


@pytest.mark.parametrize(
    "structure",
    [
        json_structure({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, PARAM),
        json_structure({}, PARAM),
        json_structure(True, PARAM),
        json_structure({"type": "array", "items": {"$ref": "#"}}, PARAM),
        json_structure({"enum": [f"value{number}" for number in range(4_000)]}, PARAM),
        json_structure({"oneOf": [{"type": "null"}, {"$ref": "#/$defs/a"}], "$defs": {"a": {"const": 1}}}, PARAM),
        json_structure({"x-guidance": {"item_separator": "(((", "nothing": 1}}, PARAM),
        choice_structure(["yes", 'n"o', "später"], PARAM),
        regex("(a|b)+c?"),
        grammar('start: "a" | "b" start'),
        grammar('root ::= "a" | "b" root'),
        grammar('start: e\ne: e "+" e | e "*" e | "(" e ")" | /[0-9]+/'),
        grammar('start: w+\nw: /[a-z]+/ " "?'),
    ],
    ids=repr,
)
async def test_what_can_be_served_becomes_a_grammar(checker: GrammarChecker, structure: Structure) -> None:
    checked = await checker.check(structure, "acme")

    assert checked.text
    assert 0 < checked.compiled_bytes <= MAX_COMPILED_BYTES


@pytest.mark.parametrize(
    ("structure", "word"),
    [
        (json_structure({"not": {}}, PARAM), "false"),
        (json_structure({"$ref": "https://example.com/schema"}, PARAM), "https://example.com/schema"),
        (json_structure({"type": "integer", "minimum": 5, "maximum": 1}, PARAM), "minimum"),
        (json_structure({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, PARAM), ""),
        (json_structure(False, PARAM), "false"),
        (json_structure(NESTED, PARAM), "recursion"),
        (json_structure({"allOf": [{"anyOf": [{"properties": {f"p{i}{k}": {}}} for k in range(3)]}
                                   for i in range(12)]}, PARAM), "too large"),
        (regex("(a"), "unclosed"),
        (regex("(?=a)b"), "look-around"),
        (regex("(" * 2_000 + "a" + ")" * 2_000), ""),
        (regex("((((.{0,200}){0,200}){0,200})a){3}b"), "too many"),
        (grammar("start: foo"), "foo"),
        (grammar("start: " + "(" * 20_000 + '"a"' + ")" * 20_000), "nested"),
        (grammar("root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000), "recursion"),
        (grammar('start: start "a"'), ""),
        (choice_structure(["a" * 100_000], PARAM), "longer"),
        (grammar("start: s\ns: s s | X\nX: /[a-z ]/"), "ms to find what may follow"),
        (grammar("start: s\ns: s s s | s s | X\nX: /[a-z ]/"), "ms to find what may follow"),
        (json_structure({"type": "integer", "multipleOf": 40009}, PARAM), "memory"),
    ],
    ids=repr,
)  # fmt: skip
async def test_what_cannot_is_refused_and_names_its_cause(
    checker: GrammarChecker, structure: Structure, word: str
) -> None:
    fault = await fault_of(checker, structure)

    assert fault.code == "invalid_request_error"
    assert fault.param in (PARAM, f"{PARAM}.$ref")
    assert word in fault.message
    assert len(fault.message) < 300
    assert await checker.check(choice_structure(["a"], PARAM), "acme")


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"not": {"const": 1}}, "not"),
        ({"x-guidance": {"lenient": True}, "if": {}, "then": {"const": 1}}, "if"),
        ({"x-guidance": {"coerce_one_of": True}, "oneOf": [{}, {}]}, "oneOf"),
        ({"properties": {"a": {"type": "array", "uniqueItems": True}}}, "properties.a.uniqueItems"),
        ({"items": [{}, {"type": "string", "pattern": "(?!a)"}]}, "items.[1].pattern"),
        ({"anyOf": [{"not": {"const": 1}}, {"type": "colour"}]}, "anyOf.[0].not"),
        ({"oneOf": [{"type": "null"}, {"type": "string", "pattern": "(?!a)"}]}, "oneOf.[1].pattern"),
        ({"items": {"$ref": "#/$defs/a"}, "$defs": {"a": {"minItems": "1"}}}, "$defs.a.minItems"),
        ({"propertyNames": {"enum": ["a"]}, "additionalProperties": {"contains": {"const": 1}}},
         "additionalProperties.contains"),
        ({"properties": {"a\n" * 99: {"$ref": "https://example.com/a"}}}, f"properties.{'a?' * 32}….$ref"),
    ],
    ids=repr,
)  # fmt: skip
async def test_a_keyword_that_cannot_be_enforced_is_named_with_its_path(
    checker: GrammarChecker, schema: object, path: str
) -> None:
    fault = await fault_of(checker, json_structure(schema, PARAM))

    assert fault.param == f"{PARAM}.{path}"
    assert fault.param in fault.message


async def test_one_that_takes_too_long_is_refused_and_the_next_one_served(
    checker: GrammarChecker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await checker.check(json_structure({}, PARAM), "acme")
    monkeypatch.setattr(grammar_checker, "TIMEOUT_S", 0.0)
    assert "takes more than" in (await fault_of(checker, json_structure({"type": "null"}, PARAM))).message
    monkeypatch.undo()

    assert await checker.check(json_structure({"type": "boolean"}, PARAM), "acme")


async def test_a_child_that_was_killed_is_replaced(checker: GrammarChecker) -> None:
    await checker.check(json_structure({}, PARAM), "acme")
    for child in children():
        child.kill()
        child.wait()

    assert await checker.check(json_structure({"type": "boolean"}, PARAM), "acme")


async def test_a_tenant_with_many_leaves_the_others_a_child(checker: GrammarChecker) -> None:
    many = [json_structure({"const": number}, PARAM) for number in range(MOST_WAITING + 1)]
    results = asyncio.gather(*(checker.check(each, "greedy") for each in many), return_exceptions=True)
    other = await checker.check(json_structure({"type": "null"}, PARAM), "modest")

    refused = [result for result in await results if isinstance(result, ApiError)]
    assert other
    assert [fault.code for fault in refused] == ["overloaded"]


class HandChild:
    """A child that answers when it is told, as if it had computed for so long."""

    begun: ClassVar[dict[str, asyncio.Future[float]]]
    """Checks, by what they are of, in the order in which they began."""
    order: ClassVar[list[str]]
    """The same; one that was stopped and began again is there twice."""

    async def ask(self, structure: Structure, begun: Callable[[], None]) -> CheckResult:
        begun()
        self.order.append(structure.text)
        spent_s = self.begun[structure.text] = asyncio.get_running_loop().create_future()
        return CheckResult(grammar="checked", spent_s=await spent_s)

    async def kill(self) -> None:
        """There is nothing to end."""


async def turns() -> None:
    """Let every task go on until it waits for a child."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
async def by_hand(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[GrammarChecker]:
    monkeypatch.setattr(grammar_checker, "_Child", HandChild)
    HandChild.begun, HandChild.order = {}, []
    made = GrammarChecker()
    yield made
    await made.aclose()


async def test_a_newcomer_waits_for_no_tenant_whose_checks_are_slow(by_hand: GrammarChecker) -> None:
    begun, slow = HandChild.begun, [f"slow-{number}" for number in range(4)]
    async with asyncio.TaskGroup() as checks:
        for name in slow:
            checks.create_task(by_hand.check(grammar(f"first of {name}"), name))
        for name in slow:  # all at the same time, as nobody knows yet that they are slow
            await turns()
            begun[f"first of {name}"].set_result(SLOW_S * 2)
    async with asyncio.TaskGroup() as checks:
        for name in slow:
            checks.create_task(by_hand.check(grammar(f"next of {name}"), name))
        await turns()
        for name in ("newcomer", "another"):
            checks.create_task(by_hand.check(grammar(name), name))
            await turns()
        assert [*begun][4:] == ["next of slow-0", "newcomer"]

        begun["next of slow-0"].set_result(SLOW_S / 2)  # it is slow no more
        await turns()
        assert [*begun][6:] == ["another"]
        checks.create_task(by_hand.check(grammar("a third of slow-0"), "slow-0"))
        await turns()
        begun["newcomer"].set_result(0.0)
        await turns()
        assert [*begun][7:] == ["a third of slow-0"]
        begun["another"].set_result(0.0)
        begun["a third of slow-0"].set_result(0.0)
        for name in slow[1:]:
            await turns()
            begun[f"next of {name}"].set_result(0.0)


async def test_a_first_burst_of_slow_tenants_leaves_a_child_to_those_who_come_after_it(
    by_hand: GrammarChecker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows yet that they are slow. Each check is long as soon as it has begun, and none ends by itself."""
    monkeypatch.setattr(grammar_checker, "SLOW_S", 0.0)
    burst = [f"burst-{number}" for number in range(4)]
    checks = {name: asyncio.create_task(by_hand.check(grammar(name), name)) for name in burst}
    await turns()
    assert HandChild.order == burst
    assert not any(check.done() for check in checks.values())

    checks["newcomer"] = asyncio.create_task(by_hand.check(grammar("newcomer"), "newcomer"))
    await turns()
    assert HandChild.order == [*burst, "newcomer"]
    HandChild.begun["newcomer"].set_result(0.0)
    await turns()
    assert checks["newcomer"].done()

    for name in burst:  # those that were stopped begin again, one after the other
        await turns()
        HandChild.begun[name].set_result(1.0)
    for check in checks.values():
        assert (await check).text == "checked"
    assert HandChild.order == [*burst, "newcomer", *burst[1:]]


async def test_a_check_is_stopped_only_once_it_is_long_and_another_tenant_waits(
    by_hand: GrammarChecker, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = [asyncio.create_task(by_hand.check(grammar(name), name)) for name in "abc"]
    await turns()
    assert HandChild.order == ["a", "b"]  # neither is long yet
    HandChild.begun["a"].set_result(0.0)
    await turns()
    monkeypatch.setattr(grammar_checker, "SLOW_S", 0.0)
    HandChild.begun["b"].set_result(0.0)
    HandChild.begun["c"].set_result(0.0)
    checks += [asyncio.create_task(by_hand.check(grammar(name), name)) for name in "de"]
    await turns()
    assert HandChild.order == [*"abcde"]  # both are long, and nobody waits
    checks.append(asyncio.create_task(by_hand.check(grammar("f"), "f")))
    await turns()
    assert HandChild.order == [*"abcdef"]
    HandChild.begun["d"].set_result(0.0)
    HandChild.begun["f"].set_result(0.0)
    await turns()
    HandChild.begun["e"].set_result(0.0)
    await asyncio.gather(*checks)
    assert HandChild.order == [*"abcdefe"]


async def test_checks_that_were_stopped_are_answered_by_the_children_that_replace_theirs(
    checker: GrammarChecker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_checker, "SLOW_S", 0.0)
    schemas = [
        json_structure({"enum": [f"value{place}" for place in range(2_000 + number)]}, PARAM) for number in range(4)
    ]
    answers = await asyncio.gather(*(checker.check(each, f"tenant-{n}") for n, each in enumerate(schemas)))
    assert all(answer.text for answer in answers)


def test_a_child_tells_the_processor_time_of_a_check() -> None:
    asked = [Structure("json_schema", text, PARAM) for text in ('{"type": "integer"}', "[")]
    lines = b"".join(msgspec.json.encode(each) + b"\n" for each in asked)
    child = [sys.executable, "-m", "fairlane.gateway.dialects.grammar.check_process"]
    told = subprocess.run(child, input=lines, capture_output=True, check=True).stdout

    results = [msgspec.json.decode(line, type=CheckResult) for line in told.splitlines()]
    assert [bool(result.fault) for result in results] == [False, True]
    assert all(0.0 < result.spent_s < 2.0 for result in results)


async def test_a_check_that_is_given_up_while_it_waits_takes_no_child(by_hand: GrammarChecker) -> None:
    begun = HandChild.begun
    checks = [asyncio.create_task(by_hand.check(grammar(name), name)) for name in "abcd"]
    await turns()
    assert [*begun] == ["a", "b"]
    checks[2].cancel()
    begun["a"].set_result(0.0)
    await asyncio.sleep(0)
    checks[3].cancel()  # it has been lent a child, and does not know yet
    await turns()
    begun["b"].set_result(0.0)
    checks += [asyncio.create_task(by_hand.check(grammar(name), name)) for name in "ef"]
    await turns()

    assert [*begun][-2:] == ["e", "f"]
    begun["e"].set_result(0.0)
    begun["f"].set_result(0.0)
    await asyncio.gather(*checks, return_exceptions=True)


async def test_a_client_that_leaves_ends_its_check_alone(checker: GrammarChecker) -> None:
    leaving = asyncio.create_task(checker.check(json_structure({"type": "null"}, PARAM), "acme"))
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving

    assert await checker.check(json_structure({"type": "null"}, PARAM), "acme")


async def test_a_result_is_dropped_a_while_after_its_last_use(by_hand: GrammarChecker) -> None:
    """A deleted tenant's schema must not stay in memory until others take its place."""
    begun, brief = HandChild.begun, GrammarChecker(kept_s=0.0)
    for checker in (by_hand, brief):
        begun.clear()
        checking = asyncio.create_task(checker.check(grammar("secret"), "acme"))
        await turns()
        begun["secret"].set_result(0.0)
        await checking
    await turns()

    assert by_hand.kept_bytes > 0
    assert brief.kept_bytes == 0
    await by_hand.check(grammar("secret"), "acme")
    again = asyncio.create_task(brief.check(grammar("secret"), "acme"))
    begun.clear()
    await turns()
    assert [*begun] == ["secret"], "it is checked anew"
    begun["secret"].set_result(0.0)
    await again
    await brief.aclose()


async def test_its_children_end_with_it() -> None:
    made = GrammarChecker()
    await made.check(json_structure({}, PARAM), "acme")
    [child] = children()
    await made.aclose()

    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
