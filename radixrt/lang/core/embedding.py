"""`embed`: vectors of texts as a value of a program. It adds nothing to the conversation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from radixrt.errors import RequestError, shown
from radixrt.lang.core.expr import Expr


@dataclass(frozen=True)
class EmbedTexts(Expr):
    """See `embed`. `is_one`: the program gave a single text, so the value is a vector and not a list."""

    name: str
    texts: tuple[str, ...]
    is_one: bool
    dimensions: int | None = None
    normalize: bool | None = None
    prompt_name: str | None = None
    prompt: str | None = None


def embed(
    name: str, texts: str | Iterable[str], *, dimensions: int | None = None, normalize: bool | None = None,
    prompt_name: str | None = None, prompt: str | None = None,
) -> Expr:  # fmt: skip
    """Vectors of texts; read as `state[name]`: float32 [dimensions] for one text, [n, dimensions] for several.

    An embed may be appended anywhere, and adds nothing to the conversation. Like other calls, appending returns at
    once.

    Args:
        texts: a text, or at least one text.
        dimensions: cut the vectors to their first `dimensions` numbers, for models trained for this (Matryoshka).
        normalize: scale the vectors to length 1, after the cut; default: as the model's own files define.
        prompt_name: name of the model's prompt that is written before each text; default: the model's default prompt.
        prompt: text that is written before each text, instead of a prompt of the model.

    Raises:
        RequestError: an argument has a wrong type or value; names it.
    """
    if not isinstance(name, str) or not name:
        raise RequestError(f"the name of an embed must be a text, not {shown(name)}", param="name")
    is_one = isinstance(texts, str)
    given = (texts,) if isinstance(texts, str) else tuple(texts) if hasattr(texts, "__iter__") else ()
    if not given or not all(isinstance(text, str) and text for text in given):
        raise RequestError("texts must be a text or texts, at least one, and none of them empty", param="texts")
    if dimensions is not None and (type(dimensions) is not int or dimensions < 1):
        raise RequestError(f"dimensions must be an integer of at least 1, not {shown(dimensions)}", param="dimensions")
    if normalize is not None and not isinstance(normalize, bool):
        raise RequestError(f"normalize must be true or false, not {shown(normalize)}", param="normalize")
    for argument, value in (("prompt_name", prompt_name), ("prompt", prompt)):
        if value is not None and not isinstance(value, str):
            raise RequestError(f"{argument} must be a text, not {shown(value)}", param=argument)
    if prompt is not None and prompt_name is not None:
        raise RequestError("prompt and prompt_name exclude each other; give one", param="prompt_name")
    return EmbedTexts(name, given, is_one, dimensions, normalize, prompt_name, prompt)
