"""Protection of a ZooKeeper session: TLS, user and password. Source: metadata section 2.1.

Secrets are read when a session is opened (``security/secrets.py``).
"""

from __future__ import annotations

import importlib.util
import logging
import ssl
from collections.abc import Callable, Mapping
from typing import Any

from bkctl.runtime.config import SaslMechanism, ZooKeeperConfig, ZooKeeperSaslConfig, ZooKeeperTlsConfig
from bkctl.runtime.errors import ConfigurationError
from bkctl.runtime.security.secrets import read_secret

logger = logging.getLogger(__name__)

_DESCRIBED = ("Sending request", "Received response")


def session_credentials(config: ZooKeeperConfig, environment: Mapping[str, str]) -> dict[str, Any]:
    """Arguments of the ZooKeeper client that authenticate the session; ConfigurationError."""
    arguments: dict[str, Any] = {}
    if config.digest is not None:
        credential = read_secret(config.digest, "the user and password for ZooKeeper", environment)
        if ":" not in credential:
            raise ConfigurationError("the user and password for ZooKeeper must have the form USER:PASSWORD")
        arguments["auth_data"] = [("digest", credential)]
    if config.sasl is not None:
        arguments["sasl_options"] = _sasl_options(config.sasl, environment)
    has_certificate = config.tls is not None and config.tls.certificate_file is not None
    if config.has_secure_acl and not (arguments or has_certificate):
        raise ConfigurationError(
            "nodes that only the authenticated user may use (zkEnableSecurity) need authentication: set "
            "zookeeper.digest, zookeeper.sasl or a client certificate in zookeeper.tls"
        )
    return arguments


def _sasl_options(config: ZooKeeperSaslConfig, environment: Mapping[str, str]) -> dict[str, Any]:
    if config.mechanism is SaslMechanism.GSSAPI:
        if importlib.util.find_spec("kerberos") is None:
            raise ConfigurationError("SASL with GSSAPI needs the Python package kerberos: pip install kerberos")
        options: dict[str, Any] = {"mechanism": "GSSAPI", "service": config.service}
        return options | ({"principal": config.principal} if config.principal is not None else {})
    if config.username is None or config.password is None:
        raise ConfigurationError("SASL with DIGEST-MD5 needs zookeeper.sasl.username and zookeeper.sasl.password")
    return {
        "mechanism": "DIGEST-MD5",
        "service": config.service,
        "username": config.username,
        "password": read_secret(config.password, "the SASL password for ZooKeeper", environment),
        # The client library cannot wrap messages, so only authentication may be negotiated.
        "qops": (b"auth",),
    }


class _NotingSocket(ssl.SSLSocket):
    """With TLS 1.3 a server rejects the client's certificate only after the handshake: in answer to the first read."""

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """Read, and note an alert."""
        try:
            return super().recv(buflen, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            assert isinstance(self.context, NotingContext)
            self.context.note(error)
            raise


class NotingContext(ssl.SSLContext):
    """Reports TLS alerts on an established connection."""

    note: Callable[[ssl.SSLError], None]
    sslsocket_class = _NotingSocket


def tls_context(config: ZooKeeperTlsConfig, environment: Mapping[str, str]) -> NotingContext:
    """TLS context for connections to ZooKeeper, from PEM files; ConfigurationError shows the file."""
    context = NotingContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = config.is_hostname_checked
    context.verify_mode = ssl.CERT_REQUIRED
    if config.ca_file is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        _load(config.ca_file, context.load_verify_locations)
    if config.certificate_file is not None:
        secret = config.key_password
        # Without a password OpenSSL would prompt on the terminal.
        password = "" if secret is None else read_secret(secret, "the password of the ZooKeeper key", environment)
        _load(config.certificate_file, lambda path: context.load_cert_chain(path, config.key_file, password))
    elif config.key_file is not None:
        raise ConfigurationError("zookeeper.tls has a key_file but no certificate_file")
    return context


def _load(path: str, load: Callable[[str], None]) -> None:
    try:
        load(path)
    except ssl.SSLError as error:
        reason = error.reason or "the key cannot be decrypted"
        raise ConfigurationError(f"{path} and its key are not usable PEM files: {reason}") from error
    except OSError as error:
        raise ConfigurationError(f"cannot read {path} or its key: {error.strerror}") from error


class RedactingFilter(logging.Filter):
    """Removes the contents of requests from the client library's log: passwords of users, sessions and ledgers."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep the record, but show only the kinds and paths of requests."""
        if isinstance(record.args, tuple) and str(record.msg).startswith(_DESCRIBED):
            record.args = (record.args[0], *(_described(argument) for argument in record.args[1:]))
        return True


def _described(message: object) -> str:
    path = getattr(message, "path", None)
    return f"{type(message).__name__}({path if isinstance(path, str) else ''})"
