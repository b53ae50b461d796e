"""Alternatives of an `anyOf` where it matters which of its options hold: because evaluation is recorded."""

from __future__ import annotations

from radixrt.constrained.schema.document.index import Located
from radixrt.constrained.schema.normal_form.conditions import Alternative, Choice
from radixrt.constrained.schema.normal_form.disjointness import are_disjoint
from radixrt.constrained.schema.normal_form.graph import Graph
from radixrt.constrained.schema.normal_form.nodes import Is
from radixrt.constrained.schema.normal_form.static_checks import evaluates_all_members

MAX_SETS = 64
"""Sets of an `anyOf`'s options that are tried when an object is closed; if there are more, each option is decided."""


def combinations(graph: Graph, options: tuple[Located, ...]) -> list[Alternative] | None:
    """Return the sets of options that may hold together, of which one must; None if there are too many.

    That other options may hold too needs not be said where the frame only closes the object: what they evaluate would
    admit more members, and those are in a larger set.
    """
    sets: list[tuple[Located, ...]] = [()]
    for option in options:
        if evaluates_all_members(graph, option):
            sets.append((option,))  # no other option admits more members
        else:
            sets += [
                (*chosen, option)
                for chosen in sets
                if not any(
                    evaluates_all_members(graph, other) or are_disjoint(graph, option, other) for other in chosen
                )
            ]
        if len(sets) > MAX_SETS:
            return None
    return [tuple(Is(option, True) for option in chosen) for chosen in sorted(sets[1:], key=len)]


def first_of(options: tuple[Located, ...], place: int) -> Alternative:
    """Return the alternative in which the option at a place is the first that holds."""
    later = tuple(Choice(((Is(option, True),), (Is(option, False),))) for option in options[place + 1 :])
    return (*(Is(option, False) for option in options[:place]), Is(options[place], True), *later)
