"""Lark grammars as regular expressions: the same texts, or none for what is no regular language."""

import json
import re
import time

import pytest
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from fairlane.gateway.dialects.grammar.check_process import Check, SampleVocabulary
from fairlane.gateway.dialects.grammar.lark_pattern import MAX_CHARS, lark_pattern
from fairlane.gateway.dialects.grammar.structure import Structure
from fairlane.gateway.dialects.openai.tools import Grammar, custom_tool

PATCH = r"""
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | update_hunk   // a file each
add_hunk: "*** Add File: " filename LF add_line+
update_hunk: "*** Update File: " filename LF change+
filename: /(.+)/
add_line: "+" /(.*)/ LF -> line
?change: ("@@" | "@@ " /(.+)/) LF
    | ("+" | "-" | " ") /(.*)/ LF

%import common.LF
"""
PATCHES = ['*** Begin Patch\n*** Update File: a.py\n@@ f\n-  "\\t"\n+  é\n*** End Patch\n']
NO_PATCHES = ["*** Begin Patch\n*** End Patch\n", "*** Begin Patch\n*** Add File: a\n-b\n*** End Patch\n", ""]
GRAMMARS: dict[str, tuple[str, list[str], list[str]]] = {
    "a patch": (PATCH, PATCHES, NO_PATCHES),
    "one text": ('start: "a.b*"', ["a.b*"], ["aab", "a.b"]),
    "choices": ('start: "a" | "b" "c"\n  | "d"', ["a", "bc", "d"], ["ac", "ad"]),
    "a choice of nothing": ('start: "a" ("b" | )', ["a", "ab"], ["b"]),
    "counts": ('start: "a"? "b"* "c"+ "d"~2 "e"~1..2', ["cdde", "abbccddee"], ["abde", "cdeee"]),
    "an option": ('start: ["a" "b"] "c"', ["c", "abc"], ["ac"]),
    "a range": ('start: ("0".."9" | "+".."-")+', ["1-2", ","], ["a", "."]),
    "case": ('start: "ab"i /cd/i', ["aBCd"], ["aaCd"]),
    "escapes": (r'start: "\"\\\n\x41\u00e9" /\/\//', ['"\\\nAé//'], ["nA"]),
    "priorities and prefixes": ('?start: A | b\nA.2: "a"\n!b: "b"', ["a", "b"], ["ab"]),
    "named groups": ("start: A A\nA: /(?P<x>a)(?<y>b)/", ["abab"], ["ab"]),
    "flags": ("start: /a.b/s /c d/x", ["a\nbcd"], ["abc d"]),
    "comments": ('# of Lark\n// too\nstart: "#" // ends\n  "//" # here\n', ["#//"], ["#"]),
    "ignored": ('start: "a" b+\nb: "b" C\nC: "c" "d"\n%ignore " "\n%ignore /#+/', [" a b# cd  "], ["abc d"]),
    "imports": ("start: INT TWO\n%import common (INT)\n%import common.LETTER -> TWO", ["12x"], ["x12"]),
}
UNSUPPORTED = {
    "recursion": 'start: "(" start? ")"',
    "recursion of others": 'start: a\na: "x" b\nb: a | "y"',
    "no start": 'a: "x"',
    "an unknown name": "start: a",
    "an unclosed group": 'start: ("a"',
    "another end": 'start: ("a"]',
    "a count of nothing": 'start: * "a"',
    "a count that is none": 'start: "a" ~ b\nb: "1"',
    "an open text": 'start: "a',
    "a range of texts": 'start: "ab".."cd"',
    "a special token": "start: <think>",
    "a grammar in it": 'start: %json {"type": "string"}',
    "another library": "start: A\n%import other.A",
    "an unknown import": "start: A\n%import common.UNHEARD_OF",
    "a declaration": 'start: "a"\n%declare B',
    "a template": 'start: a{"b"}\na{x}: x',
    "words before": 'hello\nstart: "a"',
    "nothing": "",
    "length": 'start: "a"' + " " * MAX_CHARS,
    "depth": "start: " + "(" * 3000 + '"a"' + ")" * 3000,
    "a long chain": "start: a0\n" + "".join(f"a{number}: a{number + 1}\n" for number in range(3000)) + 'a3000: "x"',
    "a large one": 'start: a0\na40: "x"\n'
    + "".join(f"a{number}: a{number + 1} a{number + 1}\n" for number in range(40)),
}


@pytest.mark.parametrize("case", GRAMMARS)
def test_an_expression_matches_the_texts_of_its_grammar(case: str) -> None:
    grammar, texts, others = GRAMMARS[case]
    pattern = lark_pattern(grammar)
    assert pattern is not None

    assert [text for text in texts if not re.fullmatch(pattern, text)] == []
    assert [text for text in others if re.fullmatch(pattern, text)] == []


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_other_grammars_have_no_expression(case: str) -> None:
    assert lark_pattern(UNSUPPORTED[case]) is None


@pytest.mark.parametrize(
    "hostile",
    [
        "start: /" + "[" * 60_000,
        "start: /" + "[" * 60_000 + "/",
        'start: "' + "\\" * 60_000,
        "start: " + '"a" ' * 15_000,
        "start: " + "A " * 15_000 + '\nA: "' + "a" * 30_000 + '"',
        "start:\n" + "a\n" * 30_000,
        'start: "a"\n' + '%ignore "b"\n' * 5_000,
        'start: "a"\n' + " " * 60_000,
        "start: A\n" * 6_000,
    ],
)
def test_hostile_grammars_take_linear_time(hostile: str) -> None:
    began_s = time.thread_time()
    assert len(hostile) <= MAX_CHARS
    lark_pattern(hostile)

    assert time.thread_time() - began_s < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("case", GRAMMARS)
def test_a_worker_enforces_it_inside_json(case: str) -> None:
    definition, texts, others = GRAMMARS[case]
    tool = custom_tool("code", None, Grammar(syntax="lark", definition=definition))
    found = Check().run(Structure("json_schema", json.dumps(tool.schema), "tools"))
    tokenizer = LLTokenizer(TokenizerWrapper(SampleVocabulary()))

    assert not found.fault
    for text in texts + others:
        matcher, written = (
            LLMatcher(tokenizer, found.grammar, log_level=0),
            json.dumps({"input": text}, ensure_ascii=False),
        )
        tokens = [*written.encode()]
        is_taken = matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()
        assert is_taken is (text in texts), text
