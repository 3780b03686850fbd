"""Secrets of ZooKeeper sessions for executors, which have neither the files nor the variables of the driver.

Options of a data source appear in plans, in Spark's web page and in its event log. So a secret is no option: it is an
attribute of a class that Spark carries as pickled bytes, and a reader gives it to its session as a variable.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from bkctl.runtime.config import ZooKeeperConfig
from bkctl.runtime.security.secrets import read_secret

_VARIABLE = "BKCTL_SECRET_"


class Secrets(dict[str, str]):
    """Values by the names of variables. Its text does not show them."""

    def __repr__(self) -> str:
        return f"Secrets of {', '.join(self) or 'nothing'}"


def take_secrets(config: ZooKeeperConfig, environment: Mapping[str, str]) -> tuple[ZooKeeperConfig, Secrets]:
    """The settings with a variable in place of each secret, and the values of these variables; ConfigurationError."""
    secrets = Secrets()

    def take(reference: str | None, purpose: str) -> str | None:
        if reference is None:
            return None
        name = f"{_VARIABLE}{len(secrets)}"
        secrets[name] = read_secret(reference, purpose, environment)
        return f"env:{name}"

    sasl, tls = config.sasl, config.tls
    if sasl is not None:
        sasl = msgspec.structs.replace(sasl, password=take(sasl.password, "the SASL password for ZooKeeper"))
    if tls is not None:
        tls = msgspec.structs.replace(tls, key_password=take(tls.key_password, "the password of the ZooKeeper key"))
    digest = take(config.digest, "the user and password for ZooKeeper")
    return msgspec.structs.replace(config, digest=digest, sasl=sasl, tls=tls), secrets
