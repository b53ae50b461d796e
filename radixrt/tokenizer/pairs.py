"""`PairEncoder`: prompts of a query and a document, for models that score pairs in one prompt.

The template of pairs renders a message with the role "query" and one with the role "document"; without one, the
tokenizer's own encoding of a pair is used.
"""

from __future__ import annotations

import re

import msgspec

from radixrt.errors import ModelLoadError, RequestError
from radixrt.messages.client import RelevanceInfo, TextInput
from radixrt.messages.parts import ChatPrompt
from radixrt.models.relevance_spec import RelevanceSpec
from radixrt.tokenizer.chat_template import ChatTemplate
from radixrt.tokenizer.prompt_encoder import PromptEncoder
from radixrt.tokenizer.tokenizer import Tokenizer

PAIR_ROLES = (re.compile("""['"]query['"]"""), re.compile("""['"]document['"]"""))
"""Names of the roles of a pair, as the source of a template has them."""


class PairEncoder:
    """See the module's docstring.

    Attributes:
        info: how the model scores pairs; the scorer is None without a tokenizer.

    Raises:
        ModelLoadError: a causal reranker lacks a template, or the tokens of its answers.
    """

    def __init__(self, prompts: PromptEncoder, spec: RelevanceSpec, tokenizer: Tokenizer) -> None:
        self._prompts = prompts
        self._spec = spec
        self._template: ChatTemplate | None = None
        self.info = RelevanceInfo()
        if spec.scorer is None or tokenizer.is_none:
            return
        tokens = (0, 0)
        if spec.scorer != "cosine":
            self._template = _pair_template(spec, tokenizer)
        if spec.scorer == "tokens":
            if self._template is None:
                raise ModelLoadError(
                    "this reranker has no chat template with the roles query and document; name one with "
                    "score_template (--score-template), e.g. qwen3-reranker"
                )
            tokens = spec.tokens or (_token(tokenizer, "yes"), _token(tokenizer, "no"))
        self.info = RelevanceInfo(spec.scorer, spec.activation, tokens)

    def encode(self, query: TextInput, document: TextInput, instruction: str | None) -> bytes:
        """Encode a pair as an int32 column.

        Args:
            instruction: the task, for the template; None for the model's own.

        Raises:
            RequestError: naming the text.
        """
        self._prompts.check_text(query.param)
        if self._template is None:
            if instruction is not None:
                raise RequestError(
                    "instruction is for templates that have one, and this is a classifier without a template of pairs "
                    "(--score-template)",
                    param="instruction",
                )
            return self._prompts.pair(query.text, query.param, document.text, document.param)
        instruction = self._spec.instruction if instruction is None else instruction
        messages = [{"role": "query", "content": query.text}, {"role": "document", "content": document.text}]
        if instruction is not None:
            messages.insert(0, {"role": "system", "content": instruction})
        chat = ChatPrompt(
            msgspec.json.encode(messages),
            add_generation_prompt=self._spec.add_generation_prompt,
            template_kwargs=msgspec.json.encode({"instruction": instruction}),
        )
        return self._prompts.rendered(chat, self._template, document.param)


def _pair_template(spec: RelevanceSpec, tokenizer: Tokenizer) -> ChatTemplate | None:
    """Return the template of the option, or the model's own if it renders the roles of a pair."""
    if spec.template is not None:
        return ChatTemplate({"default": spec.template}, tokenizer.special_tokens)
    own = tokenizer.chat_template
    source = "" if own is None else own.sources.get("default", "")
    return own if all(role.search(source) for role in PAIR_ROLES) else None


def _token(tokenizer: Tokenizer, word: str) -> int:
    ids = tokenizer.encode(word, add_special_tokens=False)
    if len(ids) != 1:
        raise ModelLoadError(f"score_template is for models that answer yes or no, and {word!r} is not one token here")
    return ids[0]
