"""Chat templates render as their authors meant, and reach nothing else."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from bitmtp_edge.errors import UserError
from bitmtp_edge.text.chat_template import ChatTemplate

BITNET = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = message['role'] | capitalize + ': '+ message['content'] | trim + "
    "'<|eot_id|>' %}{{ content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant: ' }}{% endif %}"
)
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "  Hi <b>&</b>\n"},
    {"role": "assistant", "content": "Hello"},
]


def user(content: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content}]


def test_bitnet() -> None:
    template = ChatTemplate(BITNET)
    turns = "System: Be brief.<|eot_id|>User: Hi <b>&</b><|eot_id|>Assistant: Hello<|eot_id|>"
    assert template.render(MESSAGES) == turns + "Assistant: "
    assert template.render(MESSAGES, add_generation_prompt=False) == turns


def test_lines_of_blocks_leave_no_trace() -> None:
    source = (
        "{% for m in messages %}\n    {% if true %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}"
    )
    assert ChatTemplate(source).render(user("x")) == "x\n"


def test_variables() -> None:
    source = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ thinking }}{{ absent }}"
    template = ChatTemplate(source, bos_token="<s>", eos_token="</s>")
    assert template.render(user("x"), thinking=True) == "<s>x</s>True"
    assert template.render(user("x"), bos_token="") == "x</s>"
    assert ChatTemplate(source).render(user("x")) == "x"


def test_tojson_keeps_html_and_letters() -> None:
    source = "{{ messages[0].content | tojson }}"
    assert ChatTemplate(source).render(user("<a href='é'>&")) == "\"<a href='é'>&\""
    assert ChatTemplate("{{ tools | tojson(indent=2) }}").render([], tools=[1]) == "[\n  1\n]"
    tools = {"b": 1, "a": "é"}
    source = "{{ tools | tojson(ensure_ascii=True, sort_keys=True, separators=(',', ':')) }}"
    assert ChatTemplate(source).render([], tools=tools) == '{"a":"\\u00e9","b":1}'


def test_strftime_now() -> None:
    before = datetime.now().year
    year = int(ChatTemplate("{{ strftime_now('%Y') }}").render([]))
    assert before <= year <= datetime.now().year


def test_loop_controls_and_generation_blocks() -> None:
    source = "{% for m in messages %}{{ m.role }}{% if true %}{% break %}{% endif %}{% endfor %}"
    assert ChatTemplate(source).render(MESSAGES) == "system"
    source = "a{% generation %}{{ messages[0].role }}{% endgeneration %}b"
    assert ChatTemplate(source).render(MESSAGES) == "asystemb"


def test_text_that_looks_like_a_template_stays_text() -> None:
    text = "{{ 7 * 7 }}{% raw %}"
    assert ChatTemplate("{{ messages[0].content }}").render(user(text)) == text


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% if %}", r"syntax error in line 1"),
        ("a\n{{ }", r"syntax error in line 2"),
        ("{% for m in messages %}", r"syntax error in line 1"),
        ("{{ x | nofilter }}", r"syntax error in line 1: No filter named 'nofilter'"),
        ("{% generation %}", r"syntax error in line 1"),
        ("{{ " + "(" * 9999 + "1" + ")" * 9999 + " }}", r"cannot be compiled: RecursionError"),
        ("{% for i in x %}" * 50 + "{% endfor %}" * 50, r"cannot be compiled: SyntaxError"),
    ],
)
def test_syntax_errors(source: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        ChatTemplate(source)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must\nalternate') }}", "refuses: roles must alternate"),
        ("{{ messages[5].content.strip() }}", "failed: .*has no element 5"),
        ("{{ 1 // 0 }}", "failed: ZeroDivisionError"),
        ("{{ messages | tojson(indent='x', nothing=1) }}", "failed: TypeError"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "failed: RecursionError"),
        ("{% include 'other' %}", "failed: "),
    ],
)
def test_failures(source: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        ChatTemplate(source).render(user("x"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ ''['__class__']['__mro__'] }}",
        "{{ (''|attr('__class__')).mro() }}",
        "{{ '{0.__class__.__mro__}'.format('') }}",
        "{{ '{0.__class__}'.format_map({'0': ''}) }}",
        "{{ raise_exception.__globals__['json'].codecs }}",
        "{{ strftime_now.__globals__.__builtins__.open('/etc/passwd').read() }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ self._TemplateReference__context.environment.globals.clear() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{{ range(10**9) | list }}",
    ],
)
def test_the_sandbox_holds(source: str) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "x"}]
    try:
        text = ChatTemplate(source).render(messages)
    except UserError as error:
        assert "\n" not in str(error)
    else:  # an unsafe attribute may also render as undefined, which shows nothing
        assert text == ""
    assert messages == [{"role": "user", "content": "x"}]
