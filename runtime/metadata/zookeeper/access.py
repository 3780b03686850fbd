"""Protection of a ZooKeeper session: TLS, user and password. Source: metadata section 2.1.

SASL logins and certificates follow their files (``security/followed_files.py``); a digest is read once per session.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec
from puresasl import mechanisms

from bkctl.runtime.config import ZooKeeperConfig, ZooKeeperSaslConfig, ZooKeeperTlsConfig
from bkctl.runtime.errors import AuthenticationError, ConfigurationError
from bkctl.runtime.security.client_login import KerberosLogin, read_client_login
from bkctl.runtime.security.followed_files import FollowedFiles
from bkctl.runtime.security.secrets import read_secret
from bkctl.runtime.security_config import LoginMechanism

logger = logging.getLogger(__name__)

NoteLogin: TypeAlias = Callable[[str | None], None]

_DESCRIBED = ("Sending request", "Received response")


def session_credentials(config: ZooKeeperConfig, environment: Mapping[str, str], note: NoteLogin) -> dict[str, Any]:
    """Arguments of the ZooKeeper client that authenticate the session; ConfigurationError.

    ``note``: called on kazoo's thread when this side cannot log in, and with None when it has logged in.
    """
    arguments: dict[str, Any] = {}
    if config.digest is not None:
        credential = read_secret(config.digest, "the user and password for ZooKeeper", environment)
        if ":" not in credential:
            raise ConfigurationError("the user and password for ZooKeeper must have the form USER:PASSWORD")
        arguments["auth_data"] = [("digest", credential)]
    if config.sasl is not None:
        arguments["sasl_options"] = _sasl_options(config.sasl, environment, note)
    has_certificate = config.tls is not None and bool(config.tls.certificate_file or config.tls.key_file)
    if config.has_secure_acl and not (arguments or has_certificate):
        raise ConfigurationError(
            "nodes that only the authenticated user may use (zkEnableSecurity) need authentication: set "
            "zookeeper.digest, zookeeper.sasl or a client certificate in zookeeper.tls"
        )
    return arguments


def _sasl_options(config: ZooKeeperSaslConfig, environment: Mapping[str, str], note: NoteLogin) -> dict[str, Any]:
    followed = FollowedFiles(
        lambda: read_client_login(config, "zookeeper.sasl", environment),
        [config.password, config.jaas_file],
        config.variables_note,
    )
    login = followed.current()
    if isinstance(login, KerberosLogin):
        from bkctl.runtime.metadata.zookeeper import kerberos_login  # noqa: PLC0415  an optional package

        return {"mechanism": kerberos_login.add_mechanism(), "service": config.service, "login": login, "note": note}
    return {
        "mechanism": DigestMechanism.name,
        "service": config.service,
        "note": note,
        # Called for "username" and "password" in every login: the files may have changed.
        "callback": lambda name: getattr(followed.current(), name),
        # The client library cannot wrap messages, so only authentication may be negotiated.
        "qops": (b"auth",),
    }


class DigestMechanism(mechanisms.DigestMD5Mechanism):  # type: ignore[misc]  # pure-sasl is untyped
    """The library's login with a password, ended where a server does not know SASL."""

    def __init__(self, sasl: Any, *, note: NoteLogin | None = None, **properties: str) -> None:
        super().__init__(sasl, **properties)
        self._note = note or (lambda _: None)
        self._has_begun = False

    def process(self, challenge: bytes | None = None) -> bytes | None:
        """The answer to a message of the server; AuthenticationError, which ends the session.

        A server without SASL answers with empty messages, to each of which the library would send the next one.
        """
        if self._has_begun and not challenge:
            sentence = "a server answers no SASL login: check that SASL is on there, or remove zookeeper.sasl"
            self._note(sentence)
            raise AuthenticationError(sentence)
        self._has_begun = True
        answer: bytes | None = super().process(challenge)
        if self.complete:
            self._note(None)
        return answer


mechanisms.mechanisms[DigestMechanism.name] = DigestMechanism


def rejected_login(servers: str, config: ZooKeeperSaslConfig | None) -> str:
    """The sentence for a login that a server rejects."""
    check = "" if config is None else f": check {_login_settings(config)}"
    return f"{servers} rejected the user or the password{check}"


def unfinished_login(servers: str, config: ZooKeeperSaslConfig) -> str:
    """The sentence for a session that ended in its login: some servers reject one without another sign."""
    return f"{servers} did not finish the SASL login: check {_login_settings(config)}, and that SASL is on there"


def _login_settings(config: ZooKeeperSaslConfig) -> str:
    if config.jaas_file is not None:
        return f"the login of section {config.jaas_section} in {config.jaas_file} (zookeeper.sasl.jaas_file)"
    if config.mechanism is LoginMechanism.GSSAPI:
        return "the ticket or keytab (klist, zookeeper.sasl.keytab)"
    return "the user and the password (zookeeper.sasl.username and zookeeper.sasl.password)"


def tls_contexts(config: ZooKeeperTlsConfig, environment: Mapping[str, str]) -> Callable[[], ssl.SSLContext]:
    """A function that returns the context for the next connection; ConfigurationError. Its files may change."""
    from bkctl.runtime.security.tls_contexts import client_contexts  # noqa: PLC0415  slow to import, rarely needed

    # One PEM file may have both key and certificate.
    files = msgspec.structs.replace(config, key_file=config.key_file or config.certificate_file)
    return client_contexts(files, environment).current


class NotingSocket(ssl.SSLSocket):
    """With TLS 1.3 a server rejects the client's certificate only after the handshake: in answer to the first read."""

    note: Callable[[ssl.SSLError], None] | None = None

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """Read, and note an alert."""
        try:
            return super().recv(buflen, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            if self.note is not None:
                self.note(error)
            raise


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
