"""Secrets for executors, which have neither the files nor the variables of the driver.

Options of a data source appear in plans, in Spark's web page and in its event log. So a secret is no option: it is an
attribute of a class that Spark carries as pickled bytes, and a reader gives it to its sessions as a variable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec

from bkctl.runtime.config import ZooKeeperConfig
from bkctl.runtime.security.client_login import PasswordLogin, read_client_login
from bkctl.runtime.security.secrets import read_secret
from bkctl.runtime.security_config import BookieClientConfig, ClientLogin, ClientTlsConfig

_VARIABLE = "BKCTL_SECRET_"
_BOOKIE_VARIABLE = "BKCTL_BOOKIE_SECRET_"

LoginT = TypeVar("LoginT", bound=ClientLogin)
TlsT = TypeVar("TlsT", bound=ClientTlsConfig)


class Secrets(dict[str, str]):
    """Values by the names of variables. Its text does not show them."""

    def __repr__(self) -> str:
        return f"Secrets of {', '.join(self) or 'nothing'}"


def take_secrets(config: ZooKeeperConfig, environment: Mapping[str, str]) -> tuple[ZooKeeperConfig, Secrets]:
    """The settings with a variable in place of each secret, and the values of these variables; ConfigurationError."""
    secrets = Secrets()
    keep = _keeper(secrets, _VARIABLE)
    sasl = None if config.sasl is None else _login(config.sasl, "zookeeper.sasl", keep, environment)
    tls = None if config.tls is None else _tls(config.tls, "zookeeper.tls", keep, environment)
    digest = config.digest
    if digest is not None:
        digest = keep(read_secret(digest, "the user and password for ZooKeeper", environment))
    return msgspec.structs.replace(config, digest=digest, sasl=sasl, tls=tls), secrets


def take_bookie_secrets(
    config: BookieClientConfig, environment: Mapping[str, str]
) -> tuple[BookieClientConfig, Secrets]:
    """The same of connections to bookies; the variables have other names."""
    secrets = Secrets()
    keep = _keeper(secrets, _BOOKIE_VARIABLE)
    sasl = None if config.sasl is None else _login(config.sasl, "bookie_client.sasl", keep, environment)
    tls = None if config.tls is None else _tls(config.tls, "bookie_client.tls", keep, environment)
    return msgspec.structs.replace(config, tls=tls, sasl=sasl), secrets


def _keeper(secrets: Secrets, prefix: str) -> Callable[[str], str]:
    def keep(secret: str) -> str:
        name = f"{prefix}{len(secrets)}"
        secrets[name] = secret
        return f"env:{name}"

    return keep


def _login(sasl: LoginT, table: str, keep: Callable[[str], str], environment: Mapping[str, str]) -> LoginT:
    login = read_client_login(sasl, table, environment)
    if not isinstance(login, PasswordLogin):
        return sasl  # Kerberos has its files on each host
    name = keep(login.password)
    return msgspec.structs.replace(sasl, username=login.username, password=name, jaas_file=None)


def _tls(tls: TlsT, table: str, keep: Callable[[str], str], environment: Mapping[str, str]) -> TlsT:
    def take(name: str) -> str | None:
        reference = getattr(tls, name)
        return None if reference is None else keep(read_secret(reference, f"{table}.{name}", environment))

    return msgspec.structs.replace(tls, ca_password=take("ca_password"), key_password=take("key_password"))
