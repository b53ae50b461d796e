"""Nodes that have a value, and plans without the alternatives, items and members that have none."""

from __future__ import annotations

from collections.abc import Mapping

from radixrt.constrained.schema.emit.plan import ArrayPlan, ObjectPlan, Plan
from radixrt.constrained.schema.normal_form.nodes import Node


def inhabited(plans: Mapping[Node, Plan]) -> set[Node]:
    """Return the nodes that have a value: the least fixpoint over the plans.

    Where items or members are counted (see `is_exact`), a node without values may be among them.
    """
    alive: set[Node] = set()
    waiting = list(plans)
    while True:
        left = [node for node in reversed(waiting) if not _is_inhabited(plans[node], alive, node)]
        if len(left) == len(waiting):
            return alive
        waiting = left[::-1]


def _is_inhabited(plan: Plan, alive: set[Node], node: Node) -> bool:
    """Return whether inhabited nodes suffice to build a value of the plan; if so, add the node to them."""
    if (
        plan.has_scalars
        or any(part in alive for part in plan.union)
        or any(_has_array(array, alive) for array in plan.arrays)
        or any(_has_object(one, alive) for one in plan.objects)
    ):
        alive.add(node)
        return True
    return False


def _has_array(plan: ArrayPlan, alive: set[Node]) -> bool:
    if plan.low > len(plan.prefix) and plan.rest not in alive:
        return False
    return all(node in alive for node in plan.prefix[: plan.low])


def _has_object(plan: ObjectPlan, alive: set[Node]) -> bool:
    if any(needed and node not in alive for _, node, needed in plan.members):
        return False
    if plan.high is not None and max(plan.low, plan.required) > plan.high:
        return False
    if any(node in alive for _, node in plan.classes):
        return True
    return not plan.witnesses and plan.low <= sum(node in alive for _, node, _ in plan.members)


def without_empty(plan: Plan, alive: set[Node]) -> Plan:
    """Return the plan without alternatives, items and members that have no value; its texts stay the same."""
    if plan.is_scalar:
        return plan
    return plan._replace(
        union=tuple(node for node in plan.union if node in alive),
        arrays=tuple(_live_array(array, alive) for array in plan.arrays if _has_array(array, alive)),
        objects=tuple(_live_object(one, alive) for one in plan.objects if _has_object(one, alive)),
    )


def _live_array(plan: ArrayPlan, alive: set[Node]) -> ArrayPlan:
    length = next((index for index, node in enumerate(plan.prefix) if node not in alive), len(plan.prefix))
    if length < len(plan.prefix) or (plan.rest is not None and plan.rest not in alive):
        return plan._replace(prefix=plan.prefix[:length], rest=None, high=length)
    return plan


def _live_object(plan: ObjectPlan, alive: set[Node]) -> ObjectPlan:
    members = tuple(member for member in plan.members if member[1] in alive)
    classes = plan.classes if plan.witnesses else tuple(one for one in plan.classes if one[1] in alive)
    if len(members) == len(plan.members) and len(classes) == len(plan.classes):
        return plan
    return plan._replace(members=members, classes=classes)


def is_exact(plan: Plan) -> bool:
    """Return whether `inhabited` decides for certain that the plan has a value or has none."""
    return not any(array.counts or array.unique is not None for array in plan.arrays) and not any(
        one.witnesses or (one.classes and one.low > one.required + 1) for one in plan.objects
    )


def empty_cause(plans: Mapping[Node, Plan], alive: set[Node], root: Node) -> Node:
    """Return the deepest node that alone causes the root to have no value."""
    node, seen = root, {root}
    while True:
        dead = {
            child
            for one in plans[node].objects
            for _, child, needed in one.members
            if needed and child not in alive and child not in seen
        }
        if len(dead) != 1 or len(plans[node].objects) != 1 or plans[node].arrays:
            return node
        node = dead.pop()
        seen.add(node)
