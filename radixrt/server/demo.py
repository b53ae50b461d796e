"""`make run`: the server on the embedded model, with one question asked and answered when it is ready."""

from __future__ import annotations

import argparse
import json
import sys
import threading
import urllib.request

from radixrt.config import make_config
from radixrt.errors import RadixRTError
from radixrt.server.launch import launch

QUESTION = "What is the capital of Japan?"
ANSWER_TIMEOUT_S = 120


def _show(url: str, model: str) -> None:
    """Ask over HTTP like any client, from a thread: the server's own thread is busy serving."""
    question = [{"role": "user", "content": QUESTION}]
    body = {"model": model, "messages": question, "temperature": 0, "max_tokens": 100}
    text = json.dumps(body)
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", data=text.encode(), headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=ANSWER_TIMEOUT_S) as response:
        answer = json.load(response)["choices"][0]["message"]["content"]
    print(f"\nradixrt serves {model} on {url}\n")
    print(f"  curl {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{text}'\n")
    print(f"  {QUESTION}\n  {answer}\n")
    print("Ctrl-C stops it.", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=30000)
    args = parser.parse_args()
    try:
        config = make_config(port=args.port, log_level="warning")
        return launch(config, lambda url, model: threading.Thread(target=_show, args=(url, model), daemon=True).start())
    except RadixRTError as error:
        print(f"radixrt: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
