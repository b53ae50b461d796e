"""TLS: the server's certificate, which can be replaced while connections are open."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from radixrt.config import ServerConfig
from radixrt.errors import ConfigError
from radixrt.server.access.keys import check_is_file

logger = logging.getLogger(__name__)


class Certificate:
    """The certificate and key that `--ssl-certfile` and `--ssl-keyfile` name.

    Attributes:
        context: for the server's listener. Connections that are open keep the certificate of their handshake.

    Raises:
        ConfigError: the files cannot be read, or do not belong together.
    """

    def __init__(self, certfile: str, keyfile: str | None) -> None:
        self._certfile = certfile
        self._keyfile = keyfile
        self.context = self._load()

    def reload(self) -> None:
        """Read the files again; if they are not valid, the certificate stays as it is.

        Raises:
            ConfigError: as the constructor.
        """
        check_is_file(Path(self._certfile), "--ssl-certfile")
        if self._keyfile is not None:
            check_is_file(Path(self._keyfile), "--ssl-keyfile")
        self._load()  # a failure must not leave the new certificate with the old key in the context
        self.context.load_cert_chain(self._certfile, self._keyfile)
        logger.info("certificate reloaded from %s", self._certfile)

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self._certfile, self._keyfile, password=_no_password)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            files = self._certfile if self._keyfile is None else f"{self._certfile} and {self._keyfile}"
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
            raise ConfigError(
                f"--ssl-certfile and --ssl-keyfile: {files} cannot be used: {reason}; give PEM files of a certificate"
                " and of its key, without a password"
            ) from None
        return context


def _no_password() -> str:
    """Refuse encrypted keys: OpenSSL would ask for a password on the terminal."""
    raise ValueError("the key is encrypted")


def make_certificate(config: ServerConfig) -> Certificate | None:
    """Return the server's certificate; None if it speaks plain HTTP.

    Raises:
        ConfigError: as `Certificate`, or a key without a certificate was given.
    """
    if config.ssl_certfile is None:
        if config.ssl_keyfile is not None:
            raise ConfigError("--ssl-keyfile needs --ssl-certfile")
        return None
    return Certificate(config.ssl_certfile, config.ssl_keyfile)
