"""Grammars that clients write: EBNF, or Lark where no rule is defined by `::=`, as vLLM tells them apart."""

from __future__ import annotations

from radixrt.constrained.lark_input.translate import is_lark, translate
from radixrt.constrained.productions import Productions
from radixrt.constrained.productions.ebnf import parse_ebnf


def read_grammar(source: str) -> Productions:
    """The productions of a grammar.

    Raises:
        RequestError: param "ebnf"; the EBNF is malformed, or no text satisfies the grammar.
        NotTranslated: the Lark grammar has no translation, or is malformed.
    """
    return translate(source) if is_lark(source) else parse_ebnf(source)
