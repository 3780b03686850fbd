"""What a client logs in with, from settings or from a JAAS file. Source: wire section 12.2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from bkctl.runtime.errors import ConfigurationError
from bkctl.runtime.optional_packages import has_package
from bkctl.runtime.security.jaas import JaasSection, read_jaas_section
from bkctl.runtime.security.secrets import read_secret
from bkctl.runtime.security_config import ClientLogin, LoginMechanism

_OWN: Final = ("username", "password", "principal", "keytab")
"""Settings for which a JAAS file has options of its own."""


class PasswordLogin(NamedTuple):
    """A user of DIGEST-MD5."""

    username: str
    password: str

    def __repr__(self) -> str:
        return f"PasswordLogin({self.username!r})"


class KerberosLogin(NamedTuple):
    """``principal`` None: that of the ticket or of the first key. ``keytab`` None: a ticket in ``cache``.

    ``cache`` None: the one that the Kerberos library finds (KRB5CCNAME).
    """

    principal: str | None
    keytab: str | None = None
    cache: str | None = None


def read_client_login(config: ClientLogin, table: str, environment: Mapping[str, str]) -> PasswordLogin | KerberosLogin:
    """The login as files and variables have it now; ConfigurationError. ``table``: of the settings, for errors."""
    login = _configured(config, table, environment) if config.jaas_file is None else _of_jaas(config, table)
    if isinstance(login, KerberosLogin) and not has_package("gssapi"):
        raise ConfigurationError(f"the login of {table} {NO_GSSAPI}")
    return login


NO_GSSAPI: Final = "needs the package gssapi, which is not installed: pip install 'bkctl[kerberos]'"


def _configured(config: ClientLogin, table: str, environment: Mapping[str, str]) -> PasswordLogin | KerberosLogin:
    if config.mechanism is LoginMechanism.GSSAPI:
        _refuse_others(config, ("username", "password"), f"{table}.{{}} has no effect with GSSAPI: remove it")
        return KerberosLogin(config.principal, config.keytab)
    if config.username is None or config.password is None:
        raise ConfigurationError(
            f"a login with DIGEST-MD5 needs {table}.username and {table}.password, or both in a JAAS file "
            f"({table}.jaas_file)"
        )
    _refuse_others(config, ("principal", "keytab"), f"{table}.{{}} has no effect with DIGEST-MD5: remove it")
    return PasswordLogin(config.username, read_secret(config.password, f"{table}.password", environment))


def _of_jaas(config: ClientLogin, table: str) -> PasswordLogin | KerberosLogin:
    path, name = config.jaas_file or "", config.jaas_section
    _refuse_others(config, _OWN, f"{table}.{{}} has no effect with {table}.jaas_file: remove one of them")
    section = read_jaas_section(path, name)
    if section.is_kerberos:
        return _of_kerberos_section(section, path, name)
    if config.mechanism is LoginMechanism.GSSAPI:
        raise ConfigurationError(f"{table}.mechanism is GSSAPI, but section {name} of {path} has no Krb5LoginModule")
    username, password = section.options.get("username"), section.options.get("password")
    if not username or not password:
        raise ConfigurationError(f'section {name} of {path} has no login: add username="NAME" password="PASSWORD"')
    return PasswordLogin(username, password)


def _of_kerberos_section(section: JaasSection, path: str, name: str) -> KerberosLogin:
    options = section.options
    if options.get("useKeyTab", "").lower() != "true":
        return KerberosLogin(options.get("principal"), cache=options.get("ticketCache"))
    if "keyTab" not in options:
        raise ConfigurationError(f"section {name} of {path} has useKeyTab, but no keyTab: add the keytab's path")
    return KerberosLogin(options.get("principal"), options["keyTab"])


def _refuse_others(config: ClientLogin, names: tuple[str, ...], sentence: str) -> None:
    for name in names:
        if getattr(config, name) is not None:
            raise ConfigurationError(sentence.format(name))
