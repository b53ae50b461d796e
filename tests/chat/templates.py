"""Chat templates for the server's tests: one without tools, one for each tool format, and ones that think."""

from __future__ import annotations

from radixrt.tokenizer.chat_template import ChatTemplate

PLAIN = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

NO_SYSTEM = """{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}""" + PLAIN

HERMES = """{% if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.role == 'assistant' %}{{ m.content or '' }}{% for call in m.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}{% else %}{{ m.content }}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

HERMES_IMAGES = HERMES.replace(
    "{% else %}{{ m.content }}{% endif %}",
    "{% elif m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}{% if part.type == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}",
)
"""Writes the images of every message, those of results too, as Qwen3-VL's does."""

HERMES_THINKING = HERMES.removesuffix("{% endif %}") + (
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)

LLAMA3 = """{% if tools %}{% for tool in tools %}{{ tool | tojson }}
{% endfor %}{% endif %}{% for m in messages %}{{ m.role }}
{% if m.tool_calls %}{"name": "{{ m.tool_calls[0].function.name }}", "parameters": {{
m.tool_calls[0].function.arguments | tojson }}}{% else %}{{ m.content }}{% endif %}
{% endfor %}{% if add_generation_prompt %}assistant
{% endif %}"""

BEGINS_THINKING = PLAIN.removesuffix("{% endif %}") + "<think>\n{% endif %}"

STRIPS_THINKING = """{% for m in messages %}{{ m.role }}: {{ m.content.split('</think>')[-1] }}
{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"""


HARMONY = """{%- macro tool_type(tool) -%}
// {{ tool.description + "" }}
type {{ tool.name }} = (_: {{ tool.parameters | tojson }}) => any;
{%- endmacro -%}
{{- "<|start|>system<|message|>Reasoning: " + (reasoning_effort if reasoning_effort is defined else "medium") }}
{{- ", " + strftime_now("%Y-%m-%d") + "<|end|>" }}
{%- set rest = messages %}
{%- set instructions = "" %}
{%- if messages[0].role in ["system", "developer"] %}
    {%- set instructions = messages[0].content %}
    {%- set rest = messages[1:] %}
{%- endif %}
{%- if instructions or tools %}
    {{- "<|start|>developer<|message|>" + instructions }}
    {%- for tool in tools or [] %}{{ "\n" + tool_type(tool.function) }}{% endfor %}
    {{- "<|end|>" }}
{%- endif %}
{%- set called = namespace(name=none) %}
{%- for message in rest %}
    {%- if message.role == "assistant" %}
        {%- if "<|channel|>" in message.content %}{{ raise_exception("a channel in the content") }}{% endif %}
        {%- if message.tool_calls %}
            {%- if message.content and message.thinking %}{{ raise_exception("content and thinking") }}{% endif %}
            {%- set said = message.content or message.thinking %}
            {%- if said %}{{ "<|start|>assistant<|channel|>analysis<|message|>" + said + "<|end|>" }}{% endif %}
            {%- set called.name = message.tool_calls[0].function.name %}
            {{- "<|start|>assistant to=functions." + called.name + "<|channel|>commentary json<|message|>" }}
            {{- message.tool_calls[0].function.arguments | tojson + "<|call|>" }}
        {%- elif message.thinking %}
            {{- "<|start|>assistant<|channel|>analysis<|message|>" + message.content + "<|end|>" }}
        {%- else %}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}
        {%- endif %}
    {%- elif message.role == "tool" %}
        {%- if called.name is none %}{{ raise_exception("no call before") }}{% endif %}
        {{- "<|start|>functions." + called.name + " to=assistant<|channel|>commentary<|message|>" }}
        {{- message.content + "<|end|>" }}
    {%- else %}
        {{- "<|start|>" + message.role + "<|message|>" + message.content + "<|end|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<|start|>assistant" }}{% endif %}"""
"""In the style of gpt-oss's own, with the traps of its versions."""

KIMI_K3 = """{%- macro open(tag) -%}<|open|>{{ tag }}<|sep|>{%- endmacro -%}
{%- macro close(tag) -%}<|close|>{{ tag }}<|sep|>{%- endmacro -%}
{%- macro kind(v) -%}
    {%- if v is boolean -%}boolean{%- elif v is none -%}null{%- elif v is number -%}number
    {%- elif v is string -%}string{%- elif v is mapping -%}object{%- else -%}array{%- endif -%}
{%- endmacro -%}
{%- set thinking = true if thinking is undefined else thinking -%}
{%- if tools -%}{{ open('message role="system" type="tool-declare"') + tools | tojson + close("message") }}{%- endif -%}
{%- for m in messages -%}
    {%- if m.role == "assistant" -%}
        {{- open('message role="assistant"') -}}
        {%- if thinking -%}{{ open("think") + (m.reasoning_content or "") + close("think") }}{%- endif -%}
        {{- open("response") + (m.content or "") + close("response") -}}
        {%- if m.tool_calls -%}
            {{- open("tools") -}}
            {%- for call in m.tool_calls -%}
                {{- open('call tool="' + call.function.name + '" index="' ~ loop.index ~ '"') -}}
                {%- for k, v in call.function.arguments.items() -%}
                    {{- open('argument key="' + k + '" type="' + kind(v) + '"') -}}
                    {{- (v if v is string else v | tojson) + close("argument") -}}
                {%- endfor -%}
                {{- close("call") -}}
            {%- endfor -%}
            {{- close("tools") -}}
        {%- endif -%}
        {{- close("message") -}}
    {%- else -%}
        {{- open('message role="' + m.role + '"') + m.content + close("message") -}}
    {%- endif -%}<|end_of_msg|>
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- open('message role="assistant"') + open("think" if thinking else "response") -}}
{%- endif -%}"""
"""In the style of Kimi-K3's own."""


def template(source: str) -> ChatTemplate:
    return ChatTemplate({"default": source}, {})
