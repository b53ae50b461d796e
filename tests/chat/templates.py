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


def template(source: str) -> ChatTemplate:
    return ChatTemplate({"default": source}, {})
