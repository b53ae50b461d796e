"""`Writer`: from the words that are appended to a state to the steps of its branch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from radixrt.lang.core.branch import Step, Write, WriteJoined
from radixrt.lang.core.calls import Choose, Generate
from radixrt.lang.core.conversation_state import Standing
from radixrt.lang.core.names import Names
from radixrt.lang.core.primitives import Expr, Gen, Join, RoleBegin, RoleEnd, Select, Sequence_, TextWord
from radixrt.lang.core.transcript import Begin, End, Text, Tools
from radixrt.lang.core.values import Slot


class Writer:
    """Knows what may stand where, and under which name a value will be read.

    Args:
        branch: id of the branch.
        defaults: sampling parameters for gens that do not say otherwise.
        names: who wrote which name.
        standing: where in its messages the text is.
    """

    def __init__(
        self, branch: str, defaults: Mapping[str, Any], names: Names | None = None, standing: Standing | None = None
    ) -> None:
        self.names = names or Names()
        self._branch = branch
        self._defaults = dict(defaults)
        self._standing = standing or Standing()

    def fork(self) -> Names:
        """The names up to here, which branches inherit; later ones are this state's own."""
        inherited = self.names
        self.names = Names(inherited)
        return inherited

    def child(self, branch: str, inherited: Names) -> Writer:
        """Of a branch that goes on from here."""
        return Writer(branch, self._defaults, Names(inherited), self._standing)

    def steps(self, item: Expr) -> list[Step]:
        """What one word other than a program stands for.

        Raises:
            ProgramError: it cannot stand here; RequestError: a sampling parameter of the program is not valid.
            TypeError: it is no word that can be appended.
        """
        if isinstance(item, RoleBegin):
            self._standing = self._standing.begin(item.role)
            return [Write(Begin(item.role))]
        if isinstance(item, RoleEnd):
            self._standing = self._standing.end(item.role)
            return [Write(End())]
        if isinstance(item, TextWord) and not item.text:
            return []
        self._standing = self._standing.say(item)
        if isinstance(item, TextWord):
            return [Write(Text(item.text))]
        if isinstance(item, Join):
            return [WriteJoined(item)]
        if isinstance(item, Gen):
            sampling = item.params(self._defaults)
            generate = Generate(item, sampling, self._named(item.name, "gen"))
            return [generate] if item.tools is None else [Write(Tools(item.tools)), generate]
        if isinstance(item, Select):
            return [Choose(item, self._named(item.name, "select"))]
        raise TypeError(f"{type(item).__name__} cannot be appended to a state")

    @contextlib.contextmanager
    def defaults(self, sampling: Mapping[str, Any]) -> Iterator[None]:
        """Inside the block, these sampling parameters hold for gens that do not say otherwise."""
        before, self._defaults = self._defaults, {**self._defaults, **sampling}
        try:
            yield
        finally:
            self._defaults = before

    def _named(self, name: str | None, kind: str) -> Slot:
        slot = Slot(name, f'{kind} "{name}"' if name else f"a {kind} without a name", self._branch)
        if name is not None:
            self.names[name] = slot
        return slot


def flat(item: Expr) -> Iterator[Expr]:
    """The words of a sequence, one by one."""
    if isinstance(item, Sequence_):
        for part in item.items:
            yield from flat(part)
    else:
        yield item
