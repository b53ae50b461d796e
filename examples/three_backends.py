"""The same program on three backends: an engine in this process, a radixrt server, any OpenAI-compatible server.

python examples/three_backends.py

The example starts a server on a free port and stops it at the end; --base-url names a running one instead. In float32,
greedy answers do not depend on the composition of batches, so the three answers are equal in every token.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Literal

import common
import openai

import radixrt as rt


@rt.function(temperature=0)
def travel(s: rt.State, country: str) -> None:
    s += rt.system("You answer in one short sentence.")
    s += rt.user(f"What is the capital of {country}?") + rt.assistant(rt.gen("capital", max_tokens=24))
    seasons = s.copy()
    seasons += rt.user("Is it better in summer or in winter?")
    seasons += rt.assistant(rt.gen("season", Literal["summer", "winter"]))
    s += rt.user("Name one dish from there.") + rt.assistant(rt.gen("dish", max_tokens=32))
    s += rt.user("When shall I go?") + rt.assistant("In " + rt.join([seasons], "season") + ".")


@contextmanager
def server(model: str | None) -> Iterator[str]:
    """Run `radixrt launch` on a free port, and yield its URL when it is ready."""
    command = [sys.executable, "-m", "radixrt", "launch", "--port", "0", "--dtype", "float32"]
    command += ["--model", model] if model else []
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if found := re.search(r"is ready on (http://\S+)", line):
                break
        else:
            raise SystemExit("the server did not start")
        yield found.group(1)
    finally:
        process.terminate()
        process.communicate()


def main() -> None:
    args = common.parser(__doc__).parse_args()
    states = []

    def run(backend: object) -> None:
        state = travel.run("Japan", backend=backend)
        states.append(state)
        print(f"{state.log.backend}:")
        print("\n".join(f"  {message['role']}: {message['content']}" for message in state.messages()[1:]))

    with rt.Engine(model=args.model, dtype="float32", log_level="warning") as engine:
        run(engine)
    with nullcontext(args.base_url) if args.base_url else server(args.model) as url:
        run(rt.Endpoint(url))
        model = openai.OpenAI(base_url=f"{url}/v1", api_key="none").models.list().data[0].id
        run(rt.OpenAI(f"{url}/v1", model))
    same = len({str(state.messages()) for state in states}) == 1
    print("all three say the same" if same else "they differ")
    print(common.reuse(*states))


if __name__ == "__main__":
    main()
