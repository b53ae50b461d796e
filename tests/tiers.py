"""Tiers of the suite: `make test` runs the quick one, `make test-slow` the slow one, and plain pytest both.

`python -m tests.tiers .durations/quick.xml` prints the seconds of each file in the durations that a run has left.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path, PurePosixPath
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]

QUICK, SLOW = "quick", "slow"
TIERS = (QUICK, SLOW)

SLOW_PATHS = (
    # hundreds of schemas, compiled one by one
    "tests/constrained/models",
    # real servers, processes that are killed, Ray, load
    "tests/bench",
    "tests/doctor/test_probes.py",
    "tests/engine/test_persistence.py",
    "tests/engine/test_skip_tokenizer.py",
    "tests/lang/backends/test_default.py",
    "tests/lang/backends/test_endpoint.py",
    "tests/lang/backends/test_openai.py",
    "tests/lang/observe/test_replay.py",
    "tests/newcomer",
    "tests/process",
    "tests/server/test_event_loop.py",
    "tests/server/test_mutated_requests.py",
    "tests/server/test_pooling_servers.py",
    "tests/server/test_run.py",
    "tests/server/test_tool_tokens.py",
    "tests/server/test_ui_page.py",
    "tests/terminal_chat/test_command.py",
    "tests/vision/test_mutated_pictures.py",
    "tests/test_cli.py",
    # libraries of clients, as installed or recorded, against servers
    "tests/clients/test_replay.py",
    "tests/server/openai_client",
    "tests/server/test_messages_client.py",
    "tests/server/test_responses_client.py",
    "tests/server/test_structured_client.py",
    "tests/server/test_systemone_client.py",
    "tests/server/test_tagged_clients.py",
    "tests/server/test_tool_clients.py",
    # GPUs, compilers, and ranks in Triton's interpreter
    "tests/gpu",
    "tests/kernels/test_triton_compiles.py",
    "tests/kernels/test_triton_tensor_parallel.py",
    "tests/kernels/test_wheel.py",
    # equivalence beyond its core: the embedded model, every constraint, recurrent layers, several processes
    "tests/equivalence/test_constrained.py",
    "tests/equivalence/test_hybrid.py",
    "tests/equivalence/test_pipeline.py",
    "tests/equivalence/test_smollm2.py",
    "tests/equivalence/test_tensor_parallel.py",
    "tests/equivalence/test_text_alone.py",
    "tests/equivalence/test_tiers.py",
    # whole programs, benchmarks, memory over thousands of steps, hours of simulated load, constraints that take seconds
    "tests/benchmarks",
    "tests/constrained/compile/test_hostile_constraints.py",
    "tests/constrained/compile/test_workers.py",
    "tests/constrained/runtime/test_mask_cache.py",
    "tests/constrained/tags/test_tool_walks.py",
    "tests/examples/test_extract.py",
    "tests/examples/test_language_doc.py",
    "tests/examples/test_pictures.py",
    "tests/examples/test_programs.py",
    "tests/examples/test_tour.py",
    "tests/parts/tiers/test_mutants.py",
    "tests/parts/tiers/test_states.py",
    "tests/runner/test_memory.py",
    "tests/scheduler/test_overload.py",
)
"""Folders and files of the slow tier. All other tests are quick, and take at most six minutes together on two cores."""

LONGEST = (
    "tests/process/test_quantized_server.py",
    "tests/benchmarks/offline/test_quantization.py",
    "tests/process/test_chaos.py",
    "tests/kernels/test_wheel.py",
    "tests/newcomer/test_newcomer.py",
    "tests/equivalence/test_constrained.py",
    "tests/process/test_restarts.py",
    "tests/process/test_replicas.py",
    "tests/process/test_roles.py",
    "tests/examples/test_programs.py",
    "tests/kernels/test_triton_tensor_parallel.py",
    "tests/server/test_pooling_servers.py",
    "tests/clients/test_replay.py",
    "tests/process/test_ray.py",
    "tests/process/test_image_layouts.py",
    "tests/process/test_mutated_pictures.py",
    "tests/server/openai_client/test_errors.py",
    "tests/server/openai_client/test_chats.py",
    "tests/server/test_messages_client.py",
    "tests/process/test_tensor_parallel.py",
    "tests/process/test_isolation.py",
    "tests/equivalence/test_smollm2.py",
    "tests/examples/test_language_doc.py",
    "tests/process/test_supervision.py",
    "tests/equivalence/test_tiny_models.py",
    "tests/equivalence/test_hybrid.py",
    "tests/models/loading/test_quantized_checkpoints.py",
    "tests/server/test_structured_client.py",
    "tests/server/test_tagged_clients.py",
    "tests/server/test_tool_clients.py",
    "tests/server/test_responses_client.py",
    "tests/server/test_tool_tokens.py",
    "tests/process/test_runner_recovery.py",
    "tests/kernels/test_triton_compiles.py",
    "tests/server/test_mutated_requests.py",
    "tests/constrained/compile/test_hostile_constraints.py",
    "tests/constrained/compile/test_workers.py",
    "tests/equivalence/test_tensor_parallel.py",
    "tests/equivalence/test_pipeline.py",
    "tests/test_cli.py",
    "tests/process/test_load.py",
    "tests/process/test_observability.py",
    "tests/doctor/test_probes.py",
    "tests/scheduler/test_overload.py",
    "tests/lang/backends/test_endpoint.py",
    "tests/lang/backends/test_default.py",
    "tests/constrained/test_maskbench.py",
    "tests/runner/test_narrowed_steps.py",
    "tests/examples/test_extract.py",
    "tests/engine/test_engine.py",
    "tests/engine/test_step_walk.py",
    "tests/examples/test_one_request.py",
    "tests/lang/backends/test_openai.py",
    "tests/equivalence/test_narrowed.py",
    "tests/parts/test_assembly.py",
    "tests/scheduler/test_state_machine.py",
    "tests/equivalence/test_scoring.py",
    "tests/equivalence/test_embedding.py",
    "tests/constrained/schema/test_equivalence.py",
    "tests/equivalence/test_cascade.py",
    "tests/server/test_run.py",
    "tests/benchmarks/soak/test_soak.py",
    "tests/engine/test_persistence.py",
    "tests/engine/test_skip_tokenizer.py",
    "tests/process/test_keys_and_tls.py",
    "tests/mem_cache/test_radix_cache_model.py",
    "tests/constrained/tags/test_tools.py",
    "tests/explain/test_command.py",
    "tests/lang/observe/test_replay.py",
    "tests/runner/test_memory.py",
    "tests/constrained/test_fuzz.py",
    "tests/lang/core/test_token_state.py",
    "tests/constrained/backends/test_rust_regex.py",
    "tests/models/loading/test_gguf.py",
    "tests/constrained/regex/test_algebra.py",
    "tests/kernels/test_cpu_codes.py",
    "tests/layers/formats/test_online_loading.py",
)
"""The slowest test files of both tiers. Workers run them first, so that none is left for the end, when other workers
are idle."""


def tier_of(file: str) -> str:
    """Return the tier of a test file, whose path is relative to the repository."""
    path = PurePosixPath(file)
    return SLOW if any(path.is_relative_to(slow) for slow in SLOW_PATHS) else QUICK


def seconds_of_files(report: Path) -> dict[str, float]:
    """Return the seconds of each test file in a report that pytest has written as JUnit XML."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for case in ElementTree.parse(report).iter("testcase"):
        module = case.get("classname", "").split(".")
        while module and not (ROOT / "/".join(module)).with_suffix(".py").is_file():
            module.pop()  # the name of a class
        seconds["/".join(module) + ".py"] += float(case.get("time", 0))
    return seconds


if __name__ == "__main__":
    for report in map(Path, sys.argv[1:]):
        found = seconds_of_files(report)
        for file, seconds in sorted(found.items(), key=lambda each: -each[1]):
            print(f"{seconds:8.1f}  {tier_of(file):5}  {file}")
        print(f"{sum(found.values()):8.1f}         {report}")
