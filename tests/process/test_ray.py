"""Ranks on a Ray cluster of two nodes: they answer as one process does, and outlive whatever of Ray dies."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import radixrt
from radixrt.channel import Curve
from radixrt.engine.cluster.driver_process import DriverProcess
from radixrt.engine.cluster.ray_driver import DriverSettings, Spawn
from radixrt.errors import EngineError
from tests.equivalence.reference import greedy
from tests.process.helpers import gone
from tests.process.ray_nodes import ENVIRONMENT, RayNodes, needs_ray, next_report
from tests.process.test_image_layouts import OTHER, PICTURE, WIDE
from tests.process.test_image_layouts import check as check_pictures
from tests.server_process import LIMIT_S, wait_for

pytestmark = needs_ray
PROMPTS = [[3, 4, 5, 6], [3, 4, 9], [100] * 30]
PARAMS = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        made = RayNodes()
        yield made
        made.close()


@pytest.fixture(scope="module")
def options(nodes: RayNodes, tiny_model: Callable[[str], Path]) -> dict[str, Any]:
    tiny_model("llama")  # while the nodes start
    return {
        "dtype": "float32", "kv_cache_tokens": 4096, "num_threads": 1, "show_progress": False, "executor": "ray",
        "ray_address": nodes.address, "ray_resource": "device", "device": "cpu", "start_timeout_s": 240.0,
    }  # fmt: skip


@pytest.fixture(scope="module")
def engine(options: dict[str, Any], tiny_model: Callable[[str], Path]) -> Iterator[radixrt.Engine]:
    """Two stages of two ranks: a node has three devices, so that each stage is on a node of its own."""
    with radixrt.Engine(str(tiny_model("llama")), tp=2, pp=2, **options) as engine:
        yield engine


def ranks(engine: radixrt.Engine) -> list[int]:
    return [pid for name, pid in engine.pids.items() if name.startswith("ModelRunner")]


def ray_driver() -> psutil.Process:
    """The process of the engine that speaks with Ray."""
    children = psutil.Process().children()
    return next(child for child in children if child.cmdline()[-1:] == ["radixrt.engine.cluster.ray_driver"])


def check(engine: radixrt.Engine, folder: Path) -> None:
    assert [c.token_ids for c in engine.generate(PROMPTS, PARAMS)] == [greedy(folder, ids, 8) for ids in PROMPTS]


def test_ranks_answer_as_one_process_does(engine: radixrt.Engine, tiny_model: Callable[[str], Path]) -> None:
    check(engine, tiny_model("llama"))
    parents = [psutil.Process(pid).parents() for pid in ranks(engine)]
    assert len(parents) == 4
    raylets = [next(each.pid for each in chain if each.name() == "raylet") for chain in parents]
    assert raylets[0] == raylets[1] != raylets[2] == raylets[3], "each stage has a node"
    if os.geteuid() == 0:  # others may not take Ray's niceness of 15 back
        assert [psutil.Process(pid).nice() for pid in ranks(engine)] == [psutil.Process(pid).nice() for pid in raylets]
    assert all(os.getpid() not in [parent.pid for parent in each][:2] for each in parents)
    constrained = engine.generate("Numbers", {"temperature": 0, "max_tokens": 20, "regex": "[0-9]{3}"})
    assert constrained.text.isdecimal()
    engine.check_invariants()


def test_an_engine_that_fits_on_no_node_is_refused(
    engine: radixrt.Engine, options: dict[str, Any], tiny_model: Callable[[str], Path]
) -> None:
    folder = str(tiny_model("llama"))
    with pytest.raises(EngineError, match=r"no node of the Ray cluster has 4 device .* its nodes have 3, 3"):
        radixrt.Engine(folder, tp=4, **options)


def test_steps_carry_the_pixels_of_pictures(
    engine: radixrt.Engine, options: dict[str, Any], tiny_model: Callable[[str], Path]
) -> None:
    """Ranks of a cluster may be on other machines, which have no files of the tokenizer's."""
    folder = tiny_model("qwen3_vl")
    with radixrt.Engine(str(folder), pp=2, chunked_prefill_size=24, **options) as reader:
        for pictures in ((PICTURE,), (OTHER, PICTURE), (WIDE,), (PICTURE,)):
            answer = check_pictures(reader, folder, *pictures)
        assert answer.usage.cached_tokens == answer.usage.prompt_tokens - 1
        os.kill(reader.pids["ModelRunner 0"], signal.SIGKILL)
        check_pictures(reader, folder, WIDE, OTHER)
        reader.check_invariants()


def test_replicas_are_placed_in_the_cluster_and_one_takes_over_from_another(
    engine: radixrt.Engine, options: dict[str, Any], tiny_model: Callable[[str], Path]
) -> None:
    given = {**options, "executor": "mp", "ray_address": None, "cluster": options["ray_address"]}
    with radixrt.Engine(str(tiny_model("llama")), replicas=2, **given) as fleet:
        check(fleet, tiny_model("llama"))
        assert {name for name in fleet.pids if "ModelRunner" in name} == {
            "replica 0 ModelRunner", "replica 1 ModelRunner"
        }  # fmt: skip
        streams = [fleet.stream(prompt, {**PARAMS, "max_tokens": 60}) for prompt in PROMPTS]
        texts = [next(stream).text for stream in streams]
        os.kill(fleet.pids["replica 0 scheduler"], signal.SIGKILL)
        texts = [text + "".join(chunk.text for chunk in stream) for text, stream in zip(texts, streams, strict=True)]
    assert texts == [c.text for c in engine.generate(PROMPTS, {**PARAMS, "max_tokens": 60})]


def test_the_process_that_speaks_with_ray_reports_and_ends_while_it_waits(nodes: RayNodes) -> None:
    """The waiting is done in short pieces: a process that is blocked in Ray while Ray shuts down crashes."""
    driver = DriverProcess(DriverSettings(nodes.address, [1, 1], "device", 60.0), outlives_thread=True)
    host = nodes.address.partition(":")[0]
    assert next_report(driver) == {"placed": {"host": host, "agents": [host, host]}}
    driver.spawn([Spawn("here", 1, "rank", {"name": "a rank"})])
    assert next_report(driver)["started"] == "here"
    ended = next_report(driver)
    assert (ended["ended"], ended["code"]) == ("here", 1)
    assert "missing required field" in ended["tail"]
    nowhere = {"endpoint": "tcp://127.0.0.1:9", "key": Curve.make().public.decode()}
    ranks = {"rank": 0, "size": 1, "local_rank": 0, "local_size": 1}
    waits = {"name": "a rank", "config": {}, "settings": {}, "lifeline": nowhere, **ranks}
    driver.spawn([Spawn("waits", 0, "rank", waits)])
    started = next_report(driver)
    driver.ask_to_exit()  # while it waits for the end of that rank
    assert driver.reap(LIMIT_S)
    assert driver.exit_code == 0
    assert wait_for(lambda: gone(started["pid"]))


def test_a_killed_rank_is_started_anew_and_its_requests_go_on(
    engine: radixrt.Engine, tiny_model: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    before, descriptors = engine.pids, len(os.listdir("/proc/self/fd"))
    stream = engine.stream([3, 4, 5, 6], {**PARAMS, "max_tokens": 60})
    text = next(stream).text
    os.kill(before["ModelRunner 1"], signal.SIGKILL)
    text += "".join(chunk.text for chunk in stream)
    assert text == engine.generate([3, 4, 5, 6], {**PARAMS, "max_tokens": 60}).text
    assert not set(ranks(engine)) & set(before.values())
    assert engine.pids["scheduler"] == before["scheduler"]
    assert "ModelRunner 1 process" in caplog.text
    assert "was killed by signal 9" in caplog.text
    assert wait_for(lambda: len(os.listdir("/proc/self/fd")) <= descriptors), "something of the dead ranks is left"


def test_ranks_outlive_the_scheduler_the_agents_and_the_head(
    nodes: RayNodes, engine: radixrt.Engine, tiny_model: Callable[[str], Path]
) -> None:
    """The head's control plane lives in its memory and dies with it; an engine that is up goes on without Ray."""
    before, driver = engine.pids, ray_driver()
    os.kill(before["scheduler"], signal.SIGKILL)
    assert wait_for(lambda: engine.pids.get("scheduler", 0) != before["scheduler"])
    check(engine, tiny_model("llama"))
    agents = {psutil.Process(pid).parents()[1].pid for pid in ranks(engine)}
    nodes.kill_head()
    check(engine, tiny_model("llama"))
    assert wait_for(lambda: gone(driver.pid))
    for pid in agents:
        with contextlib.suppress(ProcessLookupError):  # they have ended by themselves
            os.kill(pid, signal.SIGKILL)
    check(engine, tiny_model("llama"))
    assert ranks(engine) == [pid for name, pid in before.items() if name.startswith("ModelRunner")]
    pids = ranks(engine)
    engine.close()
    assert wait_for(lambda: all(gone(pid) for pid in pids))


def test_a_cluster_that_is_gone_is_named(
    nodes: RayNodes, options: dict[str, Any], tiny_model: Callable[[str], Path]
) -> None:
    begun = time.monotonic()
    with pytest.raises(EngineError, match=f"ray_address={nodes.address}: nothing listens there"):
        radixrt.Engine(str(tiny_model("llama")), **options)
    assert time.monotonic() - begun < options["start_timeout_s"] / 2
