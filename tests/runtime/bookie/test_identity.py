from __future__ import annotations

import socket
from typing import Any

import msgspec
import pytest

from bkctl.runtime.bookie.identity import BookieIdentity, former_bookie_ids, resolve_identity
from bkctl.runtime.config import BookieConfig
from bkctl.runtime.errors import ConfigurationError
from bkctl.runtime.net.host import OsHost
from bkctl.storage.config import StorageConfig

HOST = OsHost()
BASE = BookieConfig(
    metadata_uri="zk://localhost/ledgers",
    storage=StorageConfig(journal_directories=("j",), ledger_directories=("l",)),
    is_loopback_allowed=True,
)
LOCALHOST = socket.gethostbyaddr("127.0.0.1")[0]


def config(**changes: Any) -> BookieConfig:
    return msgspec.structs.replace(BASE, **changes)


@pytest.mark.parametrize(
    ("changes", "bookie_id"),
    [
        ({"advertised_address": "127.0.0.1"}, "127.0.0.1:3181"),
        ({"advertised_address": "localhost"}, "localhost:3181"),
        ({"listening_interface": "lo"}, "127.0.0.1:3181"),
        ({"listening_interface": "lo", "is_host_name_id": True}, f"{LOCALHOST}:3181"),
        (
            {"listening_interface": "lo", "is_host_name_id": True, "is_host_name_short": True},
            f"{LOCALHOST.partition('.')[0]}:3181",
        ),
        ({"listening_interface": "lo", "is_host_name_short": True}, "127.0.0.1:3181"),
        ({"advertised_address": "127.0.0.1", "listening_interface": "lo", "is_host_name_id": True}, "127.0.0.1:3181"),
        ({"advertised_address": "127.0.0.1", "bookie_id": "Bk_One@x"}, "Bk_One@x"),
    ],
)
def test_id_by_settings(changes: dict[str, Any], bookie_id: str) -> None:
    identity = resolve_identity(config(**changes), HOST)
    assert identity.bookie_id(3181) == bookie_id
    assert identity.bind_host == "127.0.0.1"


def test_it_listens_on_the_loopback_address_that_it_registers() -> None:
    identity = resolve_identity(config(advertised_address="127.0.0.2"), HOST)
    assert identity == BookieIdentity("127.0.0.2", "127.0.0.2", None)


def test_a_configured_id_leaves_the_address_what_it_is() -> None:
    identity = resolve_identity(config(bookie_id="b", advertised_address="localhost"), HOST)
    assert identity == BookieIdentity("localhost", "127.0.0.1", "b")


@pytest.mark.parametrize("bookie_id", ["readonly", "ReadOnly", "a,b", "a/b", "a b", "é", ""])
def test_ids_that_java_does_not_take(bookie_id: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a bookie id"):
        resolve_identity(config(bookie_id=bookie_id, advertised_address="127.0.0.1"), HOST)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"advertised_address": "127.0.0.1", "is_loopback_allowed": False}, "is a loopback address"),
        ({"bookie_id": "b", "advertised_address": "127.0.0.1", "is_loopback_allowed": False}, "is a loopback address"),
        ({"advertised_address": "no-such-host.invalid"}, "cannot resolve"),
        ({"advertised_address": "a" * 64}, "cannot resolve"),
        ({"advertised_address": "a..b"}, "cannot resolve"),
        ({"listening_interface": "nosuch0"}, "nosuch0"),
        ({"listening_interface": "x" * 40}, "no such interface"),
    ],
)
def test_addresses_nobody_could_use(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        resolve_identity(config(**changes), HOST)


def test_ids_that_this_host_had_by_other_settings() -> None:
    """Step 2 of metadata section 7.3."""
    own = config(listening_interface="lo")
    assert set(former_bookie_ids(own, 3181, HOST)) >= {"127.0.0.1:3181", f"{LOCALHOST}:3181"}
    assert former_bookie_ids(msgspec.structs.replace(own, bookie_id="b"), 3181, HOST) == ()
    advertised = msgspec.structs.replace(own, advertised_address="10.0.0.1")
    assert "127.0.0.1:3181" in former_bookie_ids(advertised, 3181, HOST)
    assert "127.0.0.1:3181" not in former_bookie_ids(
        config(advertised_address="127.0.0.1", listening_interface="lo"), 3181, HOST
    )
    assert former_bookie_ids(config(listening_interface="nosuch0"), 3181, HOST) == ()
