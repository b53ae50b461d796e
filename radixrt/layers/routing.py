"""`Routing`: the rule by which tokens choose their experts, and its reference in torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass(frozen=True)
class Routing:
    """Choice of the top k of a softmax over all experts, in float32, as in transformers.

    Attributes:
        top_k: experts that a token chooses.
        renormalize: whether the weights of the chosen are divided by their sum.
        num_shared: experts behind the others that every token is routed to, weighted by the sigmoid of their gate.
    """

    top_k: int
    renormalize: bool
    num_shared: int = 0


def route(
    x: torch.Tensor, router: torch.Tensor, routing: Routing, bias: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose each token's experts.

    Args:
        x: [T, hidden].
        router: float32 [num_experts, hidden], then the row of the shared experts' gate, if there are any.
        bias: float32, added to the logits, one for each row of the router.

    Returns:
        The experts, integers [T, top_k + num_shared], and their weights, float32; the shared ones last.
    """
    logits = F.linear(x.float(), router, bias)
    count = router.shape[0] - (routing.num_shared > 0)
    weights, experts = logits[:, :count].softmax(-1).topk(routing.top_k)
    if routing.renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    if routing.num_shared:
        shape = (x.shape[0], routing.num_shared)
        shared = torch.arange(count, count + routing.num_shared, device=x.device)
        experts = torch.cat((experts, shared.expand(shape)), dim=1)
        weights = torch.cat((weights, logits[:, count:].sigmoid().expand(shape)), dim=1)
    return experts, weights
