"""`GenerationPrompts`: what a chat template writes behind the last message so that the model answers.

The next request of a conversation has the same tokens up to there. What follows may differ: many templates open a block
for reasoning in the generation prompt, and drop the reasoning of earlier answers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec

from radixrt.errors import RequestError
from radixrt.messages.parts import ChatPrompt
from radixrt.messages.wire import Int32Array
from radixrt.tokenizer.chat_template import ChatTemplate

MAX_KNOWN = 64
"""Number of sets of template variables whose generation prompt is remembered: clients choose them."""
PROBE = [{"role": "user", "content": "a"}]


class GenerationPrompts:
    """See the module's docstring.

    Args:
        template: the model's template.
    """

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._known: OrderedDict[bytes, list[int]] = OrderedDict()  # by the template variables, as JSON

    def turn_len(self, chat: ChatPrompt, ids: Int32Array, encode: Callable[[str], list[int]]) -> int:
        """Number of leading tokens of a conversation's prompt up to the end of its last message.

        Args:
            ids: int32, the prompt.
            encode: encodes a text of the template.

        Returns:
            0 if the prompt has no generation prompt, or none that is the same for all conversations.
        """
        if not chat.add_generation_prompt or chat.continue_final_message:
            return 0
        suffix = self._known.get(chat.template_kwargs)
        if suffix is None:
            suffix = self._known[chat.template_kwargs] = self._suffix(chat, encode)
            if len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)
        if not suffix or ids[-len(suffix) :].tolist() != suffix:
            return 0
        return len(ids) - len(suffix)

    def _suffix(self, chat: ChatPrompt, encode: Callable[[str], list[int]]) -> list[int]:
        try:
            variables: dict[str, Any] = msgspec.json.decode(chat.template_kwargs, type=dict[str, Any])
            before = self._template.render(PROBE, variables=variables, add_generation_prompt=False)
            whole = self._template.render(PROBE, variables=variables)
            return encode(whole[len(before) :]) if whole.startswith(before) else []
        except RequestError:
            return []  # the template refuses such a conversation
