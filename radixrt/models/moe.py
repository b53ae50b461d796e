"""`MoEFeedForward`: the mixture of experts of Mixtral, Qwen3-MoE, Qwen3-Next, Qwen3.5 and gpt-oss."""

from __future__ import annotations

from dataclasses import replace

import torch

from radixrt.distributed.partial_sum import PartialSum
from radixrt.layers.experts import FusedExperts
from radixrt.layers.formats.checkpoint import (
    CheckpointTensor,
    ParameterSources,
    Projection,
    replicated,
    split_by_input,
    split_by_output,
)
from radixrt.layers.linear import meta_parameter
from radixrt.layers.routing import Routing
from radixrt.models.decoder_layer import FeedForward, LayerContext
from radixrt.models.decoder_spec import LayerSpec


class MoEFeedForward(FeedForward):
    """A router, and this rank's columns of all experts.

    Every rank routes each token alike, and the addends of the ranks are added up as those of a dense feed-forward. A
    shared expert is computed with the others, as one more expert, or as several if it has more columns than they
    have, to which every token is routed.

    Attributes:
        router: [num_experts, hidden], then the gate of the shared expert, if there is one, [1, hidden]. float32 in
            every precision: rounded logits would route other tokens.
        router_bias: float32 [num_experts]; None where the router has none.
    """

    def __init__(self, context: LayerContext, layer: LayerSpec) -> None:
        super().__init__()
        spec, experts = context.spec, context.spec.experts
        if experts is None:
            raise ValueError("a layer has a mixture of experts, but the spec does not describe one")
        self._context, self._experts, self._ops, self._dtype = context, experts, context.ops, context.dtype
        self._routing = Routing(experts.top_k, experts.renormalize, experts.num_shared)
        gates = experts.num_experts + bool(experts.num_shared)
        self.router = meta_parameter(gates, spec.hidden_size, dtype=torch.float32)
        self.router_bias = None if experts.swiglu is None else meta_parameter(gates, dtype=torch.float32)
        gate_up, down = self._projections() if experts.swiglu is None else self._stacked_projections()
        self.experts = FusedExperts(
            experts.num_experts + experts.num_shared,
            gate_up,
            down,
            context.dtype,
            context.formats.experts(gate_up, down),
            experts.swiglu,
        )

    def forward(self, x: torch.Tensor) -> PartialSum:
        return PartialSum(self.experts(x, *self.route(x)))

    def launch_all(self, tokens: int) -> None:
        """Launch the kernels of a step with so many tokens, for `compile_kernels`; the results are meaningless."""
        self.forward(torch.empty(tokens, self.router.shape[1], dtype=self._dtype, device=self.router.device))

    def route(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the experts of each token [T, k] and their weights; the shared ones, if there are any, last."""
        return self._ops.route(x, self.router, self._routing, self.router_bias)

    @property
    def _module(self) -> str:
        return f"{self._context.prefix}.{self._experts.module}"

    def _projections(self) -> tuple[list[Projection], list[Projection]]:
        """Return gate and up of all experts, and down. A checkpoint has a tensor for each projection of each expert, or
        two for all experts of a layer: as transformers keeps them in memory, or transposed, as in Qwen3-VL's files."""
        spec, hidden, taken = self._experts, self._context.spec.hidden_size, self._context.part.expert_intermediate
        count, columns, stacked = spec.num_experts, spec.intermediate_size, f"{self._context.prefix}.mlp.experts"
        gate_up, down = [], []
        for i in range(count):
            *names, last = [f"{self._module}.experts.{i}.{name}" for name in spec.projections]
            for name, first in zip(names, (0, columns), strict=True):
                part = range(first + taken.start, first + taken.stop)
                other = split_by_output(f"{stacked}.gate_up_proj", 2 * columns, hidden, [part])
                own = split_by_output(name, columns, hidden, [taken])
                gate_up.append(replace(own, alternative=_in_stack(other, i, count)))
            other = split_by_input(f"{stacked}.down_proj", hidden, columns, taken)
            own = split_by_input(last, hidden, columns, taken)
            down.append(replace(own, alternative=_in_stack(other, i, count)))
        # The shared expert is divided into experts of the others' size, of which the last one is padded.
        whole = spec.shared_intermediate_size
        for i in range(spec.num_shared):
            *names, last = [f"{self._module}.shared_expert.{name}" for name in spec.projections]
            part = range(whole)[i * columns + taken.start : i * columns + taken.stop]
            gate_up += [split_by_output(name, whole, hidden, [part], height=len(taken)) for name in names]
            down.append(split_by_input(last, hidden, whole, part, width=len(taken)))
        return gate_up, down

    def _stacked_projections(self) -> tuple[list[Projection], list[Projection]]:
        """Return gate and up of all experts of gpt-oss, whose columns alternate in the checkpoint, and down."""
        spec, hidden, taken = self._experts, self._context.spec.hidden_size, self._context.part.expert_intermediate
        count, columns, experts = spec.num_experts, spec.intermediate_size, f"{self._module}.experts"
        both = range(2 * taken.start, 2 * taken.stop)
        gate_up = split_by_output(f"{experts}.gate_up_proj", 2 * columns, hidden, [both])
        down = split_by_input(f"{experts}.down_proj", hidden, columns, taken)
        return (
            [replace(gate_up, stack=(i, count), transposed=True, alternating=True) for i in range(count)],
            [replace(down, stack=(i, count), transposed=True) for i in range(count)],
        )

    def checkpoint_tensors(self) -> ParameterSources:
        spec, module, hidden = self._experts, self._module, self._context.spec.hidden_size
        count, part = spec.num_experts, self._context.part
        other = None if spec.swiglu is not None else f"{self._context.prefix}.mlp.gate.weight"
        router = replicated(f"{module}.{spec.router}.weight", (count, hidden), alternative=other)
        if spec.num_shared:
            router += replicated(f"{module}.shared_expert_gate.weight", (1, hidden))
        if spec.swiglu is None:
            return {"router": router}
        taken, columns = part.expert_intermediate, spec.intermediate_size
        both = range(2 * taken.start, 2 * taken.stop)
        with_bias = range(count if part.rank == 0 else 0)  # rank 0 alone, so that a sum has the bias of outputs once
        gate_up, down = (f"{module}.experts.{name}_bias" for name in ("gate_up_proj", "down_proj"))
        return {
            "router": router,
            "router_bias": replicated(f"{module}.{spec.router}.bias", (count,)),
            "experts.gate_up_bias": (CheckpointTensor(gate_up, (count, 2 * columns), 1, both, count, alternating=1),),
            "experts.down_bias": (CheckpointTensor(down, (count, hidden), 0, with_bias, count),),
        }


def _in_stack(projection: Projection, index: int, count: int) -> Projection:
    """Return a weight in a tensor that stacks those of all experts, each of them transposed or not."""
    stacked = replace(projection, stack=(index, count))
    return replace(stacked, alternative=replace(stacked, transposed=True))
