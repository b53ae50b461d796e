"""Minimal chat templates, each of which writes calls as one family of models does.

They are written by hand after the published templates and encoders of the families, of which they keep the text of
calls and the traps: ids that are shown, arguments that must be texts, values that are not strings.
"""

from __future__ import annotations

_FRAME = """{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for m in messages %}<|im_start|>{{ m.role }}
{% if m.role == 'assistant' %}{{ m.content or '' }}{% if m.tool_calls %}CALLS{% endif %}
{%- elif m.role == 'tool' %}RESULT{% else %}{{ m.content }}{% endif %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
_RESULT = "<tool_response>\n{{ m.content }}\n</tool_response>"
_EACH = "{% for call in m.tool_calls %}{% set f = call.function %}"
_NEXT = "{% if not loop.first %}{{ '\\n' }}{% endif %}"
_MEMBERS = "{% for k, v in f.arguments.items() %}{% set v = v if v is string else v | tojson %}"


def _template(calls: str, result: str = _RESULT) -> str:
    return _FRAME.replace("CALLS", calls).replace("RESULT", result)


def _function_tags(line: str, before: str, after: str) -> str:
    members = _MEMBERS + f"<parameter={{{{ k }}}}>{before}{{{{ v }}}}{after}{{% endfor %}}"
    head = f"<tool_call>{line}<function={{{{ f.name }}}}>{line}"
    return _template(f"{_EACH}{_NEXT}{head}{members}</function>{line}</tool_call>{{% endfor %}}")


def _glm(line: str) -> str:
    members = f"<arg_key>{{{{ k }}}}</arg_key>{line}<arg_value>{{{{ v }}}}</arg_value>{line}"
    gap = _NEXT if line else ""
    head = f"<tool_call>{{{{ f.name }}}}{line}"
    return _template(f"{_EACH}{gap}{head}{_MEMBERS}{members}{{% endfor %}}</tool_call>{{% endfor %}}")


def _dsml(frame: str, gap: str) -> str:
    members = (
        "{% for k, v in f.arguments.items() %}"
        f'<｜DSML｜{gap}parameter name="{{{{ k }}}}" string="{{{{ "true" if v is string else "false" }}}}">'
        f"{{{{ v if v is string else v | tojson }}}}</｜DSML｜{gap}parameter>\n{{% endfor %}}"
    )
    calls = f'{_EACH}<｜DSML｜{gap}invoke name="{{{{ f.name }}}}">\n{members}</｜DSML｜{gap}invoke>\n{{% endfor %}}'
    return _template(f"\n\n<｜DSML｜{gap}{frame}>\n{calls}</｜DSML｜{gap}{frame}>")


def _deepseek(head: str, tail: str, gap: str) -> str:
    """Arguments are concatenated with other texts, so only a JSON text will do."""
    call = f"{{{{ '<｜tool▁call▁begin｜>{head}' + f.arguments + '{tail}<｜tool▁call▁end｜>' }}}}"
    return _template(f"<｜tool▁calls▁begin｜>{_EACH}{gap}{call}{{% endfor %}}<｜tool▁calls▁end｜>")


_M3 = "]<]minimax[>["
_M3_MEMBERS = (
    "{%- macro xml(v) -%}{%- if v is string -%}{{ v }}{%- elif v is mapping -%}"
    f"{{%- for k, one in v.items() -%}}{_M3}<{{{{ k }}}}>{{{{ xml(one) }}}}{_M3}</{{{{ k }}}}>{{%- endfor -%}}"
    "{%- elif v is iterable -%}"
    f"{{%- for one in v -%}}{_M3}<item>{{{{ xml(one) }}}}{_M3}</item>{{%- endfor -%}}"
    "{%- else -%}{{ v | tojson }}{%- endif -%}{%- endmacro -%}"
)
_COFL_MEMBERS = (
    '{%- macro value(v) -%}{%- if v is string %} type="raw">{{ v }}'
    '{%- elif v is mapping %} type="dict">{{ members(v) }}'
    '{%- elif v is iterable %} type="list">'
    "{%- for one in v -%}<cofl:value{{ value(one) }}</cofl:value>{%- endfor -%}"
    '{%- else %} type="json">{{ v | tojson }}{%- endif -%}{%- endmacro -%}'
    "{%- macro members(v) -%}{%- for k, one in v.items() -%}"
    '<cofl:value name="{{ k }}"{{ value(one) }}</cofl:value>{%- endfor -%}{%- endmacro -%}'
)

TEMPLATES: dict[str, str] = {
    "hermes": _template(
        _EACH + _NEXT + '<tool_call>\n{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}\n</tool_call>'
        "{% endfor %}"
    ),
    "llama3": _template(
        "{% set f = m.tool_calls[0].function %}"
        '{{- \'{"name": "\' + f.name + \'", "parameters": \' }}{{ f.arguments | tojson }}}'
    ),
    "exaone": _template(
        _EACH + _NEXT + '<tool_call>{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}</tool_call>'
        "{% endfor %}"
    ),
    "kimi": _template(
        "<|tool_calls_section_begin|>{% for call in m.tool_calls %}"
        "<|tool_call_begin|>{{ call.id }}<|tool_call_argument_begin|>{{ call.function.arguments | tojson }}"
        "<|tool_call_end|>{% endfor %}<|tool_calls_section_end|>",
        "## Return of {{ m.tool_call_id }}\n{{ m.content }}",
    ),
    "deepseek_r1": _deepseek("function<｜tool▁sep｜>' + f.name + '\\n```json\\n", "\\n```", _NEXT),
    "deepseek_v3_1": _deepseek("' + f.name + '<｜tool▁sep｜>", "", ""),
    "deepseek_v3_2": _dsml("function_calls", ""),
    "deepseek_v4": _dsml("tool_calls", ""),
    "deepseek_v4_1": _dsml("calls", " "),
    "qwen_3_coder": _function_tags("\n", "\n", "\n</parameter>\n"),
    "mimo_lines": _function_tags("\n", "", "</parameter>\n"),
    "mimo": _function_tags("", "", "</parameter>"),
    "glm_4_5": _glm("\n"),
    "glm_4_7": _glm(""),
    "minimax": _template(
        "\n<minimax:tool_call>\n" + _EACH + '<invoke name="{{ f.name }}">\n' + _MEMBERS
        + '<parameter name="{{ k }}">{{ v }}</parameter>\n{% endfor %}</invoke>\n{% endfor %}</minimax:tool_call>'
    ),
    "minimax_m3": _M3_MEMBERS + _template(
        f"{_M3}<tool_call>\n{_EACH}{_M3}<invoke name=\"{{{{ f.name }}}}\">{{{{ xml(f.arguments) }}}}"
        f"{_M3}</invoke>\n{{% endfor %}}{_M3}</tool_call>"
    ),
    "cohere": _COFL_MEMBERS + _template(
        "<cofl:tool_calls>{% for call in m.tool_calls %}{% set f = call.function %}"
        '<cofl:tool_call id="{{ call.id }}" name="{{ f.name }}">{{ members(f.arguments) }}</cofl:tool_call>'
        "{% endfor %}</cofl:tool_calls>",
        '<cofl:tool_result id="{{ m.tool_call_id }}">{{ m.content }}</cofl:tool_result>',
    ),
    "kimi_k3": _template(
        "<|open|>tools<|sep|>{% for call in m.tool_calls %}{% set f = call.function %}"
        '<|open|>call tool="{{ f.name }}" index="{{ loop.index }}"<|sep|>'
        "{% for k, v in f.arguments.items() %}"
        "<|open|>argument key=\"{{ k }}\" type=\"{{ 'string' if v is string else 'number' }}\"<|sep|>"
        "{{ v if v is string else v | tojson }}<|close|>argument<|sep|>{% endfor %}"
        "<|close|>call<|sep|>{% endfor %}<|close|>tools<|sep|>"
    ),
}  # fmt: skip
