"""Chat templates: what transformers renders, with no way to the process, and nothing huge out of nothing."""

from datetime import datetime

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from fairlane.gateway.model_text.chat_template import MAX_SOURCE_CHARS, ChatTemplate, TemplateRefusal
from fairlane.gateway.model_text.template_taint import MAX_MADE
from tests.support.gateway.cards import CHATML

MESSAGES = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}]

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

HUGE = {
    "repeated text": "{{ 'a' * 10**9 }}",
    "repeated text, other way round": "{{ 10**9 * 'a' }}",
    "repeated content": "{{ messages[0].content * 10**9 }}",
    "a repeated list": "{{ ([0] * 10**9) | length }}",
    "a power": "{{ 9**(9**9) }}",
    "a range": "{% for i in range(10**9) %}{% endfor %}",
    "a wide format": "{{ '%1000000000d' % 1 }}",
    "a wide format, from its values": "{{ '%*d' % (10**9, 1) }}",
    "str.format": "{{ '{:>1000000000}'.format(1) }}",
    "str.center": "{{ 'a'.center(10**9) }}",
    "str.zfill": "{{ 'a'.zfill(10**9) }}",
    "bytes of a number": "{{ (1).to_bytes(10**9, 'big') }}",
    "the filter replace": "{% set x = 'a' * 10000 %}{{ x | replace('a', x) }}",
    "the method replace": "{% set x = 'a' * 10000 %}{{ x.replace('a', x) }}",
    "the filter join": "{% set x = 'a' * 10000 %}{{ x | list | join(x) }}",
    "the method join": "{% set x = 'a' * 10000 %}{{ x.join(x) }}",
    "indenting": "{{ ('a\n' * 10000) | indent(10**9) }}",
    "indenting by text": "{{ ('a\n' * 10000) | indent('a' * 10000) }}",
    "indented JSON": "{{ [1] | tojson(indent=10**9) }}",
    "separated JSON": "{{ ([1] * 10000) | tojson(separators=(',' * 10000, ':')) }}",
    "a filter block": "{% filter replace('a', 'b' * 90000) %}{{ 'a' * 90000 }}{% endfilter %}",
    "text of the template": "{% for i in range(100000) %}" + "x" * 10000 + "{% endfor %}",
    "text of the template, kept": "{% set y %}{% for i in range(100000) %}" + "x" * 10000 + "{% endfor %}{% endset %}",
    "text beside text": "{% set x = 'a' * 10**7 %}{{ (x ~ x) | length }}",
}

FORBIDDEN = {
    "endless recursion": "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "a name of Python's in a namespace": "{% set ns = namespace() %}{% set ns.__html__ = 1 %}",
    "a name of Python's in a new namespace": "{% set ns = namespace(__html__=1) %}",
    "a namespace called": "{{ namespace()() }}",
    "Python's own attributes": "{{ ''.__class__.__mro__ }}",
    "attributes by name": "{{ ''['__class__'].__mro__ }}",
    "the attributes of a function": "{{ raise_exception.__globals__.sys }}",
    "a method of a class": "{{ dict.fromkeys([1]) }}",
    "bytes": "{{ messages[0].content.encode() }}",
    "changing a list": "{{ [].append(1) }}",
    "changing a message": "{{ messages[0].update(role='system') }}",
    "another template": "{% include 'x' %}",
    "importing": "{% import '/etc/passwd' as x %}",
    "globals of jinja2": "{{ lipsum(5) }}",
    "arithmetic that fails": "{{ 1 // 0 }}",
}


def render(source: str) -> str:
    now = datetime(2026, 11, 21)
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>", now=lambda: now).render(MESSAGES)


@pytest.mark.parametrize("source", RENDERED, ids=RENDERED.get)
def test_templates_can_do_what_models_templates_do(source: str) -> None:
    assert render(source) == RENDERED[source]


def test_a_chatml_prompt_ends_where_the_answer_begins() -> None:
    expected = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYes?<|im_end|>\n<|im_start|>assistant\n"
    assert render(CHATML) == expected


@pytest.mark.parametrize("source", [source for source in RENDERED if "strftime" not in source])
def test_a_template_comes_to_what_transformers_makes_of_it(source: str) -> None:
    special = {"bos_token": "<s>", "eos_token": "</s>"}

    [expected], _ = render_jinja_template([MESSAGES], chat_template=source, add_generation_prompt=True, **special)

    assert render(source) == expected


@pytest.mark.parametrize("case", HUGE)
def test_no_step_makes_something_huge(case: str) -> None:
    with pytest.raises(TemplateRefusal, match="does not support these messages"):
        render(HUGE[case])


def test_a_step_may_make_as_much_as_the_largest_conversation() -> None:
    assert len(render("{{ 'a' * %d }}" % MAX_MADE)) == MAX_MADE  # noqa: UP031 - braces


@pytest.mark.parametrize("case", FORBIDDEN)
def test_what_leads_out_of_the_template_is_refused(case: str) -> None:
    with pytest.raises(TemplateRefusal, match="does not support these messages"):
        render(FORBIDDEN[case])


@pytest.mark.parametrize(
    "source",
    [
        "{% for %}",
        "{{ 1 | attr('x') }}",
        "{% autoescape true %}{% endautoescape %}",
        "{{ " + "(" * 5000,
        "x" * (MAX_SOURCE_CHARS + 1),
    ],
)
def test_a_template_that_cannot_be_used_is_refused_at_once(source: str) -> None:
    with pytest.raises(TemplateRefusal, match="the chat template"):
        ChatTemplate(source)


def test_large_conversations_are_rendered() -> None:
    careful = CHATML.replace("message['content']", "(message['content'] | trim).split('</think>')[-1].lstrip('\n')")
    text = "word </think> " * 100_000

    prompt = ChatTemplate(careful).render([{"role": "user", "content": text}] * 2)

    assert prompt.count("<|im_start|>") == 3


def test_a_templates_own_words_are_told_only_where_they_quote_nothing() -> None:
    with pytest.raises(TemplateRefusal, match="rejects the messages: Only pairs, please"):
        render("{{ raise_exception('Only pairs, please') }}")
    with pytest.raises(TemplateRefusal, match="rejects these messages") as refused:
        render("{{ raise_exception('Not ' + messages[0].content) }}")
    assert "Hi" not in refused.value.reason
