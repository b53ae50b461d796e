"""The command `radixrt replicas`: lists, adds, drains and removes replicas of a running server."""

from __future__ import annotations

import sys
from typing import Any, Literal, TextIO

import httpx

from radixrt.errors import ConfigError, shown
from radixrt.openai_api import error_message, no_answer, server_root

TIMEOUT_S = 30.0
COLUMNS = ("replica", "role", "state", "open", "queued", "running", "wait s", "hit rate", "slots used", "reason")

EFFECTS = {
    "add": "is starting; requests go there once its state is serving",
    "drain": "gets no new requests, and its processes stay; resume takes it back",
    "resume": "gets requests again",
    "remove": "gets no new requests; it is stopped and leaves the list once its open requests are answered, or moved",
}
"""What an action does to a replica."""

Action = Literal["list", "add", "drain", "resume", "remove"]


def change_replicas(
    url: str,
    action: Action,
    replica: int | None = None,
    *,
    api_key: str | None = None,
    timeout_s: float | None = None,
    out: TextIO | None = None,
) -> int:
    """Run an action on the replicas of the server at `url`, and print the replicas; return the exit code.

    Args:
        replica: number of the replica to drain, resume or remove.
        timeout_s: for "remove", the longest wait for open requests.
        out: default: the standard output.

    Raises:
        ConfigError: the server does not answer, or refuses; says why.
    """
    out = out or sys.stdout
    headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
    body: dict[str, Any] = {} if replica is None else {"replica": replica}
    if action == "resume":
        body["on"] = False
    if action == "remove" and timeout_s is not None:
        body["timeout_s"] = timeout_s
    try:
        with httpx.Client(base_url=server_root(url), headers=headers, timeout=TIMEOUT_S) as client:
            if action != "list":
                path = "drain" if action == "resume" else action
                changed = _checked(url, client.post(f"/replicas/{path}", json=body)).json()["replica"]
                out.write(f"replica {changed} {EFFECTS[action]}\n")
            found = _checked(url, client.get("/replicas")).json()["replicas"]
    except (httpx.InvalidURL, httpx.UnsupportedProtocol):
        raise ConfigError(f"--url must be like http://127.0.0.1:30000, not {shown(url)}") from None
    except httpx.HTTPError as error:
        raise ConfigError(no_answer(url, error, "start a server with radixrt launch --replicas 1")) from None
    out.write(table(found))
    return 0


def table(replicas: list[dict[str, Any]]) -> str:
    """Return the replicas of GET /replicas as lines of text."""
    if not replicas:
        return "this server has one engine and no router; start it with --replicas 1 or more to add replicas\n"
    rows = [COLUMNS, *(_row(replica) for replica in replicas)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines) + "\n"


def _row(replica: dict[str, Any]) -> tuple[str, ...]:
    prompt, total = replica["prompt_tokens"], replica["slots_total"]
    used = total - replica["slots_free"] - replica["slots_evictable"]
    return (
        str(replica["replica"]),
        replica["role"],
        replica["state"],
        str(replica["open"]),
        str(replica["queued"]),
        str(replica["running"]),
        f"{replica['predicted_wait_s']:.2f}",
        f"{replica['cached_tokens'] / prompt:.0%}" if prompt else "-",
        f"{used / total:.0%}" if total else "-",
        replica["reason"],
    )


def _checked(url: str, response: httpx.Response) -> httpx.Response:
    if response.status_code == 200:
        return response
    raise ConfigError(f"{url} refuses: {error_message(response)}")
