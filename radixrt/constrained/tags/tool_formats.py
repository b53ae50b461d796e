"""`ToolFormat`: the text in which a family of models writes calls of tools, as data; `TOOL_FORMATS` lists all of them.

In every format the calls of an answer are

    begin call (separator call)* end        call = head arguments tail

where the head names the tool, these are constant texts, and the arguments are held to the schema of the tool. A new
format is a new row of the table. Texts follow the chat templates of the models; where they agree with the formats of
`xgrammar.get_model_structural_tag`, `peer` names the format there, and a test holds the row to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from radixrt.constrained.tags.argument_styles import ARGUMENT_STYLES, ArgumentStyle
from radixrt.sampling_params import StopScope
from radixrt.tool_call_formats import TOOL_FORMAT_NAMES, ToolFormatName

NAME, INDEX = "{name}", "{index}"
_BLANKS = re.compile(r"(\{name\}|\{index\})")


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """The format in which a model writes calls.

    Attributes:
        opening: text of a call up to its arguments, with `{name}` for the tool and perhaps `{index}` for the number of
            the call in the answer, in digits.
        tail: text of a call after its arguments.
        trigger: text by which an answer with calls is recognized. With `in_text` the trigger may stand anywhere in the
            answer, otherwise the answer begins with the trigger.
        begin, separator, end: texts before the first call, between two calls, and after the last call.
        style: style of the arguments, in `ARGUMENT_STYLES`.
        in_text: calls may come after free text; otherwise an answer either begins with a call or has none.
        several: an answer can hold more than one call.
        optional_token: a token that may stand before everything else.
        markers: texts that are single tokens in the vocabularies of models that were trained on this format. Where text
            may come first, calls begin with the first marker.
        call_id: ids of calls as the chat template shows them to the model, in place of the ids of clients; empty for
            templates that do not show ids.
        first_index: the index of the first call.
        architectures: entries of `architectures` in config.json of models that write this format, even where their chat
            template does not show it.
        peer: names of the format in `xgrammar.get_model_structural_tag`.
    """

    name: ToolFormatName
    opening: str
    tail: str
    trigger: str
    begin: str = ""
    separator: str = ""
    end: str = ""
    style: str = "json"
    in_text: bool = True
    several: bool = True
    optional_token: str | None = None
    markers: tuple[str, ...] = ()
    call_id: str = ""
    first_index: int = 0
    architectures: tuple[str, ...] = ()
    peer: tuple[str, ...] = ()

    @property
    def arguments(self) -> ArgumentStyle:
        return ARGUMENT_STYLES[self.style]

    @property
    def free_text(self) -> StopScope:
        """The part of an answer before its first call, in which stop strings are looked for."""
        if self.in_text:
            return StopScope(until=(self.trigger,))
        optional = () if self.optional_token is None else (self.optional_token,)
        return StopScope(until=(self.trigger, *optional), at_start=True)

    @property
    def head_parts(self) -> list[str]:
        """The opening, divided into constant texts, `NAME` and `INDEX`."""
        return [part for part in _BLANKS.split(self.opening) if part]

    def head(self, name: str, index: int = 0) -> str:
        """Return the text of a call up to its arguments.

        Args:
            index: the number of calls before.
        """
        return self._filled(self.opening, name, index)

    def id_of(self, name: str, index: int) -> str:
        """Return the id under which a chat template shows a call to the model; empty if no id is prescribed."""
        return self._filled(self.call_id, name, index)

    def _filled(self, text: str, name: str, index: int) -> str:
        return text.replace(NAME, name).replace(INDEX, str(self.first_index + index))

    def write(self, calls: Iterable[tuple[str, Any]]) -> str:
        """Return the text of calls, each a name and decoded arguments, as a model writes the calls."""
        texts = [
            self.head(name, i) + self.arguments.write(arguments) + self.tail
            for i, (name, arguments) in enumerate(calls)
        ]
        return self.begin + self.separator.join(texts) + self.end


HERMES = ToolFormat(
    "hermes",
    opening='<tool_call>\n{"name": "{name}", "arguments": ',
    tail="}\n</tool_call>",
    trigger="<tool_call>",
    separator="\n",
    markers=("<tool_call>", "</tool_call>"),
    peer=("qwen_3",),
)
LLAMA3 = ToolFormat(
    "llama3",
    opening='{"name": "{name}", "parameters": ',
    tail="}",
    trigger='{"name"',
    in_text=False,
    several=False,
    optional_token="<|python_tag|>",
    markers=("<|python_tag|>",),
    peer=("llama",),
)
GENERIC_JSON = ToolFormat(
    "json",
    opening='{"name": "{name}", "arguments": ',
    tail="}",
    trigger='[{"name"',
    begin="[",
    separator=", ",
    end="]",
    in_text=False,
)

_QWEN_MARKERS = ("<tool_call>", "</tool_call>")
_GLM_MARKERS = ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
_DEEPSEEK_MARKERS = tuple(
    f"<｜tool▁{text}｜>" for text in ("calls▁begin", "calls▁end", "call▁begin", "call▁end", "sep")
)
_DSML = ("｜DSML｜",)
_M3 = "]<]minimax[>["


def _function_tags(name: ToolFormatName, line: str, style: str, *peer: str) -> ToolFormat:
    """Tags of a call, its function and each parameter; `line` ends the lines of the outer tags."""
    return ToolFormat(
        name,
        opening=f"<tool_call>{line}<function={NAME}>{line}",
        tail=f"</function>{line}</tool_call>",
        trigger="<tool_call>",
        separator="\n",
        style=style,
        markers=_QWEN_MARKERS,
        peer=peer,
    )


def _glm(name: ToolFormatName, line: str, style: str, *peer: str) -> ToolFormat:
    """Alternating tags of keys and values behind the name of the function."""
    return ToolFormat(
        name,
        opening=f"<tool_call>{NAME}{line}",
        tail="</tool_call>",
        trigger="<tool_call>",
        separator="\n" if line else "",
        style=style,
        markers=_GLM_MARKERS,
        peer=peer,
    )


def _dsml(name: ToolFormatName, frame: str, gap: str, style: str, architecture: str) -> ToolFormat:
    """DeepSeek's markup, of which each tag begins with the same control token."""
    return ToolFormat(
        name,
        opening=f'<｜DSML｜{gap}invoke name="{NAME}">\n',
        tail=f"</｜DSML｜{gap}invoke>\n",
        trigger=f"<｜DSML｜{gap}{frame}>",
        begin=f"<｜DSML｜{gap}{frame}>\n",
        end=f"</｜DSML｜{gap}{frame}>",
        style=style,
        markers=_DSML,
        architectures=(architecture,),
        peer=(name,),
    )


_FORMATS: dict[str, ToolFormat] = {
    form.name: form
    for form in (
        HERMES,
        LLAMA3,
        GENERIC_JSON,
        ToolFormat(
            "exaone",
            opening='<tool_call>{"name": "{name}", "arguments": ',
            tail="}</tool_call>",
            trigger="<tool_call>",
            separator="\n",
            markers=_QWEN_MARKERS,
            peer=("exaone",),
        ),
        ToolFormat(
            "kimi",
            opening="<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>",
            tail="<|tool_call_end|>",
            trigger="<|tool_calls_section_begin|>",
            begin="<|tool_calls_section_begin|>",
            end="<|tool_calls_section_end|>",
            markers=(
                "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
                "<|tool_call_argument_begin|>", "<|tool_call_end|>",
            ),
            call_id="functions.{name}:{index}",
            peer=("kimi",),
        ),
        ToolFormat(
            "deepseek_r1",
            opening="<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n",
            tail="\n```<｜tool▁call▁end｜>",
            trigger="<｜tool▁calls▁begin｜>",
            begin="<｜tool▁calls▁begin｜>",
            separator="\n",
            end="<｜tool▁calls▁end｜>",
            markers=_DEEPSEEK_MARKERS,
            peer=("deepseek_r1",),
        ),
        ToolFormat(
            "deepseek_v3_1",
            opening="<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>",
            tail="<｜tool▁call▁end｜>",
            trigger="<｜tool▁calls▁begin｜>",
            begin="<｜tool▁calls▁begin｜>",
            end="<｜tool▁calls▁end｜>",
            markers=_DEEPSEEK_MARKERS,
            peer=("deepseek_v3_1",),
        ),
        _dsml("deepseek_v3_2", "function_calls", "", "deepseek_xml", "DeepseekV32ForCausalLM"),
        _dsml("deepseek_v4", "tool_calls", "", "deepseek_xml", "DeepseekV4ForCausalLM"),
        _dsml("deepseek_v4_1", "calls", " ", "deepseek_v4_1_xml", "DeepseekV41ForCausalLM"),
        _function_tags("qwen_3_coder", "\n", "qwen_xml", "qwen_3_coder", "qwen_3_5"),
        _function_tags("mimo_lines", "\n", "qwen_xml_lines"),
        _function_tags("mimo", "", "qwen_xml_plain", "mimo"),
        _glm("glm_4_5", "\n", "glm_xml_lines"),
        _glm("glm_4_7", "", "glm_xml", "glm_4_7"),
        ToolFormat(
            "minimax",
            opening='<invoke name="{name}">\n',
            tail="</invoke>\n",
            trigger="<minimax:tool_call>",
            begin="<minimax:tool_call>\n",
            end="</minimax:tool_call>",
            style="minimax_xml",
            markers=("<minimax:tool_call>", "</minimax:tool_call>"),
            architectures=("MiniMaxM2ForCausalLM",),
            peer=("minimax",),
        ),
        ToolFormat(
            "minimax_m3",
            opening=f'{_M3}<invoke name="{NAME}">',
            tail=f"{_M3}</invoke>\n",
            trigger=f"{_M3}<tool_call>",
            begin=f"{_M3}<tool_call>\n",
            end=f"{_M3}</tool_call>",
            style="minimax_m3_xml",
            markers=(_M3,),
            peer=("minimax_m3",),
        ),
        ToolFormat(
            "cohere",
            opening=f'<cofl:tool_call id="{INDEX}" name="{NAME}">',
            tail="</cofl:tool_call>",
            trigger="<cofl:tool_calls>",
            begin="<cofl:tool_calls>",
            end="</cofl:tool_calls>",
            style="cohere_xml",
            call_id=INDEX,
            peer=("cohere",),
        ),
        ToolFormat(
            "kimi_k3",
            opening=f'<|open|>call tool="{NAME}" index="{INDEX}"<|sep|>',
            tail="<|close|>call<|sep|>",
            trigger="<|open|>tools<|sep|>",
            begin="<|open|>tools<|sep|>",
            end="<|close|>tools<|sep|>",
            style="kimi_k3_xml",
            markers=("<|open|>", "<|close|>", "<|sep|>"),
            first_index=1,
            peer=("kimi_k3",),
        ),
    )
}  # fmt: skip
TOOL_FORMATS: dict[str, ToolFormat] = {name: _FORMATS[name] for name in TOOL_FORMAT_NAMES}


def formats_of_architecture(architectures: Sequence[str], tokens: Iterable[str]) -> list[ToolFormat]:
    """Return the formats that models of these architectures write, if the vocabulary has the markers of the format."""
    known = frozenset(tokens)
    return [
        form
        for form in TOOL_FORMATS.values()
        if not known.isdisjoint(form.markers) and not set(architectures).isdisjoint(form.architectures)
    ]
