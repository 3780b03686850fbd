"""Secrets of ZooKeeper sessions for executors, which have neither the files nor the variables of the driver.

Options of a data source appear in plans, in Spark's web page and in its event log. So a secret is no option: it is an
attribute of a class that Spark carries as pickled bytes, and a reader gives it to its session as a variable.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from bkctl.runtime.config import ZooKeeperConfig, ZooKeeperSaslConfig
from bkctl.runtime.security.client_login import PasswordLogin, read_client_login
from bkctl.runtime.security.secrets import read_secret

_VARIABLE = "BKCTL_SECRET_"


class Secrets(dict[str, str]):
    """Values by the names of variables. Its text does not show them."""

    def __repr__(self) -> str:
        return f"Secrets of {', '.join(self) or 'nothing'}"


def take_secrets(config: ZooKeeperConfig, environment: Mapping[str, str]) -> tuple[ZooKeeperConfig, Secrets]:
    """The settings with a variable in place of each secret, and the values of these variables; ConfigurationError."""
    secrets = Secrets()

    def keep(secret: str) -> str:
        name = f"{_VARIABLE}{len(secrets)}"
        secrets[name] = secret
        return f"env:{name}"

    def take(reference: str | None, purpose: str) -> str | None:
        return None if reference is None else keep(read_secret(reference, purpose, environment))

    sasl, tls = config.sasl, config.tls
    if sasl is not None:
        login = read_client_login(sasl, "zookeeper.sasl", environment)
        # Kerberos has its files on each host.
        if isinstance(login, PasswordLogin):
            name = keep(login.password)
            sasl = ZooKeeperSaslConfig(username=login.username, password=name, service=sasl.service)
    if tls is not None:
        tls = msgspec.structs.replace(
            tls,
            ca_password=take(tls.ca_password, "zookeeper.tls.ca_password"),
            key_password=take(tls.key_password, "zookeeper.tls.key_password"),
        )
    digest = take(config.digest, "the user and password for ZooKeeper")
    return msgspec.structs.replace(config, digest=digest, sasl=sasl, tls=tls), secrets
