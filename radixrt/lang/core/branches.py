"""`Branches`: the states of a fork; `join`: their values as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from radixrt.lang.core.primitives import Join
from radixrt.lang.errors import ProgramError

if TYPE_CHECKING:
    from radixrt.lang.core.state import State

K = TypeVar("K")


class Branches(Generic[K]):
    """The states of a fork, in order. `branches[0]`, or `branches["key"]` where keys are not numbers.

    As a `with` block: leaving it says that nothing more will be appended to them; an exception cancels them.
    """

    def __init__(self, keys: Sequence[K], states: Sequence[State]) -> None:
        self._keys = list(keys)
        self._states = list(states)

    @overload
    def __getitem__(self, index: int | str | tuple[Any, ...] | None) -> State: ...
    @overload
    def __getitem__(self, index: slice) -> list[State]: ...
    def __getitem__(self, index: Any) -> State | list[State]:
        """By position where the index is a number, else by key. Raises IndexError, KeyError."""
        if isinstance(index, (int, slice)):
            return self._states[index]
        if index not in self._keys:
            raise KeyError(f"no branch has the key {index!r}; there are {', '.join(map(repr, self._keys))}")
        return self._states[self._keys.index(index)]

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[State]:
        return iter(self._states)

    def keys(self) -> list[K]:
        """What the branches were forked by."""
        return list(self._keys)

    def items(self) -> list[tuple[State, K]]:
        """Each state with its key: `for view, topic in views.items()`."""
        return list(zip(self._states, self._keys, strict=True))

    def values(self, name: str) -> list[Any]:
        """The value of that name in each branch; waits for all of them."""
        return [state[name] for state in self._states]

    def end(self) -> None:
        """Nothing more will be appended to any of them; see `State.end`."""
        for state in self._states:
            state.end()

    def cancel(self) -> None:
        """See `State.cancel`."""
        for state in self._states:
            state.cancel()

    def __enter__(self) -> Branches[K]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.cancel()
        self.end()


def join(
    branches: Iterable[State] | Mapping[Any, State],
    name: str,
    *,
    sep: str = "\n",
    format: str = "{value}",
    skip_errors: bool = False,
) -> Join:
    """What each branch has written under a name, as one text to append; the state appended to waits for them.

    The branches are taken to be done with it; appending more to them is still possible.

    Args:
        branches: states, most often what `fork` gave.
        name: of a gen or select in each.
        sep: between them.
        format: of each; may use {value} (the text), {key} (what `fork` named it by) and {index}.
        skip_errors: leave out branches that failed; otherwise the join fails with the first.

    Raises:
        KeyError: a branch has no such name.
        ProgramError: the format uses another name.
    """
    states = list(branches.values()) if isinstance(branches, Mapping) else list(branches)
    try:
        format.format(value="", key="", index=0)
    except (KeyError, IndexError, ValueError) as error:
        raise ProgramError(f"join: format may use {{value}}, {{key}} and {{index}}; {error!r}") from None
    keys = branches.keys() if isinstance(branches, Branches) else [state.key for state in states]
    slots = [state.slot(name) for state in states]
    for state in states:
        state.end()
    return Join(slots, keys, sep, format, skip_errors, states[0].read_join if states else Join.text)
