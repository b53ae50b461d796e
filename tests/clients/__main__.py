"""`make clients`: try each client against a real server, print what worked, and record the requests.

    python -m tests.clients [CLIENT ...] [--case NAME] [--url URL] [--no-record]

Environments are made in .clients/, one for each client, for their requirements exclude each other.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import venv
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.clients import recordings
from tests.clients.catalog import CLIENTS, Client
from tests.clients.recorder import recording
from tests.clients.vision_server import VISION_MODEL, start_vision_server
from tests.server_process import ServerProcess

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = ROOT / ".clients"
SCRIPTS = Path(__file__).parent / "scripts"
MODEL = "smollm2-135m-instruct"
LIMIT_S = 1800.0


@dataclass
class Tried:
    """Outcome of a case; `error` is None if it worked."""

    case: str
    error: str | None


def install(client: Client) -> Path:
    """Make the client's environment unless it is there; return the folder.

    Raises:
        subprocess.CalledProcessError: pip or npm failed.
    """
    folder = ENVIRONMENTS / (client.environment or client.name)
    ready = folder / ".packages"
    wanted = repr(client.packages + client.requirements)
    if ready.is_file() and ready.read_text() == wanted:
        return folder
    print(f"{client.name}: installing {' '.join(client.packages)}", file=sys.stderr, flush=True)
    if client.in_node:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text('{"private": true}\n')
        npm = ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error"]
        subprocess.run([*npm, *client.packages], cwd=folder, check=True, stdout=sys.stderr)
    else:
        if not (folder / "bin/python").exists():
            venv.create(folder, with_pip=True)
        pip = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet"]
        alone = ["--no-deps"] if client.requirements else []
        (site,) = folder.glob("lib/python*/site-packages")
        for packages in ([*alone, *client.packages], client.requirements):
            if packages:
                subprocess.run([*pip, *packages], cwd=site, check=True, stdout=sys.stderr)
    ready.write_text(wanted)
    return folder


def run_script(client: Client, folder: Path, url: str, cases: list[str]) -> list[Tried]:
    """Run the client's script against `url`; return the outcome of each case."""
    script = SCRIPTS / client.script
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {
        "RADIXRT_URL": url,
        "RADIXRT_MODEL": VISION_MODEL if client.sends_pictures else MODEL,
        "RADIXRT_CASES": " ".join(cases),
        "HF_HUB_OFFLINE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [str(folder / "bin/python"), str(script)]
    if client.in_node:  # Node looks for packages beside the script
        for each in SCRIPTS.glob("*.mjs"):
            (folder / each.name).write_text(each.read_text())
        command = ["node", str(folder / script.name)]
    with TemporaryDirectory(prefix="clients-") as scratch:  # for what clients leave behind
        environment["TMPDIR"] = scratch
        done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"case"')]
    tried = [Tried(line["case"], line["error"]) for line in lines]
    if done.returncode != 0:
        tried.append(Tried("script", f"ended with code {done.returncode}"))
    return tried


def table(rows: list[tuple[Client, list[Tried]]]) -> str:
    """Return what was tried with each client and what came of it, as a Markdown table."""
    lines = ["| client | version | tried | result |", "|---|---|---|---|"]
    for client, tried in rows:
        failed = [each for each in tried if each.error is not None]
        result = f"{len(tried) - len(failed)} of {len(tried)}"
        for each in failed:
            result += f"; {each.case}: {' '.join((each.error or '').split())[:300]}"
        cases = ", ".join(each.case for each in tried)
        lines.append(f"| {client.name} | {client.version} | {cases} | {result} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.clients", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("client", nargs="*", help=f"default: all of {', '.join(each.name for each in CLIENTS)}")
    parser.add_argument("--case", action="append", default=[], help="run this case alone; records nothing")
    parser.add_argument(
        "--url", help="a running server; by default one of the embedded model is started, and one for pictures"
    )
    parser.add_argument("--no-record", action="store_true", help=f"leave {recordings.FOLDER.name}/ as it is")
    args = parser.parse_args()
    unknown = set(args.client) - {each.name for each in CLIENTS}
    if unknown:
        parser.error(f"no such client: {', '.join(sorted(unknown))}")
    chosen = [each for each in CLIENTS if not args.client or each.name in args.client]
    folders = {each.name: install(each) for each in chosen}
    rows = []
    with ExitStack() as stack:
        urls: dict[bool, str] = {}

        def url_of(client: Client) -> str:
            """Return the URL of the server for a client, which is started for the first client that needs it."""
            if args.url is not None:
                return str(args.url)
            if client.sends_pictures not in urls:
                server = (
                    start_vision_server(Path(stack.enter_context(TemporaryDirectory())))
                    if client.sends_pictures
                    else ServerProcess("--kv-cache-tokens", "16384")
                )
                stack.callback(server.stop)
                urls[client.sends_pictures] = server.wait_ready().url
            return urls[client.sends_pictures]

        for client in chosen:
            with recording(url_of(client)) as (recorder, recorder_url):
                tried = run_script(client, folders[client.name], recorder_url, args.case)
            rows.append((client, tried))
            print(table(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
            if not (args.no_record or args.case or any(each.error for each in tried)):
                recordings.write(client.name, client.version, recorder.recorded())
    print(table(rows))
    return int(any(each.error for _, tried in rows for each in tried))


if __name__ == "__main__":
    sys.exit(main())
