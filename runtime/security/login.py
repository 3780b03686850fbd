"""Logins of both sides, from their settings. Source: wire section 12.2."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Final

from bkctl.runtime.errors import ConfigurationError
from bkctl.runtime.optional_packages import has_package
from bkctl.runtime.security.client_login import NO_GSSAPI, PasswordLogin, read_client_login
from bkctl.runtime.security.digest_md5 import DigestMd5Bookie, DigestMd5Client
from bkctl.runtime.security.exchange import BookieExchange, ClientExchange
from bkctl.runtime.security.followed_files import FollowedFiles
from bkctl.runtime.security.jaas import JaasSection, read_jaas_section
from bkctl.runtime.security_config import BookieLoginConfig, ClientLoginConfig

_CLIENT_TABLE: Final = "bookie_client.sasl"
_USER_OPTION: Final = "user_"
_NONCE_BYTES: Final = 24


def client_logins(config: ClientLoginConfig, environment: Mapping[str, str]) -> Callable[[str], ClientExchange]:
    """A function that begins a login at the bookie on a host; ConfigurationError. The login follows its files."""
    login = FollowedFiles(
        lambda: read_client_login(config, _CLIENT_TABLE, environment),
        [config.password, config.jaas_file],
        config.variables_note,
    )

    def begin(host: str) -> ClientExchange:
        current = login.current()
        if isinstance(current, PasswordLogin):
            return DigestMd5Client(current.username, current.password, secrets.token_urlsafe(_NONCE_BYTES))
        client: ClientExchange = _kerberos(_CLIENT_TABLE).GssapiClient(config.service, host, current)
        return client

    return begin


def bookie_logins(config: BookieLoginConfig) -> Callable[[], BookieExchange]:
    """A function that begins a login of a client; ConfigurationError. Users follow the JAAS file, keys their keytab."""
    path = config.jaas_file
    if path is None:
        raise ConfigurationError("logins of clients need the JAAS file with the users: set jaas_file in bookie.sasl")
    try:
        allowed = re.compile(config.allowed_ids)
    except re.error as error:
        setting = config.allowed_ids_java_key or "allowed_ids"
        raise ConfigurationError(f"{setting} {config.allowed_ids!r} is not a regular expression: {error}") from error

    def is_allowed(name: str) -> bool:
        return allowed.fullmatch(name) is not None

    name = config.jaas_section
    section = read_jaas_section(path, name)
    if section.is_kerberos:
        kerberos = _kerberos(f"the section {name} of {path}")
        options = section.options
        keytab = kerberos.Keytab(options.get("keyTab"), options.get("principal"))
        credentials = FollowedFiles(keytab.credentials, [keytab.path])
        return lambda: kerberos.GssapiBookie(credentials.current(), config.service, is_allowed)
    users = FollowedFiles(lambda: _users(read_jaas_section(path, name), path, name), [path], config.variables_note)
    return lambda: DigestMd5Bookie(users.current(), is_allowed, secrets.token_urlsafe(_NONCE_BYTES))


def _kerberos(user: str) -> ModuleType:
    """The module for GSSAPI, whose package a cluster without Kerberos does not need; ConfigurationError."""
    if not has_package("gssapi"):
        raise ConfigurationError(f"{user} {NO_GSSAPI}")
    from bkctl.runtime.security import kerberos  # noqa: PLC0415

    return kerberos


def _users(section: JaasSection, path: str, name: str) -> dict[str, str]:
    users = {
        option.removeprefix(_USER_OPTION): password
        for option, password in section.options.items()
        if option.startswith(_USER_OPTION)
    }
    if not users:
        raise ConfigurationError(f'section {name} of {path} has no user: add user_NAME="PASSWORD"')
    return users
