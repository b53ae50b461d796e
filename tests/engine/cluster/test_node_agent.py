"""The agent of a node, without a cluster: processes, their ends, their devices. Ray imports it by name."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest

from radixrt.engine.cluster import node_agent
from radixrt.engine.cluster.node_agent import NodeAgent, node_address, process_environment
from tests.process.helpers import gone
from tests.server_process import wait_for

PROGRAM = """
import json, os, sys
given = json.loads(sys.stdin.readline())
print("gpus", os.environ.get("CUDA_VISIBLE_DEVICES"), file=sys.stderr, flush=True)
if "error" in given:
    print(json.dumps(given["error"]), flush=True)
    os._exit(3)
if "store_descriptor" in given:
    import socket
    listener = socket.socket(fileno=given["store_descriptor"])
    listener.accept()[0].sendall(b"here")
    os._exit(0)
open(given["ready"], "w").close()
sys.stdin.read()
open(given["orphaned"], "w").close()
os._exit(0)
"""


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NodeAgent]:
    (tmp_path / "agent_test_program.py").write_text(PROGRAM)
    monkeypatch.setitem(node_agent.MODULES, "test", "agent_test_program")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(node_agent, "visible_devices", lambda: ["2", "3"])
    monkeypatch.setattr(node_agent, "node_address", lambda: "127.0.0.1")
    return NodeAgent()


def settings(folder: Path, **more: object) -> str:
    return json.dumps({"ready": str(folder / "ready"), "orphaned": str(folder / "orphaned"), **more})


async def test_a_process_reports_its_error_its_code_and_its_last_output(agent: NodeAgent, tmp_path: Path) -> None:
    pid = await agent.spawn("test", settings(tmp_path, error="no such model"), str(tmp_path))
    ended = json.loads(await agent.wait(pid))
    assert ended == {"code": 3, "error": "no such model", "tail": "gpus 2,3\n"}


async def test_a_process_starts_in_the_engines_folder_if_the_node_has_it(agent: NodeAgent, tmp_path: Path) -> None:
    for folder, expected in ((tmp_path, tmp_path), (tmp_path / "elsewhere", Path.cwd())):
        pid = await agent.spawn("test", settings(tmp_path), str(folder))
        assert Path(f"/proc/{pid}/cwd").resolve() == expected.resolve()
    await agent.stop()


async def test_a_killed_process_reports_the_signal(agent: NodeAgent, tmp_path: Path) -> None:
    pid = await agent.spawn("test", settings(tmp_path), str(tmp_path))
    waiting = asyncio.create_task(agent.wait(pid))
    os.kill(pid, signal.SIGKILL)
    ended = json.loads(await waiting)
    assert (ended["code"], ended["error"]) == (-9, "")


async def test_stop_kills_what_runs(agent: NodeAgent, tmp_path: Path) -> None:
    pid = await agent.spawn("test", settings(tmp_path), str(tmp_path))
    assert not gone(pid)
    await agent.stop()
    assert wait_for(lambda: gone(pid))
    await agent.stop()


async def test_a_process_learns_from_its_input_that_the_agent_is_gone(agent: NodeAgent, tmp_path: Path) -> None:
    """Ray kills an agent's children, which is the shell alone."""
    pid = await agent.spawn("test", settings(tmp_path), str(tmp_path))
    assert wait_for((tmp_path / "ready").exists)
    shell = agent._processes[pid]
    os.kill(shell.pid, signal.SIGKILL)
    shell.wait()
    assert not gone(pid)
    assert shell.stdin is not None
    shell.stdin.close()
    assert wait_for((tmp_path / "orphaned").exists)


async def test_the_first_rank_inherits_the_socket_of_the_rendezvous(agent: NodeAgent, tmp_path: Path) -> None:
    opened = json.loads(await agent.open_store())
    pid = await agent.spawn("test", settings(tmp_path, store_descriptor=opened["descriptor"]), str(tmp_path))
    reader, writer = await asyncio.open_connection("127.0.0.1", opened["port"])
    assert await reader.read() == b"here"
    writer.close()
    assert json.loads(await agent.wait(pid))["code"] == 0
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened["descriptor"])


def test_ranks_of_a_stage_see_all_its_gpus_whatever_ray_shows_to_the_agent() -> None:
    """Ray hides GPUs from each actor; ranks that map each other's memory must see them all, and choose by number."""
    own = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "PATH": "/bin"}
    kept = {"PATH": "/bin", "OMP_WAIT_POLICY": "passive"}
    assert process_environment(own, ["2", "3"]) == {"CUDA_VISIBLE_DEVICES": "2,3", **kept}
    assert process_environment(own, []) == {"CUDA_VISIBLE_DEVICES": "", **kept}


def test_an_agents_address_is_rays_not_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host's name may resolve to an address that the cluster's nodes do not reach."""
    found = types.SimpleNamespace(util=types.SimpleNamespace(get_node_ip_address=lambda: "10.1.2.3"))
    monkeypatch.setitem(sys.modules, "ray", found)  # type: ignore[arg-type]
    assert node_address() == "10.1.2.3"


def test_calls_to_an_agent_carry_numbers_and_json_alone() -> None:
    """Ray pickles arguments and results, so they are of types for which that is harmless."""
    methods = {name: method for name, method in vars(NodeAgent).items() if not name.startswith("_")}
    assert methods.keys() >= {"spawn", "wait", "stop", "describe", "open_store"}
    for name, method in methods.items():
        assert set(typing.get_type_hints(method).values()) <= {int, str, type(None)}, name


def test_ray_sends_the_agents_name_and_no_code() -> None:
    """Ray pickles classes: one that is found by its name is imported on the node, and brings no code along."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]'")
    from ray import cloudpickle

    sent = cloudpickle.dumps(NodeAgent)
    assert b"radixrt.engine.cluster.node_agent" in sent
    assert len(sent) < 100
