"""Logins of both sides, from their settings. Source: wire section 12.2."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Final

from bkctl.runtime.errors import ConfigurationError
from bkctl.runtime.optional_packages import has_package
from bkctl.runtime.security.digest_md5 import DigestMd5Bookie, DigestMd5Client
from bkctl.runtime.security.exchange import BookieExchange, ClientExchange
from bkctl.runtime.security.followed_files import FollowedFiles
from bkctl.runtime.security.jaas import JaasSection, parse_jaas
from bkctl.runtime.security.secrets import read_secret
from bkctl.runtime.security_config import BookieLoginConfig, ClientLoginConfig, LoginMechanism
from bkctl.storage.adapters.given_files import read_given_file

_KERBEROS_MODULE: Final = ".Krb5LoginModule"
_USER_OPTION: Final = "user_"
_NONCE_BYTES: Final = 24


def client_logins(config: ClientLoginConfig, environment: Mapping[str, str]) -> Callable[[str], ClientExchange]:
    """A function that begins a login at the bookie on a host; ConfigurationError. The password follows its file."""
    if config.mechanism is LoginMechanism.GSSAPI:
        if config.username is not None or config.password is not None:
            raise ConfigurationError(
                "bookie_client.sasl.username and bookie_client.sasl.password have no effect with GSSAPI, which uses "
                "the ticket of kinit: remove them"
            )
        gssapi_client = _kerberos("a login at bookies with GSSAPI").GssapiClient
        return lambda host: gssapi_client(config.service, host, config.principal)
    username, reference = config.username, config.password
    if username is None or reference is None:
        raise ConfigurationError(
            "a login with DIGEST-MD5 needs bookie_client.sasl.username and bookie_client.sasl.password"
        )
    if config.principal is not None:
        raise ConfigurationError("bookie_client.sasl.principal has no effect with DIGEST-MD5: remove it")
    password = FollowedFiles(
        lambda: read_secret(reference, f"the password of {username} at the bookies", environment), [reference]
    )
    return lambda _: DigestMd5Client(username, password.current(), secrets.token_urlsafe(_NONCE_BYTES))


def bookie_logins(config: BookieLoginConfig) -> Callable[[], BookieExchange]:
    """A function that begins a login of a client; ConfigurationError. Users follow the JAAS file, keys their keytab."""
    path = config.jaas_file
    if path is None:
        raise ConfigurationError("logins of clients need the JAAS file with the users: set jaas_file in bookie.sasl")
    try:
        allowed = re.compile(config.allowed_ids)
    except re.error as error:
        raise ConfigurationError(f"allowed_ids {config.allowed_ids!r} is not a regular expression: {error}") from error

    def is_allowed(name: str) -> bool:
        return allowed.fullmatch(name) is not None

    section = _read_section(path, config.jaas_section)
    if section.module.endswith(_KERBEROS_MODULE):
        kerberos = _kerberos(f"the section {config.jaas_section} of {path}")
        options = section.options
        keytab = kerberos.Keytab(options.get("keyTab"), options.get("principal"))
        credentials = FollowedFiles(keytab.credentials, [keytab.path])
        return lambda: kerberos.GssapiBookie(credentials.current(), config.service, is_allowed)
    users = FollowedFiles(lambda: _users(_read_section(path, config.jaas_section), path, config.jaas_section), [path])
    return lambda: DigestMd5Bookie(users.current(), is_allowed, secrets.token_urlsafe(_NONCE_BYTES))


def _kerberos(user: str) -> ModuleType:
    """The module for GSSAPI, whose package a cluster without Kerberos does not need; ConfigurationError."""
    if not has_package("gssapi"):
        raise ConfigurationError(
            f"{user} needs the package gssapi, which is not installed: pip install 'bkctl[kerberos]'"
        )
    from bkctl.runtime.security import kerberos  # noqa: PLC0415

    return kerberos


def _read_section(path: str, name: str) -> JaasSection:
    try:
        sections = parse_jaas(read_given_file(path).decode())
    except OSError as error:
        raise ConfigurationError(f"cannot read the JAAS file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"the JAAS file {path} is not UTF-8") from error
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error
    if name not in sections:
        raise ConfigurationError(f"{path} has no section {name}; it has {', '.join(sections) or 'none'}")
    return sections[name]


def _users(section: JaasSection, path: str, name: str) -> dict[str, str]:
    users = {
        option.removeprefix(_USER_OPTION): password
        for option, password in section.options.items()
        if option.startswith(_USER_OPTION)
    }
    if not users:
        raise ConfigurationError(f'section {name} of {path} has no user: add user_NAME="PASSWORD"')
    return users
