"""`nodes_apart`: nodes whose arrays the text so far tells from all other arrays."""

from __future__ import annotations

from collections.abc import Mapping

from radixrt.constrained.schema.emit.plan import Plan
from radixrt.constrained.schema.normal_form.nodes import Node


def nodes_apart(plans: Mapping[Node, Plan], root: Node) -> frozenset[Node]:
    """Return the nodes with an array such that no other array can begin where the array does.

    A node is not among them if it is an alternative to another array, or within one of several arrays or objects that
    may begin alike, in any of its places. Nodes of counted items, and of members that must exist, never are.
    """
    apart: set[Node] = set()
    mixed: set[Node] = set()
    pending = [(root, True)]
    seen = set(pending)
    while pending:
        node, clear = pending.pop()
        parts = _alternatives(plans, node)
        values = [value for part in parts for value in plans[part].values]
        arrays = [array for part in parts for array in plans[part].arrays]
        objects = [one for part in parts for one in plans[part].objects]
        alone = clear and len(arrays) + sum([type(value) is list for value in values]) == 1
        (apart if alone else mixed).update(part for part in parts if plans[part].arrays)
        children = [(child, alone and not array.counts) for array in arrays for child in array.items]
        alone = clear and len(objects) + sum([type(value) is dict for value in values]) == 1
        for one in objects:
            children += [(child, alone) for _, child, _ in one.members]
            children += [(child, alone and not one.witnesses) for _, child in one.classes]
        pending += dict.fromkeys(one for one in children if one not in seen)
        seen.update(children)
    return frozenset(apart - mixed)


def _alternatives(plans: Mapping[Node, Plan], node: Node) -> list[Node]:
    """Return a node and the nodes of which it is the union."""
    found = {node: None}
    pending = [node]
    while pending:
        for part in plans[pending.pop()].union:
            if part not in found:
                found[part] = None
                pending.append(part)
    return list(found)
