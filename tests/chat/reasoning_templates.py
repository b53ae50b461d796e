"""Minimal chat templates, each of which handles reasoning as one family of models does.

They are written by hand after the published templates of the families, of which they keep the end of the prompt, the
switches, and the reasoning of earlier answers.
"""

from __future__ import annotations

from radixrt.chat.reasoning import Thinking

_FRAME = """{%- for m in messages %}<|{{ m.role }}|>
{%- if m.role == 'assistant' %}SAID{% else %}{{ m.content }}{% endif %}<|end|>
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>HEADER{% endif %}"""


def _template(said: str, header: str) -> str:
    return _FRAME.replace("SAID", said).replace("HEADER", header)


def _strips(end: str) -> str:
    return f"{{{{ m.content.split('{end}')[-1] }}}}"


def _shows(start: str, end: str, field: str = "reasoning_content") -> str:
    return f"{{% if m.{field} %}}{start}{{{{ m.{field} }}}}{end}{{% endif %}}{{{{ m.content }}}}"


_THINK = _shows("<think>", "</think>")

TEMPLATES: dict[str, tuple[str, str, Thinking, Thinking]] = {
    "qwen_3": (_template(_THINK, "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"),
               "<think>", Thinking.FREE, Thinking.OFF),
    "qwen_3_5": (_template(_THINK, "<think>\n{% if enable_thinking is false %}\n</think>\n\n{% endif %}"),
                 "<think>", Thinking.BEGUN, Thinking.OFF),
    "deepseek_r1": (_template(_strips("</think>"), "<think>\n"), "<think>", Thinking.BEGUN, Thinking.BEGUN),
    "deepseek_v3_1": (_template(_strips("</think>"), "{{ '<think>' if thinking else '</think>' }}"),
                      "<think>", Thinking.OFF, Thinking.OFF),
    "glm_4_5": (_template(_THINK, "{% if enable_thinking is false %}\n<think></think>{% endif %}"),
                "<think>", Thinking.FREE, Thinking.OFF),
    "kimi": (_template("<think>{{ m.reasoning_content or '' }}</think>{{ m.content }}", ""),
             "<think>", Thinking.FREE, Thinking.OFF),
    "minimax": (_template(_THINK, "<think>\n"), "<think>", Thinking.BEGUN, Thinking.BEGUN),
    "exaone": (_template(_THINK, "{{ '<think>\n' if enable_thinking else '<think>\n\n</think>\n\n' }}"),
               "<think>", Thinking.OFF, Thinking.OFF),
    "minimax_m3": (_template(_shows("<mm:think>", "</mm:think>"),
                             "{{ '</mm:think>' if enable_thinking is false else '<mm:think>' }}"),
                   "<mm:think>", Thinking.BEGUN, Thinking.OFF),
    "minimax_m3, adaptive": (_template(_shows("<mm:think>", "</mm:think>"), ""),
                             "<mm:think>", Thinking.FREE, Thinking.OFF),
    "cohere": (_template(_shows("<|START_THINKING|>", "<|END_THINKING|>", "thinking"),
                         "{% if enable_thinking is false %}<|START_THINKING|><|END_THINKING|>{% endif %}"),
               "<|START_THINKING|>", Thinking.FREE, Thinking.OFF),
    "seed": (_template(_shows("<seed:think>", "</seed:think>"), ""), "<seed:think>", Thinking.FREE, Thinking.OFF),
    "magistral": ("{% if messages[0].role != 'system' %}"
                  "[SYSTEM_PROMPT]First draft: [THINK]your thoughts[/THINK][/SYSTEM_PROMPT]{% endif %}"
                  + _template("{{ m.content }}", ""), "[THINK]", Thinking.FREE, Thinking.OFF),
    "kimi_vl": (_template(_strips("◁/think▷"), ""), "◁think▷", Thinking.FREE, Thinking.OFF),
}  # fmt: skip
"""By family: the template, the start marker, and the state at the end of a prompt by default and with reasoning off."""
