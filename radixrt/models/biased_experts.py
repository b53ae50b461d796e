"""`biased_experts`: where a checkpoint has the router and the experts of gpt-oss."""

from __future__ import annotations

from radixrt.kernels.mxfp4_weights import GROUP
from radixrt.models.experts_spec import ExpertsSpec
from radixrt.models.loading.checkpoint import CheckpointTensor, ParameterSources, replicated
from radixrt.models.loading.partition import Partition


def biased_experts(
    spec: ExpertsSpec, part: Partition, hidden: int, module: str, *, packed: bool = False
) -> ParameterSources:
    """Return the sources of the parameters of a `MoEFeedForward` with biases.

    The columns of gate and up alternate in the checkpoint. Rank 0 alone has the bias of the outputs, so that a sum has
    it once.

    Args:
        part: the columns of each expert that this rank holds.
        module: the checkpoint's path of the feed-forward.
        packed: the parameters are those of `Mxfp4Experts`.
    """
    count, columns, taken = spec.num_experts, spec.intermediate_size, part.expert_intermediate
    both, experts = range(2 * taken.start, 2 * taken.stop), f"{module}.experts"
    gate_up_bias = CheckpointTensor(f"{experts}.gate_up_proj_bias", (count, 2 * columns), 1, both, count, alternating=1)
    experts_with_bias = range(count if part.rank == 0 else 0)
    weights = _codes_and_scales if packed else _plain_weights
    return {
        "router": replicated(f"{module}.{spec.router}.weight", (count, hidden)),
        "router_bias": replicated(f"{module}.{spec.router}.bias", (count,)),
        **weights(spec, taken, hidden, experts),
        "experts.gate_up_bias": (gate_up_bias,),
        "experts.down_bias": (
            CheckpointTensor(f"{experts}.down_proj_bias", (count, hidden), 0, experts_with_bias, count),
        ),
    }


def _codes_and_scales(spec: ExpertsSpec, taken: range, hidden: int, experts: str) -> ParameterSources:
    """Sources of MXFP4 numbers as they are stored; `taken` are whole groups."""
    count, columns = spec.num_experts, spec.intermediate_size
    both, groups = range(2 * taken.start, 2 * taken.stop), range(taken.start // GROUP, taken.stop // GROUP)
    sources: ParameterSources = {}
    for stored, name, size in (("blocks", "proj", (GROUP // 2,)), ("scales", "scales", ())):
        gate_up = (count, 2 * columns, hidden // GROUP, *size)
        down = (count, hidden, columns // GROUP, *size)
        sources[f"experts.gate_up_{name}"] = tuple(
            CheckpointTensor(f"{experts}.gate_up_proj_{stored}", gate_up, 0, both, len(both), index=i, alternating=0)
            for i in range(count)
        )
        sources[f"experts.down_{name}"] = tuple(
            CheckpointTensor(f"{experts}.down_proj_{stored}", down, 1, groups, hidden, index=i) for i in range(count)
        )
    return sources


def _plain_weights(spec: ExpertsSpec, taken: range, hidden: int, experts: str) -> ParameterSources:
    """Sources of weights in the model's dtype, which MXFP4 numbers become while they load."""
    count, columns = spec.num_experts, spec.intermediate_size
    both = range(2 * taken.start, 2 * taken.stop)
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
    return {"experts.gate_up_proj": tuple(gate_up), "experts.down_proj": tuple(down)}
