"""`MoEFeedForward`: the mixture of experts of Mixtral, Qwen3-MoE, Qwen3-Next, Qwen3.5 and gpt-oss."""

from __future__ import annotations

import torch

from radixrt.distributed.partial_sum import PartialSum
from radixrt.kernels.mxfp4_weights import GROUP
from radixrt.layers.experts import FusedExperts
from radixrt.layers.linear import meta_parameter
from radixrt.layers.mxfp4_experts import Mxfp4Experts
from radixrt.layers.routing import Routing
from radixrt.models.biased_experts import biased_experts
from radixrt.models.decoder_layer import FeedForward, LayerContext
from radixrt.models.decoder_spec import LayerSpec
from radixrt.models.loading.checkpoint import CheckpointTensor, ParameterSources, replicated


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
        self._part, self._experts, self._ops, self._dtype = context.part, experts, context.ops, context.dtype
        self._routing = Routing(experts.top_k, experts.renormalize, experts.num_shared)
        columns = len(context.part.expert_intermediate)
        gates = experts.num_experts + bool(experts.num_shared)
        self.router = meta_parameter(gates, spec.hidden_size, dtype=torch.float32)
        self.router_bias = None if experts.swiglu is None else meta_parameter(gates, dtype=torch.float32)
        count = experts.num_experts + experts.num_shared
        taken = context.part.expert_intermediate
        # Ranks that divide a group of MXFP4 numbers dequantize them.
        self._packed = (
            experts.mxfp4 and context.ops.multiplies_mxfp4 and not (taken.start % GROUP or taken.stop % GROUP)
        )
        self.experts: FusedExperts | Mxfp4Experts
        if self._packed and experts.swiglu is not None:
            self.experts = Mxfp4Experts(count, spec.hidden_size, columns, context.ops, experts.swiglu)
        else:
            self.experts = FusedExperts(count, spec.hidden_size, columns, context.dtype, context.ops, experts.swiglu)

    def forward(self, x: torch.Tensor) -> PartialSum:
        return PartialSum(self.experts(x, *self.route(x)))

    def launch_all(self, tokens: int) -> None:
        """Launch the kernels of a step with so many tokens, for `compile_kernels`; the results are meaningless."""
        self.forward(torch.empty(tokens, self.router.shape[1], dtype=self._dtype, device=self.router.device))

    def route(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the experts of each token [T, k] and their weights; the shared ones, if there are any, last."""
        return self._ops.route(x, self.router, self._routing, self.router_bias)

    def checkpoint_tensors(self, prefix: str) -> ParameterSources:
        """As `FeedForward.checkpoint_tensors`. A checkpoint has a tensor for each projection of each expert, or, as
        transformers keeps them in memory, two for all experts of a layer."""
        spec, taken = self._experts, self._part.expert_intermediate
        if spec.swiglu is not None:
            module = f"{prefix}.{spec.module}"
            return biased_experts(spec, self._part, self.router.shape[1], module, packed=self._packed)
        count, hidden, columns = spec.num_experts, self.router.shape[1], spec.intermediate_size
        module, stacked = f"{prefix}.{spec.module}", f"{prefix}.mlp"
        router = replicated(f"{module}.gate.weight", (count, hidden), alternative=f"{stacked}.gate.weight")
        gate_up, down = [], []
        for i in range(count):
            names = [f"{module}.experts.{i}.{name}.weight" for name in spec.projections]
            for name, first in zip(names[:2], (0, columns), strict=True):
                part = range(first + taken.start, first + taken.stop)
                other = CheckpointTensor(
                    f"{stacked}.experts.gate_up_proj", (count, 2 * columns, hidden), 0, part, len(part), index=i
                )
                gate_up.append(CheckpointTensor(name, (columns, hidden), 0, taken, len(taken), alternative=other))
            other = CheckpointTensor(
                f"{stacked}.experts.down_proj", (count, hidden, columns), 1, taken, hidden, index=i
            )
            down.append(CheckpointTensor(names[2], (hidden, columns), 1, taken, hidden, alternative=other))
        if spec.num_shared:
            router += replicated(f"{module}.shared_expert_gate.weight", (1, hidden))
        for i in range(spec.num_shared):
            names = [f"{module}.shared_expert.{name}.weight" for name in spec.projections]
            whole = spec.shared_intermediate_size
            part = range(whole)[i * columns + taken.start : i * columns + taken.stop]
            gate_up += [CheckpointTensor(name, (whole, hidden), 0, part, len(taken)) for name in names[:2]]
            down.append(CheckpointTensor(names[2], (hidden, whole), 1, part, hidden))
        return {"router": router, "experts.gate_up_proj": tuple(gate_up), "experts.down_proj": tuple(down)}
