"""TLS contexts of both sides of a connection to a bookie, which follow their files. Source: wire section 12.3."""

from __future__ import annotations

import datetime
import logging
import os
import secrets
import ssl
from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

from bkctl.runtime.errors import ConfigurationError
from bkctl.runtime.security.alerting_context import AlertingContext
from bkctl.runtime.security.followed_files import FollowedFiles
from bkctl.runtime.security.key_files import GivenFile, KeyPair, authorities_pem, key_pair
from bkctl.runtime.security.secrets import read_secret
from bkctl.runtime.security_config import TLS_VERSIONS, BookieTlsConfig, ClientTlsConfig, StoreType, TlsFiles
from bkctl.storage.adapters.given_files import read_given_file

logger = logging.getLogger(__name__)

_VERSIONS: Final = {name: ssl.TLSVersion[name.replace(".", "_")] for name in TLS_VERSIONS}


class _Built(NamedTuple):
    context: ssl.SSLContext
    own: x509.Certificate | None


class TlsContexts:
    """The TLS context of one set of files. A context is made again when one of the files has changed."""

    def __init__(self, build: Callable[[], _Built], files: TlsFiles) -> None:
        """ConfigurationError of the first build."""
        paths = (files.ca_file, files.ca_password, files.certificate_file, files.key_file, files.key_password)
        self._built = FollowedFiles(build, paths, files.variables_note)

    def current(self) -> ssl.SSLContext:
        """The context for the next connection; connections that exist keep theirs. Takes at most milliseconds."""
        return self._built.current().context

    def expires_at(self) -> float | None:
        """When this side's own certificate expires, in seconds since 1970; None without one."""
        own = self._built.current().own
        return None if own is None else own.not_valid_after_utc.timestamp()

    @property
    def is_expired(self) -> bool:
        """Whether this side's own certificate has expired."""
        own = self._built.current().own
        return own is not None and own.not_valid_after_utc < datetime.datetime.now(datetime.UTC)


def client_contexts(config: ClientTlsConfig, environment: Mapping[str, str]) -> TlsContexts:
    """Contexts for connections to bookies; ConfigurationError names file and fix."""
    return TlsContexts(lambda: _client_context(config, environment), config)


def unverified_contexts(config: ClientTlsConfig, environment: Mapping[str, str]) -> TlsContexts:
    """Contexts that accept every certificate, only to look at it; errors as ``client_contexts``."""

    def build() -> _Built:
        built = _client_context(config, environment)
        built.context.check_hostname = False
        built.context.verify_mode = ssl.CERT_NONE
        return built

    return TlsContexts(build, config)


def bookie_contexts(config: BookieTlsConfig, environment: Mapping[str, str]) -> TlsContexts:
    """Contexts for connections from clients; ConfigurationError names file and fix."""
    return TlsContexts(lambda: _bookie_context(config, environment), config)


def _client_context(config: ClientTlsConfig, environment: Mapping[str, str]) -> _Built:
    context = _limited(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), config)
    context.check_hostname = config.is_hostname_checked
    context.verify_mode = ssl.CERT_REQUIRED
    if not _load_authorities(context, config, environment):
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    return _Built(context, _load_own(context, config, environment))


def _bookie_context(config: BookieTlsConfig, environment: Mapping[str, str]) -> _Built:
    context = _limited(AlertingContext(ssl.PROTOCOL_TLS_SERVER), config)
    # A client may make a bookie compute without end by renegotiating (TLS 1.2).
    context.options |= ssl.OP_NO_RENEGOTIATION
    has_authorities = _load_authorities(context, config, environment)
    if (config.is_client_certificate_required or config.authorized_roles) and not has_authorities:
        raise ConfigurationError(
            f"certificates of clients cannot be verified without the CA that signs them: set {config.name_of('ca')}"
        )
    if config.is_client_certificate_required:
        context.verify_mode = ssl.CERT_REQUIRED
    elif config.authorized_roles:  # without a certificate there is no role, which is for the login to refuse
        context.verify_mode = ssl.CERT_OPTIONAL
    own = _load_own(context, config, environment)
    if own is None:
        names = f"{config.name_of('key')} and {config.name_of('certificate')}"
        raise ConfigurationError(f"a bookie cannot use TLS without a certificate: set {names}")
    return _Built(context, own)


def _limited(context: ssl.SSLContext, config: TlsFiles) -> ssl.SSLContext:
    """The context with the versions and ciphers that the settings allow."""
    versions = []
    for name in config.protocols or _VERSIONS:
        if name not in _VERSIONS:
            raise ConfigurationError(
                f"{name} is not a supported TLS version: protocols may have {', '.join(_VERSIONS)}"
            )
        versions.append(_VERSIONS[name])
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    # As in Java, every certificate of the CA file is trusted, also one that is no root.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if config.ciphers:
        _set_ciphers(context, config.ciphers, config.ciphers_java_key or "ciphers")
    return context


def _set_ciphers(context: ssl.SSLContext, names: Collection[str], setting: str) -> None:
    for name in names:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).set_ciphers(name)
        except ssl.SSLError as error:
            fix = "use OpenSSL's name (openssl ciphers -s -tls1_2)"
            if name.startswith("TLS_") and "_WITH_" not in name:
                fix = "those of TLS 1.3 are always enabled, remove it"
            raise ConfigurationError(f"{name} in {setting} is not a cipher suite of TLS 1.2: {fix}") from error
    context.set_ciphers(":".join(names))


def _load_authorities(context: ssl.SSLContext, config: TlsFiles, environment: Mapping[str, str]) -> bool:
    """Load the CA file, if there is one."""
    pem = _authorities_pem(config, environment)
    if pem is None:
        return False
    try:
        context.load_verify_locations(cadata=pem)
    except (ssl.SSLError, ValueError) as error:  # ValueError: not ASCII
        raise ConfigurationError(f"a certificate in {config.ca_file} is damaged") from error
    return True


def trusted_authorities(config: TlsFiles, environment: Mapping[str, str]) -> tuple[x509.Certificate, ...] | None:
    """The certificates in the CA file; None without one. ConfigurationError."""
    pem = _authorities_pem(config, environment)
    try:
        return None if pem is None else tuple(x509.load_pem_x509_certificates(pem.encode()))
    except ValueError as error:
        raise ConfigurationError(f"a certificate in {config.ca_file} is damaged") from error


def _authorities_pem(config: TlsFiles, environment: Mapping[str, str]) -> str | None:
    if config.ca_file is None:
        return None
    given = (config.ca_file, config.ca_type, config.ca_password)
    return authorities_pem(read_key_file("ca", *given, environment, config.ca_java_key))


def _load_own(context: ssl.SSLContext, config: TlsFiles, environment: Mapping[str, str]) -> x509.Certificate | None:
    """Load this side's key and certificate, if there are any. An expired one is loaded, with a warning."""
    pair = own_pair(config, environment)
    if pair is None:
        return None
    path = config.certificate_file or config.key_file
    try:
        _load_pair(context, pair)
    except ssl.SSLError as error:
        raise ConfigurationError(f"OpenSSL does not accept {path} and its key: {error.reason}") from error
    own = pair.chain[0]
    if own.not_valid_after_utc < datetime.datetime.now(datetime.UTC):
        logger.warning(
            "The certificate in %s expired at %s; others refuse it: replace it", path, own.not_valid_after_utc
        )
    return own


def own_pair(config: TlsFiles, environment: Mapping[str, str]) -> KeyPair | None:
    """This side's key and certificates; None without any. ConfigurationError."""
    if config.key_file is None:
        if config.certificate_file is not None:
            raise ConfigurationError(
                f"{config.name_of('certificate')} ({config.certificate_file}) has no effect without "
                f"{config.name_of('key')}"
            )
        return None
    given = (config.key_file, config.key_type, config.key_password)
    key_file = read_key_file("key", *given, environment, config.key_java_key)
    certificate_file = None
    if config.certificate_file is not None:
        given = (config.certificate_file, StoreType.PEM, None)
        certificate_file = read_key_file("certificate", *given, environment, config.certificate_java_key)
    of_certificate = "certificate_file" if config.key_java_key is None else config.name_of("certificate")
    return key_pair(key_file, certificate_file, of_certificate)


def _load_pair(context: ssl.SSLContext, pair: KeyPair) -> None:
    """Python's ``ssl`` loads keys only from paths. This file is in memory, and encrypted in case it is swapped out."""
    password = secrets.token_bytes(32).hex().encode()
    key = pair.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(password))
    content = b"".join([key, *(each.public_bytes(Encoding.PEM) for each in pair.chain)])
    with open(os.memfd_create("tls", os.MFD_CLOEXEC), "wb") as file:
        file.write(content)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}", password=password)


def read_key_file(
    setting: str,
    path: str,
    kind: StoreType,
    password: str | None,
    environment: Mapping[str, str],
    java_key: str | None = None,
) -> GivenFile:
    """A file of keys or certificates for ``key_files``; ``setting``: ca, key or certificate. ConfigurationError.

    ``java_key``: that of a Java file which gives the path.
    """
    try:
        content = read_given_file(path)
    except OSError as error:
        raise ConfigurationError(f"cannot read {path} ({java_key or f'{setting}_file'}): {error.strerror}") from error
    secret = None if password is None else read_secret(password, f"the password of {path}", environment)
    return GivenFile(setting, path, content, kind, secret, java_key)
