"""`rerank`: documents by their relevance to a query as a value of a program. It adds nothing to the conversation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from radixrt.errors import RequestError, shown
from radixrt.lang.core.expr import Expr


@dataclass(frozen=True)
class RerankTexts(Expr):
    """See `rerank`."""

    name: str
    query: str
    documents: tuple[str, ...]
    top_n: int | None = None
    instruction: str | None = None
    activation: bool = True


def rerank(
    name: str, query: str, documents: Iterable[str], *, top_n: int | None = None, instruction: str | None = None,
    activation: bool = True,
) -> Expr:  # fmt: skip
    """Documents in descending order of their relevance to a query; read as `state[name]`.

    The value is a list of `radixrt.tasks.rerank.RankedDocument`, each with `index`, `score` and `document`. The
    model must be a reranker, an embedding model or a classifier of one label. A rerank may be appended anywhere, and
    adds nothing to the conversation. Like other calls, appending returns at once.

    Args:
        documents: at least one text.
        top_n: number of the best documents to return; None for all.
        instruction: description of the task, for models whose template has an instruction.
        activation: False for logits as scores.

    Raises:
        RequestError: an argument has a wrong type or value; names it.
    """
    if not isinstance(name, str) or not name:
        raise RequestError(f"the name of a rerank must be a text, not {shown(name)}", param="name")
    if not isinstance(query, str) or not query:
        raise RequestError(f"query must be a text that is not empty, not {shown(query)}", param="query")
    if isinstance(documents, str):
        raise RequestError("documents must be a list of texts, not one text", param="documents")
    given = tuple(documents) if hasattr(documents, "__iter__") else ()
    if not given or not all(isinstance(text, str) and text for text in given):
        raise RequestError("documents must be texts, at least one, and none of them empty", param="documents")
    if top_n is not None and (type(top_n) is not int or top_n < 1):
        raise RequestError(f"top_n must be an integer of at least 1, not {shown(top_n)}", param="top_n")
    if instruction is not None and not isinstance(instruction, str):
        raise RequestError(f"instruction must be a text, not {shown(instruction)}", param="instruction")
    if not isinstance(activation, bool):
        raise RequestError(f"activation must be true or false, not {shown(activation)}", param="activation")
    return RerankTexts(name, query, given, top_n, instruction, activation)
