"""Pictures from URLs: what is fetched, from a local HTTPS server, and what is refused."""

from __future__ import annotations

import base64
import contextlib
import http.server
import ssl
import subprocess
import threading
import time

import pytest

from radixrt.errors import RequestError
from radixrt.vision import fetch as fetching
from radixrt.vision.fetch import ImageFetcher, decode_data_url, is_public_address
from tests.vision.pictures import picture

PICTURE = picture(40, 40)
HOST = "pictures.test"


class Handler(http.server.BaseHTTPRequestHandler):
    requests: list[tuple[str, dict[str, str]]]

    def do_GET(self):
        self.requests.append((self.path, dict(self.headers)))
        kind = self.path.partition("?")[0]
        if kind == "/moved":
            self.send_response(302)
            self.send_header("Location", "https://127.0.0.1/secret")
            self.end_headers()
            return
        if kind == "/missing":
            self.send_error(404)
            return
        self.send_response(200)
        if kind == "/long":
            self.send_header("Content-Length", str(10**9))
            self.end_headers()
            return
        self.end_headers()
        with contextlib.suppress(OSError):
            if kind == "/slow":
                for _ in range(200):
                    self.wfile.write(b"a")
                    time.sleep(0.05)
            elif kind == "/endless":
                while True:
                    self.wfile.write(bytes(65_536))
            else:
                self.wfile.write(PICTURE)

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    command = [
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
        "-subj", f"/CN={HOST}", "-addext", f"subjectAltName=DNS:{HOST}",
        "-keyout", str(folder / "key.pem"), "-out", str(folder / "certificate.pem"),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    handler = type("Handler", (Handler,), {"requests": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    server.certificate = folder / "certificate.pem"
    server.seen = handler.requests
    yield server
    server.shutdown()
    server.server_close()


def fetcher(server, *, name=HOST, addresses=("127.0.0.1",), is_public=lambda address: True, max_bytes=100_000):
    async def resolve(host, port):
        return list(addresses)

    return ImageFetcher(
        [f"{name}:{server.server_port}", "plain.test"],
        max_bytes,
        resolve=resolve,
        is_public=is_public,
        tls=ssl.create_default_context(cafile=str(server.certificate)),
    )


def url(server, path="/a.png?x=1", host=HOST):
    return f"https://{host}:{server.server_port}{path}"


async def refused(given, address, message):
    with pytest.raises(RequestError, match=message) as caught:
        await given.fetch(address, "messages[0].content[1].image_url")
    assert caught.value.param == "messages[0].content[1].image_url"
    assert caught.value.status == 400
    return caught.value


async def test_a_listed_host(server):
    server.seen.clear()
    assert await fetcher(server).fetch(url(server), "image_url") == PICTURE
    ((path, headers),) = server.seen
    assert path == "/a.png?x=1"
    assert set(headers) == {"Host", "Accept", "Accept-Encoding", "User-Agent"}
    assert headers["Host"] == f"{HOST}:{server.server_port}"


async def test_redirects_are_not_followed(server):
    server.seen.clear()
    await refused(fetcher(server), url(server, "/moved"), "answered with status 302; redirects are not followed")
    assert len(server.seen) == 1
    await refused(fetcher(server), url(server, "/missing"), "answered with status 404")


async def test_sizes_and_times(server, monkeypatch):
    await refused(fetcher(server), url(server, "/long"), "may have 100000 bytes")
    await refused(fetcher(server), url(server, "/endless"), "may have 100000 bytes")
    monkeypatch.setattr(fetching, "FETCH_S", 0.3)
    await refused(fetcher(server), url(server, "/slow"), "did not come from pictures.test within 0.3 s")


async def test_the_certificate_is_of_the_host_in_the_url(server):
    other = fetcher(server, name="other.test")
    await refused(other, url(server, host="other.test"), "cannot be fetched from other.test")


async def test_private_addresses(server):
    """All addresses that the name resolves to count, and it is resolved once."""
    for addresses in (["127.0.0.1"], ["93.184.215.14", "10.0.0.1"], ["::1"], ["169.254.169.254"], []):
        given = fetcher(server, addresses=addresses, is_public=is_public_address)
        await refused(given, url(server), "has no public address")


async def test_the_name_is_resolved_once(server):
    """A name that changes its address after the check: the connection goes to the address that was checked."""
    calls = []

    async def resolve(host, port):
        calls.append(host)
        return ["127.0.0.1"] if len(calls) == 1 else ["192.0.2.1"]

    given = fetcher(server)
    given._resolve = resolve
    assert await given.fetch(url(server), "image_url") == PICTURE
    assert calls == [HOST]


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.1", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
        "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1%eth0", "fc00::1", "ff02::1", "::ffff:127.0.0.1",
        "2002:7f00:1::", "64:ff9b::7f00:1", "2001:0:53aa:64c:0:0:80ff:fffe", "name",
    ],
)  # fmt: skip
def test_no_public_address(address):
    assert not is_public_address(address)


@pytest.mark.parametrize("address", ["93.184.215.14", "8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8"])
def test_public_address(address):
    assert is_public_address(address)


@pytest.mark.parametrize(
    "text",
    [
        "http://plain.test/a.png", "ftp://plain.test/a", "file:///etc/passwd", "https://user@plain.test/",
        "https://user:pw@plain.test/", "https://plain.test\\@evil.test/", "https://plain.test#@evil.test/",
        "https://[::1]/", "https://plain.test:99999999/", "https://plain.test/a b", "https://plain.test/\n", "",
        "https://", "https://pl%61in.test/", "https://plain.test/" + "a" * 9000, "//plain.test/a",
        "https:/plain.test/a",
        "https://plain.test\r\nX: y/",
    ],
)  # fmt: skip
async def test_other_urls(server, text):
    await refused(fetcher(server), text, "must be a data: URL, or an https URL")


@pytest.mark.parametrize(
    "text", ["https://evil.test/a", "https://plain.test.evil.test/", "https://plain.test:444/", "https://127.0.0.1/"]
)
async def test_other_hosts(server, text):
    await refused(fetcher(server), text, "listed hosts only")


async def test_nothing_is_fetched_without_hosts():
    given = ImageFetcher([], 1000)
    await refused(given, "http://a.test/a.png", "must be a data: URL$")
    await refused(given, "https://a.test/a.png", "are not fetched from a.test; send a data: URL")


def test_data_urls():
    text = base64.b64encode(PICTURE).decode()
    for head in ("data:image/png;base64,", "DATA:image/png;BASE64,", "data:;base64,", "data:image/png;a=b;base64,"):
        assert decode_data_url(head + text, "url", 100_000) == PICTURE
    for wrong, message in (
        ("data:image/png," + text, "must have the form"),
        ("data:image/png;base64," + text[:-1] + "!", "is not valid base64"),
        ("data:image/png;base64," + text[:-3], "is not valid base64"),
        ("data:image/png;base64,äöü", "is not valid base64"),
        ("data:image/png;base64," + "A" * 200_000, "may have 100000 bytes"),
    ):
        with pytest.raises(RequestError, match=message) as caught:
            decode_data_url(wrong, "url", 100_000)
        assert caught.value.message.startswith("url: ")
