"""Judging values by the texts that productions accept."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from radixrt.constrained.productions import Productions
from radixrt.constrained.recognizer import Recognizer, State

States = dict[int, State]
MOST_ORDERS = 32
"""Sets of keys that are followed at once: an object with many undeclared keys has too many orders to try them all."""


class TextJudge:
    """Whether some spelling of a value is a sentence: any order of keys, numbers as written or as plain decimals."""

    def __init__(self, productions: Productions) -> None:
        self._recognizer = Recognizer(productions)

    def accepts(self, value: Any) -> bool:
        start = self._recognizer.start()
        return any(self._recognizer.is_complete(state) for state in self._after({id(start): start}, value).values())

    def accepts_text(self, text: str) -> bool:
        state = self._recognizer.advance(self._recognizer.start(), text)
        return state is not None and self._recognizer.is_complete(state)

    def _read(self, states: States, text: str) -> States:
        found = (self._recognizer.advance(state, text) for state in states.values())
        return {id(state): state for state in found if state is not None}

    def _after(self, states: States, value: Any) -> States:
        """The states after any spelling of the value, from any of the states."""
        if not states:
            return {}
        if isinstance(value, dict) and value:
            return self._members(states, value)
        if isinstance(value, list) and value:
            for index, item in enumerate(value):
                states = self._after(self._read(states, "," if index else "["), item)
            return self._read(states, "]")
        found: States = {}
        for text in spellings(value):
            found |= self._read(states, text)
        return found

    def _members(self, states: States, members: dict[str, Any]) -> States:
        layer: dict[frozenset[str], States] = {frozenset(): states}
        for _ in members:
            longer: dict[frozenset[str], States] = {}
            for written, before in layer.items():
                for name, member in members.items():
                    if name not in written:
                        key = f"{',' if written else '{'}{json.dumps(name, ensure_ascii=False)}:"
                        after = self._after(self._read(before, key), member)
                        if after:
                            longer.setdefault(written | {name}, {}).update(after)
            layer = dict(list(longer.items())[:MOST_ORDERS])
        return self._read(layer.get(frozenset(members), {}), "}")


def spellings(value: Any) -> list[str]:
    written = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if isinstance(value, float):
        plain = format(Decimal(written), "f")
        short = plain.rstrip("0").rstrip(".") if "." in plain else plain
        return list(dict.fromkeys([written, plain, "0" if short == "-0" else short]))
    return [written]
