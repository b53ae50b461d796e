"""`biased_experts`: where a checkpoint has the router and the experts of gpt-oss."""

from __future__ import annotations

from radixrt.models.experts_spec import ExpertsSpec
from radixrt.models.loading.checkpoint import CheckpointTensor, ParameterSources, replicated
from radixrt.models.loading.partition import Partition


def biased_experts(spec: ExpertsSpec, part: Partition, hidden: int, module: str) -> ParameterSources:
    """Return the sources of the parameters of a `MoEFeedForward` with biases.

    The columns of gate and up alternate in the checkpoint. Rank 0 alone has the bias of the outputs, so that a sum has
    it once.

    Args:
        part: the columns of each expert that this rank holds.
        module: the checkpoint's path of the feed-forward.
    """
    count, columns, taken = spec.num_experts, spec.intermediate_size, part.expert_intermediate
    both, experts = range(2 * taken.start, 2 * taken.stop), f"{module}.experts"
    gate_up, down = [], []
    for i in range(count):
        # As MXFP4 numbers the weights have a row for each output, else one for each input.
        shape, dim = ((count, 2 * columns, hidden), 0) if spec.mxfp4 else ((count, hidden, 2 * columns), 1)
        gate_up.append(
            CheckpointTensor(
                f"{experts}.gate_up_proj", shape, dim, both, len(both), index=i, transposed=not spec.mxfp4,
                alternating=0, mxfp4=spec.mxfp4,
            )
        )  # fmt: skip
        shape, dim = ((count, hidden, columns), 1) if spec.mxfp4 else ((count, columns, hidden), 0)
        down.append(
            CheckpointTensor(
                f"{experts}.down_proj", shape, dim, taken, hidden, index=i, transposed=not spec.mxfp4, mxfp4=spec.mxfp4
            )
        )
    gate_up_bias = CheckpointTensor(f"{experts}.gate_up_proj_bias", (count, 2 * columns), 1, both, count, alternating=1)
    experts_with_bias = range(count if part.rank == 0 else 0)
    return {
        "router": replicated(f"{module}.{spec.router}.weight", (count, hidden)),
        "router_bias": replicated(f"{module}.{spec.router}.bias", (count,)),
        "experts.gate_up_proj": tuple(gate_up),
        "experts.down_proj": tuple(down),
        "experts.gate_up_bias": (gate_up_bias,),
        "experts.down_bias": (
            CheckpointTensor(f"{experts}.down_proj_bias", (count, hidden), 0, experts_with_bias, count),
        ),
    }
