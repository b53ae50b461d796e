"""The least time of a workload in a layout, by the bytes that each GPU reads and the operations that it computes.

It is the floor of `benchmarks.offline.workloads` with these rules; what goes between GPUs takes no time.

- A tensor-parallel rank has its part of every weight, and of keys and values down to one head a rank.
- Stages compute prompts in as many parts of equal time, but the first step passes all of them, which reads all weights.
  A turn of decode rows is as many steps, each with as many times fewer rows, as there are stages; a stage reads its
  weights for each. So a turn takes as long as one such step would without stages.
- Replicas have equally many requests, and the slowest counts. Requests that share prefixes stay together, as far as
  the parts are equal; a prefix of several parts is computed in each.
"""

from __future__ import annotations

import dataclasses
import math

from benchmarks.common.device_rates import Device
from benchmarks.common.model_shapes import CONFIGS, Shape, shape_of
from benchmarks.offline.layout_plan import Layout
from benchmarks.offline.workloads import Workload, floor_of
from radixrt.models.model_config import parse_model_spec


def rank_shape(name: str, tp: int) -> Shape:
    """Return the costs of one of the tensor-parallel ranks of a shape."""
    whole = shape_of(name)
    decoder = parse_model_spec(CONFIGS[name], {}).decoder
    assert decoder is not None
    return dataclasses.replace(
        whole,
        layer_params=whole.layer_params // tp,
        head_params=whole.head_params // tp,
        kv_bytes=whole.kv_bytes // min(tp, decoder.num_kv_heads),
        attention_flops=whole.attention_flops // tp,
        expert_params=whole.expert_params // tp,
        state_bytes=whole.state_bytes // tp,
    )


def divide(workload: Workload, parts: int) -> list[Workload]:
    """Divide the requests of a workload without turns into equally many each, those that share prefixes together; into
    one part for each request if there are fewer."""
    parts = min(parts, len(workload.paths))
    order = sorted(range(len(workload.paths)), key=lambda i: workload.paths[i])
    bounds = [len(order) * part // parts for part in range(parts + 1)]
    picked = [order[bounds[part] : bounds[part + 1]] for part in range(parts)]
    return [
        dataclasses.replace(
            workload, paths=[workload.paths[i] for i in each], outputs=[workload.outputs[i] for i in each]
        )
        for each in picked
    ]


def layout_floor(workload: Workload, name: str, layout: Layout, device: Device) -> float:
    """Return the seconds that a workload without turns takes at least, on GPUs of these rates."""
    shape = rank_shape(name, layout.tp)
    return max(_replica_floor(part, shape, layout.pp, device) for part in divide(workload, layout.replicas))


def _replica_floor(workload: Workload, shape: Shape, stages: int, device: Device) -> float:
    floor = floor_of(workload, shape, device)
    if stages == 1:
        return floor.seconds
    first = shape.weight_bytes(math.ceil(floor.new_tokens / stages)) / device.bytes_per_s
    prefill = max(floor.prefill_flops / stages / device.flops_per_s, first)
    return prefill + max(floor_of(part, shape, device).decode_s for part in divide(workload, stages))
