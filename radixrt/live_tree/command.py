"""The command `radixrt tree`: reads the feed of a server, and draws the tree a few times a second."""

from __future__ import annotations

import json
import shutil
import sys
import time
from typing import TextIO

import httpx

from radixrt.errors import ConfigError, shown
from radixrt.live_tree.feed import LiveTree
from radixrt.live_tree.picture import picture
from radixrt.openai_api import error_message, no_answer, server_root

DRAW_S = 0.5
SILENCE_S = 30.0
"""The server sends something at least every second; longer silence is a lost connection."""


PIPED_LINES = 200


def show_tree(
    url: str, api_key: str | None = None, *, replica: int | None = None, once: bool = False, out: TextIO | None = None
) -> int:
    """Draw the tree of the server at `url` until Ctrl-C, or once as plain lines; returns the exit code.

    Args:
        replica: number of the replica to show; default: the first replica of a server with replicas.
        out: default: the standard output. Where it is no terminal, the tree is drawn once.

    Raises:
        ConfigError: the server does not answer, or refuses, or the replica does not serve; says why.
    """
    out = out or sys.stdout
    params = {} if replica is None else {"replica": replica}
    headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
    live = not once and out.isatty()
    tree = LiveTree()
    try:
        with httpx.stream(
            "GET", f"{server_root(url)}/ui/events", params=params, headers=headers, timeout=SILENCE_S
        ) as response:
            if response.status_code != 200:
                response.read()
                raise ConfigError(f"{url} refuses: {error_message(response)}")
            if live:
                out.write("\x1b[?1049h\x1b[?25l")  # the other screen, without a cursor
            _follow(response, tree, out, live=live)
    except (httpx.InvalidURL, httpx.UnsupportedProtocol):
        raise ConfigError(f"--url must be like http://127.0.0.1:30000, not {shown(url)}") from None
    except httpx.HTTPError as error:
        raise ConfigError(no_answer(url, error, "start a server with radixrt launch")) from None
    except KeyboardInterrupt:
        return 0
    finally:
        if live:
            out.write("\x1b[?25h\x1b[?1049l")
            out.flush()
    return 0


def _follow(response: httpx.Response, tree: LiveTree, out: TextIO, *, live: bool) -> None:
    drawn = 0.0
    for line in response.iter_lines():
        if line:
            tree.take(json.loads(line))
        is_complete = tree.replica.is_complete
        if not is_complete:
            _check_serves(tree)
        whole = is_complete and bool(tree.bounds)
        if whole and not live:
            size = shutil.get_terminal_size((120, 60))
            out.write("\n".join(picture(tree, size.columns, size.lines - 1 if out.isatty() else PIPED_LINES)) + "\n")
            return
        if whole and time.monotonic() - drawn > DRAW_S:
            drawn = time.monotonic()
            size = shutil.get_terminal_size((120, 40))
            lines = picture(tree, size.columns, size.lines - 1)
            out.write("\x1b[H" + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J")
            out.flush()


def _check_serves(tree: LiveTree) -> None:
    """Raise ConfigError if the chosen replica is in a state in which it sends no tree."""
    if tree.replica_state not in ("", "serving", "draining", "drained"):
        raise ConfigError(
            f"replica {tree.hello['replica']} is {tree.replica_state} and shows no tree; `radixrt replicas list` shows"
            " all of them"
        )
