"""Choice of the backend on which a program runs."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

import radixrt as rt
from radixrt.lang.backends.default import as_backend, get_default_backend

GREEDY = {"temperature": 0, "max_tokens": 4}


@rt.function(**GREEDY)
def program(s: rt.State) -> None:
    s += "Go" + rt.gen("x")


def test_the_default_backend_and_a_runs_own(engine: rt.Engine, uncached: rt.Engine) -> None:
    rt.set_default_backend(engine)
    try:
        first = program.run()
        other = program.run(backend=uncached)
        assert get_default_backend() is as_backend(engine)
    finally:
        rt.set_default_backend(None)
    assert first["x"] == other["x"]
    assert first.log.backend == other.log.backend == "engine llama"


def test_what_stands_for_a_backend(engine: rt.Engine) -> None:
    assert as_backend(engine) is as_backend(engine)
    assert isinstance(as_backend("http://127.0.0.1:1"), rt.Endpoint)
    with pytest.raises(rt.ConfigError, match="not 5"):
        as_backend(5)


def test_without_any_backend_the_embedded_model_starts_and_ends_with_the_interpreter() -> None:
    script = """
        import radixrt as rt

        @rt.function(temperature=0, max_tokens=16)
        def capital(s):
            s += rt.user("What is the capital of France?") + rt.assistant(rt.gen("answer"))
            branches = s.fork(2)
            for branch in branches:
                branch += rt.user("Sure?") + rt.assistant(rt.select("sure", ["yes", "no"]))

        if __name__ == "__main__":
            state = capital.run()
            print(len(state.log.calls), bool(state["answer"]))
            print(state.log.backend)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["3 True", "engine smollm2-135m-instruct"]
    assert "Traceback" not in done.stderr
