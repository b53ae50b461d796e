"""The HTTP application in Ray Serve, for clusters where Serve is the front door anyway; needs 'ray[serve]'.

python examples/ray_serve.py --model ./Qwen3-0.6B --gpus 1    # one engine on one GPU of the cluster, port 8000

Each copy of the deployment is an engine of its own, with a cache of its own. Serve sends requests to copies without
regard to prefixes and adds a hop to each token; `radixrt launch --replicas N --cluster auto` routes by cached prefixes.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from ray import serve
from starlette.applications import Starlette


def application(options: dict[str, Any], *, gpus: int = 0, copies: int = 1) -> serve.Application:
    """Return the Serve application.

    Args:
        options: of `radixrt.Engine`.
        gpus: GPUs of each copy, which its ranks share.
    """

    def build() -> Starlette:  # runs on the node of a copy
        import radixrt
        from radixrt.chat.dialect import read_dialect
        from radixrt.server.app import create_app

        engine = radixrt.Engine(tp=max(gpus, 1), **options)
        info = engine.settings
        return create_app(
            engine.client, engine.config.server, info.model_name, read_dialect(engine.config, info.folder)
        )

    deployment = serve.deployment(
        name="radixrt",
        num_replicas=copies,
        max_ongoing_requests=1000,  # the engine has a queue of its own
        ray_actor_options={"num_cpus": 0, "num_gpus": gpus},
        health_check_timeout_s=600,
    )
    return deployment(serve.ingress(build)()).bind()


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve a model through Ray Serve.")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs of each copy")
    parser.add_argument("--copies", type=int, default=1)
    parser.add_argument("--port", type=int, default=8000)
    args = parser.parse_args()
    serve.start(http_options={"host": "127.0.0.1", "port": args.port})
    serve.run(application({"model": args.model}, gpus=args.gpus, copies=args.copies))
    print(f"ready on http://127.0.0.1:{args.port}/v1", flush=True)
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main()
