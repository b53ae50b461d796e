"""The lower bound on the automaton of a set of numbers."""

from decimal import Decimal

import pytest

from radixrt.constrained.regex import alternate
from radixrt.constrained.regex.automaton import Dfa
from radixrt.constrained.schema import SchemaRefused, normalize
from radixrt.constrained.schema.normal_form.numbers import NumberSet, fewest_states


def numbers(*, of: str | None = None, not_of: tuple[str, ...] = (), high: int | None = None) -> NumberSet:
    return NumberSet(
        low=Decimal(1),
        high=None if high is None else Decimal(high),
        step=None if of is None else Decimal(of),
        not_multiples=frozenset(map(Decimal, not_of)),
    )


@pytest.mark.parametrize(
    ("sets", "fewest"),
    [
        ([numbers(of="7")], 7),
        ([numbers(of="1.5")], 3),
        ([numbers(of="8")], 1),  # the last digits decide
        ([numbers(not_of=("3", "11"))], 33),
        ([numbers(not_of=("3", "9"))], 3),  # multiples of 9 are multiples of 3
        ([numbers(of="3"), numbers(of="7")], 21),
        ([numbers(of="3"), numbers(not_of=("3",))], 1),  # every number
        ([numbers(of="7", high=500)], 1),  # a list of numbers
        ([numbers(not_of=("99991",)), numbers(of="99989")], 1),  # not looked for
    ],
)
def test_residues_bound_the_automaton_from_below(sets: list[NumberSet], fewest: int) -> None:
    assert fewest_states(sets) == fewest
    if fewest > 1:
        automaton = Dfa.of(alternate(*(one.language() for one in sets)), 2000)
        assert automaton is not None
        assert fewest <= len(automaton.arrows)


def test_numbers_with_too_many_residues_are_refused_without_an_automaton(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(*args: object) -> None:
        raise AssertionError("an automaton was made")

    monkeypatch.setattr("radixrt.constrained.schema.emit.plan.Dfa.of", of)
    with pytest.raises(SchemaRefused, match="more than 1200 states"):
        normalize({"type": "number", "minimum": 1, "allOf": [{"not": {"multipleOf": n}} for n in (3, 7, 11, 13)]})
