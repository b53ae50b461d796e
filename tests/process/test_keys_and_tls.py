"""A real server with several API keys, over TLS: isolation of clients, and files that are read again on SIGHUP."""

from __future__ import annotations

import signal
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import openai
import pytest

from radixrt.cli import main
from tests.server_process import LIMIT_S, ServerProcess, wait_for

KEYS = """
[keys.alice]
key = "sk-alice"
[keys.bob]
key = "sk-bob"
[keys.operator]
key = "sk-operator"
admin = true
"""
PROMPT = list(range(20, 60))


def make_certificate(folder: Path, name: str) -> None:
    """Write a new self-signed certificate for 127.0.0.1, and its key."""
    command = [
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
        "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1",
        "-keyout", str(folder / "key.pem"), "-out", str(folder / "certificate.pem"),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)


class SecureServer:
    """The server, and its files."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder = folder
        (folder / "keys.toml").write_text(KEYS)
        (folder / "keys.toml").chmod(0o600)
        make_certificate(folder, "first")
        self.process = ServerProcess(
            "--model", str(model), "--dtype", "float32", "--kv-cache-tokens", "2048",
            "--api-key-file", str(folder / "keys.toml"),
            "--ssl-certfile", str(folder / "certificate.pem"), "--ssl-keyfile", str(folder / "key.pem"),
        ).wait_ready()  # fmt: skip

    def trusted(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.folder / "certificate.pem"))

    def client(self, key: str, trusted: ssl.SSLContext | None = None) -> openai.OpenAI:
        http = httpx.Client(verify=trusted or self.trusted(), timeout=LIMIT_S)
        return openai.OpenAI(base_url=f"{self.process.url}/v1", api_key=key, http_client=http, max_retries=0)

    def reload(self, line: str) -> None:
        """Send SIGHUP, and wait until a new line of the log contains `line`."""
        seen = len(self.process.lines)
        self.process.process.send_signal(signal.SIGHUP)
        assert wait_for(lambda: any(line in each for each in self.process.lines[seen:])), self.process.lines[seen:]


@pytest.fixture(scope="module")
def server(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureServer]:
    server = SecureServer(tmp_path_factory.mktemp("secure"), tiny_model("llama"))
    yield server
    assert server.process.stop() == 0


def cached_tokens(client: openai.OpenAI, prompt: list[int], **extra: object) -> int:
    answer = client.completions.create(
        model="llama", prompt=prompt, max_tokens=2, temperature=0, extra_body={"ignore_eos": True, **extra}
    )
    assert answer.usage is not None
    details = answer.usage.prompt_tokens_details
    return 0 if details is None else details.cached_tokens or 0


def test_a_key_shares_its_cache_with_no_other_key(server: SecureServer) -> None:
    alice, bob = server.client("sk-alice"), server.client("sk-bob")
    assert cached_tokens(alice, PROMPT) == 0
    assert cached_tokens(alice, PROMPT) > 0
    assert cached_tokens(bob, PROMPT) == 0
    assert cached_tokens(bob, PROMPT) > 0
    assert cached_tokens(alice, PROMPT, cache_salt="k3:bob") == 0


def test_operators_routes_need_an_admins_key(server: SecureServer) -> None:
    with httpx.Client(verify=server.trusted(), base_url=server.process.url, timeout=LIMIT_S) as http:
        for key, status in (("sk-alice", 403), ("sk-operator", 200)):
            headers = {"Authorization": f"Bearer {key}"}
            assert http.get("/metrics", headers=headers).status_code == status
            assert http.post("/flush_cache", headers=headers).status_code == status
        assert http.get("/metrics").status_code == 401
        assert http.get("/health").status_code == 200
        assert http.get("/health", params={"deep": 1}).status_code == 401


def test_a_key_that_is_not_in_the_file_is_refused(server: SecureServer) -> None:
    with pytest.raises(openai.AuthenticationError):
        cached_tokens(server.client("sk-alicf"), PROMPT)


def test_plain_http_gets_no_answer(server: SecureServer) -> None:
    with pytest.raises(httpx.TransportError):
        httpx.get(server.process.url.replace("https", "http") + "/health", timeout=LIMIT_S)


def test_commands_trust_a_certificate_that_they_are_given(
    server: SecureServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(server.folder / "certificate.pem"))  # put back at the end, as it was
    monkeypatch.delenv("SSL_CERT_FILE")
    url, file = server.process.url, str(server.folder / "certificate.pem")
    commands = (["chat"], ["tree"], ["replicas", "list"], ["bench", "serve", "--num-prompts", "1"])
    for command in commands:
        assert main([*command, "--base-url", url, "--api-key", "sk-operator"]) == 2
        assert "authority that issued its certificate with --cacert" in capsys.readouterr().err
    assert main(["replicas", "list", "--url", url, "--api-key", "sk-operator", "--cacert", file]) == 0
    assert main(["tree", "--url", f"{url}/v1", "--api-key", "sk-operator", "--cacert", file, "--once"]) == 0
    capsys.readouterr()
    lengths = ["--random-input-len", "8", "--random-output-len", "2"]
    bench = ["bench", "serve", "--num-prompts", "1", *lengths]
    assert main([*bench, "--url", url, "--api-key", "sk-alice", "--cacert", file]) == 0, capsys.readouterr().err
    plain = url.replace("https", "http")
    assert main(["replicas", "list", "--url", plain, "--api-key", "sk-operator"]) == 2


def test_files_are_read_again_on_sighup(server: SecureServer) -> None:
    first = server.trusted()
    stream = server.client("sk-alice").completions.create(
        model="llama", prompt=PROMPT, max_tokens=300, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))

    make_certificate(server.folder, "second")
    keys = server.folder / "keys.toml"
    keys.write_text(KEYS.replace("sk-bob", "sk-bobby"))
    server.reload("certificate reloaded")

    assert sum(1 for _ in stream) > 0  # the connection that was open goes on
    cached_tokens(server.client("sk-bobby"), PROMPT)
    with pytest.raises(openai.AuthenticationError):
        cached_tokens(server.client("sk-bob"), PROMPT)
    with pytest.raises(openai.APIConnectionError):
        cached_tokens(server.client("sk-alice", first), PROMPT)

    keys.write_text("[keys.alice]\n")
    (server.folder / "certificate.pem").rename(server.folder / "moved.pem")
    server.reload("--ssl-certfile")
    (server.folder / "moved.pem").rename(server.folder / "certificate.pem")
    cached_tokens(server.client("sk-alice"), PROMPT)
    log = "".join(server.process.lines)
    assert "exactly one of key and sha256" in log
    assert "sk-" not in log


NOT_THERE = ("--model", "/a/model/that/is/not/there")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--ssl-keyfile", "missing.pem"], "--ssl-keyfile needs --ssl-certfile"),
        (["--api-key-file", "missing.toml"], "--api-key-file missing.toml cannot be read"),
    ],
)
def test_mistakes_are_found_before_the_model_loads(
    arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["launch", *NOT_THERE, *arguments]) == 2
    said = capsys.readouterr().err
    assert error in said
    assert "/a/model" not in said


def test_a_server_with_a_mistake_ends_before_the_model_loads() -> None:
    server = ServerProcess(*NOT_THERE, "--ssl-certfile", "missing.pem")
    assert server.wait() == 2
    log = "".join(server.lines)
    assert "No such file" in log
    assert "/a/model" not in log
