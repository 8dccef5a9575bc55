"""Chat templates: what transformers renders, within bounds that no template gets round."""

import time
from datetime import datetime

import pytest

from fairlane.gateway.text.chat_template import MAX_SOURCE_CHARS, ChatTemplate, TemplateRefusal
from fairlane.gateway.text.template_budget import Bounds
from tests.support.gateway.cards import CHATML

MESSAGES = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}]
QUICKLY_S = 2.0
NESTED = "{% set n0 = namespace(a=1) %}" + "".join(
    f"{{% set n{level} = namespace(a=n{level - 1}, b=n{level - 1}, c=n{level - 1}) %}}" for level in range(1, 31)
)

RENDERED = {
    "{{ messages[0]['content'] | trim }}": "Hi",
    "{{ messages | length }}{{ messages[-1].role }}": "2assistant",
    "{% for m in messages if m.role == 'user' %}{{ loop.index }}{% endfor %}": "1",
    "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.content }}{% endfor %}": "Yes?",
    "{% set n = namespace(a='') %}{% for m in messages %}{% set n.a = n.a ~ m.role[0] %}{% endfor %}{{ n.a }}": "ua",
    "{% macro say(m, mark='>') %}{{ mark + m.content }}{% endmacro %}{{ say(messages[0]) }}": ">Hi",
    "{% macro box() %}[{{ caller() }}]{% endmacro %}{% call box() %}x{% endcall %}": "[x]",
    "{% set text %}a{{ 1 }}{% endset %}{{ text | upper }}": "A1",
    "{% filter upper %}abc{% endfilter %}": "ABC",
    "{% generation %}said{% endgeneration %}": "said",
    "{{ messages | map(attribute='role') | join(', ') }}": "user, assistant",
    "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}": "1",
    "{{ {'b': [1, 2.5, none, true], 'a': '<é>'} | tojson }}": '{"b": [1, 2.5, null, true], "a": "<é>"}',
    "{{ {'a': [1]} | tojson(indent=2) }}": '{\n  "a": [\n    1\n  ]\n}',
    "{{ 'a-b'.split('-')[1] }}{{ 'abc'.replace('b', 'xx') }}{{ '-'.join(['a', 'b']) }}": "baxxca-b",
    "{{ 'x' * 3 }}{{ '%s=%d' % ('a', 2) }}{{ 7 % 4 }}{{ 2 ** 5 }}{{ 'a'.startswith('a') }}": "xxxa=2332True",
    "{% for a, b in {'k': 'v'}.items() %}{{ a }}{{ b }}{% endfor %}": "kv",
    "{{ tools is none }}{{ documents is none }}{{ nothing is defined }}{{ nothing }}": "TrueTrueFalse",
    "{{ bos_token }}|{{ eos_token }}|{{ add_generation_prompt }}": "<s>|</s>|True",
    "{% if 'user' in messages[0].values() %}y{% endif %}{{ messages[::-1][0].role }}": "yassistant",
    "{{ strftime_now('%Y-%m-%d') }}": "2026-11-21",
    "{{ range(3) | list }}{{ [1] + [2] }}{{ (1, 'a') }}{{ 'b' is lower }}": "[0, 1, 2][1, 2](1, 'a')True",
    "{{ messages[0].content | default('none') | safe | e | string }}": "Hi",
    "  {% if true %}\n  a\n  {% endif %}\n": "  a\n",
}

ENDLESS = {
    "a huge range": "{% for i in range(10**9) %}{% endfor %}",
    "nested loops": "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
    "loops that leave all out": "{% for i in range(9999) %}{% for j in range(9999) if false %}{% endfor %}{% endfor %}",
    "loops over text": "{% set x = 'x' * 90000 %}{% for a in x %}{% for b in x %}{% endfor %}{% endfor %}",
    "macros that double": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "comparing": "{% set a = 'a' * 9999 %}{% for i in range(99999) %}{% if a ~ i == a %}{% endif %}{% endfor %}",
    "slicing": "{% set a = 'a' * 90000 %}{% for i in range(99999) %}{% set b = a[1:] %}{% endfor %}",
    "splitting": "{% set a = 'a ' * 40000 %}{% for i in range(9999) %}{% set b = a.split(' ') %}{% endfor %}",
    "lazy filters": "{% for i in range(1000) %}{% set x = range(9999) | map('string') | list %}{% endfor %}",
    "a search from the right": "{{ ('a' * 90000).rfind('b' ~ 'a' * 40000) }}",
    "stripping": "{% set a = 'a' * 90000 %}{{ a.strip('b' * 90000 ~ 'a') }}{{ a | trim('b' * 90000 ~ 'a') }}",
}

HUGE = {
    "repeated text": "{{ 'a' * 10**9 }}",
    "repeated text, other way round": "{{ 10**9 * 'a' }}",
    "a repeated list": "{{ ([0] * 10**9) | length }}",
    "digits": "{% set ns = namespace(x=9**999) %}{% for i in range(40) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "a power": "{{ 9**(9**9) }}",
    "doubling by ~": "{% set x = 'aaaaaaaa' %}" + "{% set x = x ~ x %}" * 60,
    "doubling by +": "{% set x = 'aaaaaaaa' %}" + "{% set x = x + x %}" * 60,
    "doubling a list": "{% set x = [1, 2] %}" + "{% set x = x + x %}" * 60,
    "the filter replace": "{% set x = 'a' * 1000 %}" + "{% set x = x | replace('a', x) %}" * 5,
    "the method replace": "{% set x = 'a' * 1000 %}" + "{% set x = x.replace('a', x) %}" * 5,
    "the filter join": "{% set x = 'a' * 100000 %}{% set y = x | list | join(x) %}",
    "the method join": "{% set x = 'a' * 100000 %}{% set y = x.join(x) %}",
    "indenting": "{{ ('a\n' * 10000) | indent(10**9) }}",
    "indented JSON": "{{ [1] | tojson(indent=10**9) }}",
    "text of the template": "{% for i in range(100000) %}" + "x" * 10000 + "{% endfor %}",
    "text of the template, kept": "{% set y %}{% for i in range(100000) %}" + "x" * 10000 + "{% endfor %}{% endset %}",
    "text of a macro": "{% macro m() %}" + "x" * 10000 + "{% endmacro %}" + "{% set y = m() %}" * 2000,
    "hoard": "{% set n = namespace(l=[]) %}{% for i in range(999) %}{% set n.l = n.l + ['x' * 9999] %}{% endfor %}",
    "a laughing list": "{% set x = [1] * 10 %}" + "{% set x = [x, x, x, x, x, x, x, x, x, x] %}" * 12 + "{{ x }}",
    "a laughing tuple as a key": "{% set x = (1, 2) %}" + "{% set x = (x, x, x, x) %}" * 14 + "{% set d = {x: 1} %}",
    "a laughing dict": "{% set x = {} %}" + "{% set x = {'a': x, 'b': x, 'c': x} %}" * 30 + "{{ x | tojson }}",
    "a filter block": "{% filter replace('a', 'b' * 90000) %}{{ 'a' * 90000 }}{% endfilter %}",
}

FORBIDDEN = {
    "a wide format": "{{ '%1000000000d' % 1 }}",
    "str.format": "{{ '{:>1000000000}'.format(1) }}",
    "str.center": "{{ 'a'.center(10**9) }}",
    "endless recursion": "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "nesting": "{% set ns = namespace(l=[]) %}{% for i in range(2000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}",
    "a namespace as text": NESTED + "{{ n30 }}",
    "a namespace in the filter string": NESTED + "{{ n30 | string }}",
    "a namespace in ~": NESTED + "{{ 'a' ~ n30 }}",
    "a namespace in a list": NESTED + "{{ [n30] }}",
    "a namespace in a format": NESTED + "{{ '%s' % n30 }}",
    "a namespace called": NESTED + "{{ n30() }}",
    "a namespace tested": NESTED + "{{ n30 is upper }}",
    "a namespace raised": NESTED + "{{ raise_exception(n30) }}",
    "a namespace as a date": NESTED + "{{ strftime_now(n30) }}",
    "a name of Python's in a namespace": "{% set ns = namespace() %}{% set ns.__html__ = 1 %}",
    "a macro as text": "{% macro m() %}{% endmacro %}{{ m }}",
    "Python's own attributes": "{{ ''.__class__.__mro__ }}",
    "changing a list": "{{ [].append(1) }}",
    "another template": "{% include 'x' %}",
    "importing": "{% import '/etc/passwd' as x %}",
    "globals of jinja2": "{{ lipsum(5) }}",
    "arithmetic that fails": "{{ 1 // 0 }}",
}


def render(source: str, bounds: Bounds | None = None) -> str:
    now = datetime(2026, 11, 21)
    template = ChatTemplate(source, bos_token="<s>", eos_token="</s>", bounds=bounds, now=lambda: now)
    return template.render(MESSAGES)


@pytest.mark.parametrize("source", RENDERED, ids=RENDERED.get)
def test_templates_can_do_what_models_templates_do(source: str) -> None:
    assert render(source) == RENDERED[source]


def test_a_chatml_prompt_ends_where_the_answer_begins() -> None:
    expected = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYes?<|im_end|>\n<|im_start|>assistant\n"
    assert render(CHATML) == expected


@pytest.mark.parametrize("case", ENDLESS)
def test_time_is_bounded(case: str) -> None:
    started_s = time.thread_time()

    with pytest.raises(TemplateRefusal, match="more than the model's chat template can turn into"):
        render(ENDLESS[case])

    assert time.thread_time() - started_s < QUICKLY_S


def test_time_is_bounded_even_where_weight_is_not() -> None:
    bounds = Bounds(weight=10**15, cpu_s=0.05)
    started_s = time.thread_time()

    with pytest.raises(TemplateRefusal, match="more than"):
        render(ENDLESS["macros that double"], bounds)

    assert time.thread_time() - started_s < 0.5


@pytest.mark.parametrize("case", HUGE)
def test_memory_is_bounded(case: str) -> None:
    with pytest.raises(TemplateRefusal, match="more than the model's chat template can turn into"):
        render(HUGE[case])


@pytest.mark.parametrize("case", FORBIDDEN)
def test_what_cannot_be_bounded_is_refused(case: str) -> None:
    started_s = time.thread_time()

    with pytest.raises(TemplateRefusal):
        render(FORBIDDEN[case])

    assert time.thread_time() - started_s < QUICKLY_S


@pytest.mark.parametrize(
    "source", ["{% for %}", "{{ 1 | attr('x') }}", "{{ " + "(" * 5000, "x" * (MAX_SOURCE_CHARS + 1)]
)
def test_a_template_that_cannot_be_used_is_refused_at_once(source: str) -> None:
    with pytest.raises(TemplateRefusal, match="the chat template"):
        ChatTemplate(source)


def test_large_conversations_are_well_within_bounds() -> None:
    careful = CHATML.replace("message['content']", "(message['content'] | trim).split('</think>')[-1].lstrip('\n')")
    text = "word </think> " * 100_000

    prompt = ChatTemplate(careful).render([{"role": "user", "content": text}] * 2)

    assert prompt.count("<|im_start|>") == 3


def test_a_templates_own_words_are_told_only_where_they_quote_nothing() -> None:
    with pytest.raises(TemplateRefusal, match="refuses the messages: Only pairs, please"):
        render("{{ raise_exception('Only pairs, please') }}")
    with pytest.raises(TemplateRefusal, match="refuses these messages") as refused:
        render("{{ raise_exception('Not ' + messages[0].content) }}")
    assert "Hi" not in refused.value.reason


def test_renderings_do_not_share_a_budget() -> None:
    template = ChatTemplate("{{ 'a' * 400000 }}")

    assert [len(template.render(MESSAGES)) for _ in range(5)] == [400_000] * 5
