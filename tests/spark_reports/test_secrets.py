"""Secrets leave the settings, and their text does not show them."""

from __future__ import annotations

import pickle
from pathlib import Path

import msgspec
import pytest

from bkctl.runtime.config import ZooKeeperConfig, ZooKeeperSaslConfig, ZooKeeperTlsConfig
from bkctl.runtime.errors import ConfigurationError
from bkctl.runtime.security_config import BookieClientConfig, ClientLoginConfig, ClientTlsConfig
from bkctl.spark_reports.secrets import take_bookie_secrets, take_secrets

SECRETS = ("digest-sesame", "sasl-sesame", "key-sesame", "store-sesame")


def test_every_secret_is_taken_out_of_the_settings(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text(f"{SECRETS[1]}\n")
    path.chmod(0o600)
    config = ZooKeeperConfig(
        digest="env:DIGEST",
        sasl=ZooKeeperSaslConfig(username="bkctl", password=f"file:{path}"),
        tls=ZooKeeperTlsConfig(key_password="env:KEY", ca_password="env:STORE"),
        session_timeout_ms=1234,
    )
    taken, secrets = take_secrets(config, {"DIGEST": f"bkctl:{SECRETS[0]}", "KEY": SECRETS[2], "STORE": SECRETS[3]})

    for text in (msgspec.json.encode(taken).decode(), repr(taken), repr(secrets), str(secrets)):
        assert not any(secret in text for secret in SECRETS)
    assert taken.session_timeout_ms == 1234
    assert taken.sasl is not None
    assert taken.tls is not None
    found = pickle.loads(pickle.dumps(secrets))
    references = (taken.digest, taken.sasl.password, taken.tls.key_password, taken.tls.ca_password)
    values = [found[(reference or "").removeprefix("env:")] for reference in references]
    assert values == [f"bkctl:{SECRETS[0]}", *SECRETS[1:]]


def test_a_login_of_a_jaas_file_is_taken_out_of_it(tmp_path: Path) -> None:
    path = tmp_path / "jaas.conf"
    path.write_text(f'Client {{ a.DigestLoginModule required username="bkctl" password="{SECRETS[1]}"; }};')
    taken, secrets = take_secrets(ZooKeeperConfig(sasl=ZooKeeperSaslConfig(jaas_file=str(path))), {})
    [(variable, secret)] = secrets.items()
    assert taken.sasl == ZooKeeperSaslConfig(username="bkctl", password=f"env:{variable}")
    assert secret == SECRETS[1]


def test_secrets_of_connections_to_bookies_have_names_of_their_own() -> None:
    zookeeper = ZooKeeperConfig(digest="env:DIGEST")
    config = BookieClientConfig(
        tls=ClientTlsConfig(key_password="env:KEY"), sasl=ClientLoginConfig(username="bkctl", password="env:LOGIN")
    )
    environment = {"DIGEST": "bkctl:a", "KEY": SECRETS[2], "LOGIN": SECRETS[1]}

    taken, secrets = take_bookie_secrets(config, environment)

    assert not any(secret in repr((taken, secrets)) for secret in SECRETS)
    assert taken.tls is not None
    assert taken.sasl is not None
    names = [(each or "").removeprefix("env:") for each in (taken.sasl.password, taken.tls.key_password)]
    assert [secrets[name] for name in names] == [SECRETS[1], SECRETS[2]]
    assert not take_secrets(zookeeper, environment)[1].keys() & secrets.keys()
    assert take_bookie_secrets(BookieClientConfig(), {}) == (BookieClientConfig(), {})


def test_a_secret_that_cannot_be_read_is_named_before_spark_starts() -> None:
    with pytest.raises(ConfigurationError, match="the user and password for ZooKeeper is empty in the environment"):
        take_secrets(ZooKeeperConfig(digest="env:MISSING"), {})


def test_settings_without_secrets_stay_as_they_are() -> None:
    assert take_secrets(ZooKeeperConfig(), {}) == (ZooKeeperConfig(), {})
