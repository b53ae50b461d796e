"""Checks of texts against a grammar and of values against a schema, with explanations for people."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from radixrt.constrained.guards.scanner import Scanner
from radixrt.constrained.obligations import Obligation
from radixrt.constrained.productions import Productions, Special, postorder
from radixrt.constrained.recognizer import Recognizer, State

if TYPE_CHECKING:
    from radixrt.constrained.vocabulary import Vocabulary
    from radixrt.constraint import StructuredOptions

CONTEXT_CHARS = 30
PROBES = [chr(c) for c in range(0x20, 0x7F)] + ["\n", "\t", "é", "東"]
"""Characters that are tried as continuations where a text leaves the grammar."""
MOST_LISTED = 12


class TextChecker:
    """Checks texts against productions; a text spells the grammar's control tokens as their text.

    Args:
        obligations: of the constraint.
    """

    def __init__(
        self, productions: Productions, vocabulary: Vocabulary, obligations: Sequence[Obligation] = ()
    ) -> None:
        self._recognizer = Recognizer(productions, vocabulary.control_tokens)
        self._scanner = Scanner(self._recognizer, obligations) if obligations else None
        specials = {e.text for e in postorder(productions.rules.values()) if isinstance(e, Special)}
        self._specials = re.compile("(" + "|".join(map(re.escape, sorted(specials))) + ")") if specials else None

    def accepts(self, text: str) -> bool:
        """Return whether the text is a sentence of the grammar."""
        state, pieces = self._follow(text)
        is_sentence = _length(pieces) == len(text) and self._recognizer.is_complete(state)
        return is_sentence and self._violation(pieces) is None

    def shortest(self) -> str:
        """Return a shortest sentence."""
        return self._closing(self._recognizer.start())

    def problem(self, text: str) -> str | None:
        """Return the position where the text leaves the grammar, and possible continuations; None for a sentence."""
        state, pieces = self._follow(text)
        good = _length(pieces)
        end = self._violation(pieces)
        if end is not None:
            what = "the key before repeats an earlier key of the object, or the item before repeats an earlier item"
            return f"position {end}: {what}"
        if good == len(text):
            if self._recognizer.is_complete(state):
                return None
            return f"the text ends too early; a shortest way to go on is {_quoted(self._closing(state))}"
        before = text[max(0, good - CONTEXT_CHARS) : good]
        place = f"position {good}, after {before!r}" if before else "position 0"
        return f"{place}: {text[good]!r} cannot stand there; {self._possible(state)}"

    def _violation(self, pieces: Sequence[str | Special]) -> int | None:
        """Return the offset in characters behind the first unit that breaks an obligation."""
        return None if self._scanner is None else self._scanner.violation(pieces)

    def _follow(self, text: str) -> tuple[State, list[str | Special]]:
        """Return the recognizer's state after the longest valid prefix of the text, and that prefix."""
        state = self._recognizer.start()
        pieces: list[str | Special] = []
        for piece in self._specials.split(text) if self._specials else [text]:
            after = None
            if self._specials is not None and self._specials.fullmatch(piece):
                after = self._recognizer.advance_special(state, piece)
            if after is None:
                state, taken = self._follow_text(state, piece)
                pieces.append(piece[:taken])
                if taken < len(piece):
                    break
            else:
                state = after
                pieces.append(Special(piece))
        return state, pieces

    def _follow_text(self, state: State, text: str) -> tuple[State, int]:
        recognizer = self._recognizer
        good, step = 0, len(text)
        while step:
            further = recognizer.advance(state, text[good : good + step])
            if further is None:
                step //= 2
            else:
                state, good = further, good + step
                step = min(step, len(text) - good)
        return state, good

    def _possible(self, state: State) -> str:
        """Return the possible continuations for a message."""
        recognizer = self._recognizer
        if recognizer.must_end(state):
            return "nothing can, the text is complete"
        found = [char for char in PROBES if recognizer.advance(state, char) is not None]
        end = " or the end" if recognizer.is_complete(state) else ""
        if found and len(found) <= MOST_LISTED:
            return f"possible: {' '.join(found)}{end}"
        closing = self._closing(state) or found[0]
        return f"possible, among others: {_quoted(closing)}{end}"

    def _closing(self, state: State) -> str:
        pieces = self._recognizer.closing(state).pieces
        return "".join(piece.text if isinstance(piece, Special) else piece for piece in pieces)


def _length(pieces: Sequence[str | Special]) -> int:
    """Return the number of characters of a text, in which a control token stands as its text."""
    return sum([len(piece.text if isinstance(piece, Special) else piece) for piece in pieces])


def _quoted(text: str) -> str:
    return repr(text if len(text) <= CONTEXT_CHARS else text[:CONTEXT_CHARS] + "...")


def value_problem(schema: Any, value: Any, options: StructuredOptions) -> str:
    """Return the most relevant error of the `jsonschema` package for a value that a schema refuses."""
    import jsonschema
    from jsonschema.validators import validator_for
    from jsonschema_specifications import REGISTRY

    cls = validator_for(schema, default=jsonschema.Draft202012Validator)
    checker = cls.FORMAT_CHECKER if options.formats == "assert" else None
    try:
        # Name the registry, because without a registry the package would fetch unknown references.
        validator = cls(schema, format_checker=checker, registry=REGISTRY)
        error = jsonschema.exceptions.best_match(validator.iter_errors(value))
    except Exception:  # a reference that cannot be followed, a pattern in another dialect: any of its own kinds
        error = None
    if error is None:
        return "the schema, as it is enforced, does not take this value"
    place = "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in error.absolute_path)
    return f"At {place or 'the root'}: {error.message[:300]}"


def compact(value: Any) -> str:
    """Return the JSON text of a value as it would be generated, except for the order of keys."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
