"""The address, key and models of a server with OpenAI's API, for commands that talk to any such server."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field

import httpx

from radixrt.errors import ConfigError

DEFAULT_URL = "http://127.0.0.1:30000/v1"
CONNECT_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 30.0
"""Longest wait for the list of models."""


@dataclass(frozen=True)
class OpenAIServer:
    """A reachable server, and the name of the model to request.

    Attributes:
        url: base of the routes, such as "http://127.0.0.1:30000/v1", without a slash at its end.
        model: name of the model in requests.
        headers: headers of each request, the key among them.
    """

    url: str
    model: str
    headers: dict[str, str] = field(repr=False)


def find_server(url: str, model: str | None = None, api_key: str | None = None) -> OpenAIServer:
    """Ask a server for its models, so that a wrong URL or key is found before anything else.

    Args:
        url: with or without /v1; a URL with another path is taken as it is.
        model: None takes the first that the server lists.
        api_key: None takes OPENAI_API_KEY from the environment for api.openai.com, and RADIXRT_API_KEY for others.

    Raises:
        ConfigError: the URL is malformed, no server answers, the key is refused, or there is no model; the message
            names the fix.
    """
    base = _base(url)
    name = _key_name(base)
    key = api_key or os.environ.get(name)
    if key is not None and not (key.isascii() and key.isprintable()):
        raise ConfigError("the API key holds a line break or characters that are not ASCII")
    headers = {"Accept-Encoding": "identity", **({"Authorization": f"Bearer {key}"} if key else {})}
    timeout = httpx.Timeout(ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
    try:
        response = httpx.get(f"{base}/models", headers=headers, timeout=timeout, trust_env=False, verify=tls_context())
    except httpx.HTTPError as error:
        fix = "start a server with radixrt launch, or name another with --url"
        raise ConfigError(no_answer(base, error, fix)) from None
    if response.status_code in (401, 403):
        fix = f"give the right one with --api-key or {name}" if key else f"give one with --api-key or {name}"
        raise ConfigError(
            f"{base} refuses {'the API key' if key else 'requests without a key'}: {error_message(response)}; {fix}"
        )
    served = _listed(response)
    if model is None and not served:
        raise ConfigError(f"{base}/models lists no models ({response.status_code}); name one with --model")
    return OpenAIServer(base, model or served[0], headers)


def tls_context() -> ssl.SSLContext:
    """Return a TLS context that trusts the file SSL_CERT_FILE of the environment, else the usual authorities.

    httpx reads the variable itself, but not where it is to ignore the proxies of the environment.
    """
    return httpx.create_ssl_context()


def no_answer(url: str, error: Exception, fix: str) -> str:
    """Return an error text for a server that could not be reached.

    Args:
        fix: what helps if no server listens at the URL. The reason shows whether a certificate is the cause instead.
    """
    reason = str(error) or type(error).__name__
    return f"{url} does not answer: {reason}; {certificate_fix(reason) or fix}"


def certificate_fix(reason: str) -> str | None:
    """Return what helps against a failed TLS handshake; None if the reason of a failure is another."""
    if "Hostname mismatch" in reason or "IP address mismatch" in reason:
        return "use the host name for which the certificate was issued"
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        return "name the PEM file of the authority that issued its certificate with --cacert, or SSL_CERT_FILE"
    if "WRONG_VERSION_NUMBER" in reason:
        return "the server speaks no TLS there; use http:// in place of https://"
    return None


def error_message(response: httpx.Response) -> str:
    """Return the message of an error response whose body was read: OpenAI's field, or its status and first words."""
    try:
        error = response.json()["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        return f"{response.status_code} {response.reason_phrase} {response.text[:200]}".strip()


def server_root(url: str) -> str:
    """Return the URL of a server without /v1, for routes beside OpenAI's."""
    return url.rstrip("/").removesuffix("/v1")


def _base(url: str) -> str:
    """Return the URL of OpenAI's routes on a server."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ConfigError(f"--url {url!r} is not a URL: {error}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.query or parsed.fragment:
        raise ConfigError(f"--url must be like {DEFAULT_URL}, not {url!r}")
    return url.rstrip("/") + ("/v1" if parsed.path in ("", "/") else "")


def _key_name(base: str) -> str:
    """Return the environment variable of the server's key: one service's key is never sent to another."""
    return "OPENAI_API_KEY" if httpx.URL(base).host == "api.openai.com" else "RADIXRT_API_KEY"


def _listed(response: httpx.Response) -> list[str]:
    try:
        return [str(card["id"]) for card in response.json()["data"]] if response.status_code == 200 else []
    except (ValueError, KeyError, TypeError):
        return []
