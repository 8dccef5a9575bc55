"""Whose each character of a rendered template is. Contents here are letters with accents, and templates have none."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlane.gateway.model_text.chat_template import ChatTemplate
from fairlane.gateway.model_text.template_taint import runs

CONTENT = "äöü àéî"
EXACT = {
    "{{ c }}": CONTENT,
    "<{{ c }}>": f"<{CONTENT}>",
    "{{ '<' + c + '>' }}": f"<{CONTENT}>",
    "{{ '<' ~ c ~ 1 ~ none ~ '>' }}": f"<{CONTENT}1None>",
    "{{ '<' + c + c + '>' + ('<' ~ c + '>') }}": f"<{CONTENT}{CONTENT}><{CONTENT}>",
    "{{ '%s=%d%%|%s' % (c, 2, 'X') }}": f"{CONTENT}=2%|X",
    "{{ ('<' ~ c) * 2 }}": f"<{CONTENT}<{CONTENT}",
    "{{ ('<' ~ c)[1:4] ~ ('<' ~ c)[0] ~ c[-1] ~ c[::-1] }}": "äöü<îîéà üöä",
    "{{ c | trim ~ ('  <' ~ c ~ '>  ') | trim }}": f"{CONTENT}<{CONTENT}>",
    "{{ ('--' ~ c ~ '--').strip('-') }}|{{ ('-' ~ c ~ '-').lstrip('-') }}|{{ ('-' ~ c ~ '-').rstrip('-') }}": (
        f"{CONTENT}|{CONTENT}-|-{CONTENT}"
    ),
    "{{ ('A,' ~ c ~ ',B').split(',') | join(';') }}": f"A;{CONTENT};B",
    "{{ ('A ' ~ c ~ '  B').split() | join(';') }}": "A;äöü;àéî;B",
    "{{ ('A,' ~ c ~ ',B').rsplit(',', 1) | join(';') }}": f"A,{CONTENT};B",
    "{{ (c ~ '\n\nX\r\n' ~ c).splitlines() | join(';') }}": f"{CONTENT};;X;{CONTENT}",
    "{{ ('A,' ~ c ~ ',B').partition(',') | join(';') }}": f"A;,;{CONTENT},B",
    "{{ ('A,' ~ c ~ ',B').rpartition(',') | join(';') }}": f"A,{CONTENT};,;B",
    "{{ ('A' ~ c).removeprefix('A') ~ ('A' ~ c ~ 'B').removesuffix('B') }}": f"{CONTENT}A{CONTENT}",
    "{{ ('A' ~ c).replace('A', 'BB') }}{{ 'A-A' | replace('A', c) }}": f"BB{CONTENT}{CONTENT}-{CONTENT}",
    "{{ '-'.join([c, 'X']) }}{{ ['X', c] | join }}": f"{CONTENT}-XX{CONTENT}",
    "{{ messages | map(attribute='content') | join('<>') }}": f"{CONTENT}<>{CONTENT}",
    "{{ c | list | join('-') }}{% for letter in c[:2] %}<{{ letter }}{% endfor %}": "ä-ö-ü- -à-é-î<ä<ö",
    "{% set x = c ~ '>' %}{{ x }}{% set y %}<{{ c }}{% endset %}{{ y }}": f"{CONTENT}><{CONTENT}",
    "{% macro say(t) %}<{{ t }}>{{ caller() }}{% endmacro %}{% call say(c) %}X{{ c }}{% endcall %}": (
        f"<{CONTENT}>X{CONTENT}"
    ),
    "{% filter trim %} <{{ c }}> {% endfilter %}": f"<{CONTENT}>",
    "{% set n = namespace(a='<') %}{% set n.a = n.a ~ c %}{{ n.a | safe | e | string }}": f"<{CONTENT}",
    "{{ c | default('X') }}{{ (c | first) ~ (c | last) }}{{ c | reverse }}": f"{CONTENT}äîîéà üöä",
    "{{ c.split('à')[-1].lstrip('\n') }}{{ messages[0].role }}{{ c | length }}": "éîuser7",
    "{% for m in messages[:1] %}{{ strftime_now('%%') }}{{ m.get('name', '-') }}{{ m.content }}{% endfor %}": (
        f"%-{CONTENT}"
    ),
    "{% for m in [c, [c]] recursive %}{{ m if m is string else '<' ~ loop(m) ~ '>' }}{% endfor %}": (
        f"{CONTENT}<{CONTENT}>"
    ),
}
SPOILT = {
    "{{ ('<' ~ c) | upper }}": "<ÄÖÜ ÀÉÎ",
    "{{ ('<' ~ c).upper() }}": "<ÄÖÜ ÀÉÎ",
    "{{ ('<' ~ c) | title }}": "<Äöü Àéî",
    "{{ ('<' ~ c) | indent(1, true) }}": f" <{CONTENT}",
    "{{ {'A': c} | tojson }}": f'{{"A": "{CONTENT}"}}',
    "{{ {'A': c} }}": f"{{'A': '{CONTENT}'}}",
    "{{ [c] | string }}": f"['{CONTENT}']",
    "{{ '' ~ [c] }}": f"['{CONTENT}']",
    "{{ '%s' % [c] }}": f"['{CONTENT}']",
    "{{ c.replace('', '-') }}": "-" + "-".join(CONTENT) + "-",
    "{{ '<' | indent(c, true) }}": f"{CONTENT}<",
    "{{ strftime_now(c) }}": CONTENT,
}


def rendered(source: str, content: str = CONTENT) -> list[tuple[str, bool]]:
    template = ChatTemplate("{% set c = messages[0].content %}" + source)
    messages = [{"role": "user", "content": content}, {"role": "assistant", "content": content}]
    return list(runs(template.render(messages)))


def letters(text: str) -> str:
    return "".join(letter for letter in text if letter.isalpha() and not letter.isascii())


@pytest.mark.parametrize("source", EXACT)
def test_each_character_is_known_to_be_the_templates_or_the_callers(source: str) -> None:
    found = rendered(source)

    assert "".join(text for text, _ in found) == EXACT[source]
    theirs = "".join(text for text, is_given in found if is_given)
    own = "".join(text for text, is_given in found if not is_given)
    assert letters(own) == ""
    assert letters(theirs) == theirs.replace(" ", "")


@pytest.mark.parametrize("source", SPOILT)
def test_what_keeps_no_account_of_characters_is_all_the_callers(source: str) -> None:
    assert rendered(source) == [(SPOILT[source], True)]


@pytest.mark.parametrize(
    "constant", ["'own' | indent(1, true)", "'o' ~ [1] ~ 'wn'", "'own' | upper", "{'a': 1} | tojson", "'%s%%' % 'own'"]
)
def test_what_a_template_makes_of_its_own_is_its_own(constant: str) -> None:
    assert [is_given for _, is_given in rendered("{{ " + constant + " }}")] == [False]


def test_contents_that_are_empty_are_nobodys() -> None:
    assert rendered("<{{ c }}>", "") == [("<>", False)]
    assert rendered("{{ c }}", "") == []


STEPS = [
    "('<' ~ {x})", "({x} + '>')", "({x} | trim)", "({x} | upper)", "({x} | lower)", "({x} | capitalize)",
    "({x} | replace('<', '[['))", "({x}.replace('Ä', '-'))", "({x}.split('<') | last)", "({x}.split() | join('-'))",
    "({x}[1:])", "({x}[::-1])", "({x} * 2)", "('%s%%' % {x})", "({x} | tojson)", "([{x}] | string)",
    "({x} | list | sort | join)", "({x} | indent(2))", "({x} | reverse)", "({x}.strip('<>'))", "({x}.title())",
    "({x}.partition('<')[2])", "({x}.rsplit('>', 1)[0])", "([{x}, 'X'] | map('upper') | join(','))",
    "({x} | unique | join)", "({x}.swapcase())", "('-'.join([{x}, {x}]))", "('A'.replace('A', {x}))",
    "(({x} | first | string) ~ {x})", "({x} | string)", "({x} | dictsort | string if {x} is mapping else {x})",
    "('<' | indent({x}, true))", "({x} ~ [{x}] ~ 1)", "('<' + {x} + {x})", "(namespace(a={x}).a + '>')",
    "({x}.removeprefix('<'))", "(dict(a={x}).a)", "({x} | default('X', true))", "(({x} ~ '\n').splitlines()[0])",
]  # fmt: skip


@given(steps=st.lists(st.sampled_from(STEPS), max_size=6), content=st.text("äöüà <>\n", max_size=8))
@settings(max_examples=150, deadline=None)
def test_nothing_of_the_callers_is_ever_taken_for_the_templates(steps: list[str], content: str) -> None:
    expression = "c"
    for step in steps:
        expression = step.replace("{x}", expression)
        if len(expression) > 2_000:
            break

    own = "".join(text for text, is_given in rendered("{{ " + expression + " }}", content) if not is_given)

    assert letters(own) == ""
