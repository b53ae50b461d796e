"""`Names`: which slot each name of a state stands for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from radixrt.lang.core.values import Slot

if TYPE_CHECKING:
    from radixrt.lang.core.state import State


class Names:
    """A state's own names, and those that it inherited when it was forked; those no longer change."""

    __slots__ = ("_above", "_own")

    def __init__(self, above: Names | None = None) -> None:
        self._above = above
        self._own: dict[str, Slot] = {}

    def __setitem__(self, name: str, slot: Slot) -> None:
        self._own[name] = slot

    def find(self, name: str) -> Slot | None:
        names: Names | None = self
        while names is not None:
            if name in names._own:
                return names._own[name]
            names = names._above
        return None

    def all(self) -> dict[str, Slot]:
        """Every name with its slot, the oldest first."""
        layers: list[dict[str, Slot]] = []
        names: Names | None = self
        while names is not None:
            layers.append(names._own)
            names = names._above
        return {name: slot for own in reversed(layers) for name, slot in own.items()}


class MetaView(Mapping[str, Any]):
    """`state.meta`."""

    def __init__(self, state: State) -> None:
        self._state = state

    def __getitem__(self, name: str) -> Any:
        return self._state.get_meta(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._state.names())

    def __len__(self) -> int:
        return len(self._state.names())
