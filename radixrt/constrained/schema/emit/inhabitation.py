"""Which nodes have a value at all, and plans without what has none.

The least fixpoint: a node has a value if one of its alternatives can be filled with values of nodes that have one. So a
member that may be left out, and whose value can never end, is left out.
"""

from __future__ import annotations

from collections.abc import Mapping

from radixrt.constrained.schema.emit.plan import ArrayPlan, ObjectPlan, Plan
from radixrt.constrained.schema.normal_form.nodes import Node


def inhabited(plans: Mapping[Node, Plan]) -> set[Node]:
    """The nodes that have a value. Where items or members are counted, a node may be in it that has none."""
    alive: set[Node] = set()
    waiting = list(plans)
    while True:
        left = [node for node in reversed(waiting) if not _is_alive(plans[node], alive, node)]
        if len(left) == len(waiting):
            return alive
        waiting = left[::-1]


def _is_alive(plan: Plan, alive: set[Node], node: Node) -> bool:
    """Whether the plan can be filled from live nodes; enters the node if so."""
    if (
        plan.has_scalars
        or any(part in alive for part in plan.union)
        or any(_array(array, alive) for array in plan.arrays)
        or any(_object(one, alive) for one in plan.objects)
    ):
        alive.add(node)
        return True
    return False


def _array(plan: ArrayPlan, alive: set[Node]) -> bool:
    if plan.low > len(plan.prefix) and plan.rest not in alive:
        return False
    return all(node in alive for node in plan.prefix[: plan.low])


def _object(plan: ObjectPlan, alive: set[Node]) -> bool:
    if any(needed and node not in alive for _, node, needed in plan.members):
        return False
    if plan.high is not None and max(plan.low, sum(needed for *_, needed in plan.members)) > plan.high:
        return False
    if any(node in alive for _, node in plan.classes):
        return True
    return not plan.witnesses and plan.low <= sum(node in alive for _, node, _ in plan.members)


def strip(plan: Plan, alive: set[Node]) -> None:
    """Leave out of a plan what has no value. Law: the texts of the plan stay the same."""
    plan.union = [node for node in plan.union if node in alive]
    plan.arrays = [array for array in plan.arrays if _array(array, alive)]
    for array in plan.arrays:
        for index, node in enumerate(array.prefix):
            if node not in alive:
                array.prefix, array.rest, array.high = array.prefix[:index], None, index
                break
        if array.rest is not None and array.rest not in alive:
            array.rest, array.high = None, len(array.prefix)
    plan.objects = [one for one in plan.objects if _object(one, alive)]
    for one in plan.objects:
        one.members = [member for member in one.members if member[1] in alive]
        if not one.witnesses:
            one.classes = [member for member in one.classes if member[1] in alive]


def is_exact(plan: Plan) -> bool:
    """Whether `inhabited` says for sure that the plan has a value or has none."""
    return not any(array.counts or array.unique is not None for array in plan.arrays) and not any(
        one.witnesses for one in plan.objects
    )


def conflict(plans: Mapping[Node, Plan], alive: set[Node], root: Node) -> Node:
    """The place to name when the root has no value: the deepest node that alone is to blame."""
    node, seen = root, {root}
    while True:
        dead = {
            below
            for one in plans[node].objects
            for _, below, needed in one.members
            if needed and below not in alive and below not in seen
        }
        if len(dead) != 1 or len(plans[node].objects) != 1 or plans[node].arrays:
            return node
        node = dead.pop()
        seen.add(node)
