"""``bkctl cookie migrate``, killed at every step, and carried on."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from bkctl.runtime.errors import CookieError
from tests.commands.cookie.conftest import ID, BookieHost
from tests.operation_locks import end_locks
from tests.processes import bkctl_command, bkctl_environment

NEW_ID = "10.0.0.7:3181"
needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")


def migrate(host: BookieHost, *more: str, old: str = ID, new: str = NEW_ID) -> list[str]:
    return ["cookie", "migrate", "--from", old, "--to", new, *host.arguments, *more]


def test_a_bookie_gets_another_id(host: BookieHost) -> None:
    host.boot()
    old = host.stored()
    assert old is not None
    result = host.operator.succeed(*migrate(host, "--confirm", ID))
    assert result.json()["to"] == NEW_ID
    assert host.stored() is None
    new = old.replace(ID.encode(), NEW_ID.encode())
    assert host.stored(NEW_ID) == new
    assert [host.version(name).read_bytes() for name in ("j", "l1", "l2")] == [new] * 3
    assert not list(host.directory.rglob("bkctl.migration"))
    again = host.operator.succeed(*migrate(host))
    assert "nothing to do" in again.stderr
    assert again.json() == result.json() | {"folders": 0}
    plan = host.operator.succeed(*migrate(host, "--dry-run")).json()
    assert (plan["kind"], plan["items"]) == ("Plan", [])
    host.id = NEW_ID
    assert host.verify()["is_healthy"]
    host.boot(4)
    host.id = ID
    assert host.verify()["cause"] == "new address"


def test_ledgers_must_follow(host: BookieHost) -> None:
    host.boot(4)
    host.name_in_ledgers(4)
    refused = host.operator.run(*migrate(host, "--confirm", ID))
    assert refused.exit_code == 3
    assert "1 ledger references bookie bookie-1 (4)" in refused.stderr
    done = host.operator.succeed(*migrate(host, "--ledgers-follow", "--confirm", ID))
    assert f"bkctl ledger rewrite-bookie --from {ID} --to {NEW_ID}" in done.stderr
    host.id = NEW_ID
    host.boot(4)


def test_half_way_through_a_change_the_doctor_sends_nobody_back(host: BookieHost) -> None:
    """Ledgers name the old id still: no directories are given an id that ledgers name, so the new one is kept."""
    host.boot(4)
    host.name_in_ledgers(4)
    host.operator.succeed(*migrate(host, "--ledgers-follow", "--confirm", ID))
    found = host.verify()
    assert (found["cause"], found["ledgers_naming_it"]) == ("new address", 0)
    assert str(found["command"]).startswith(f"bkctl bookie start --bookie-id {NEW_ID} ")


def test_an_emptied_disk_does_not_go_with_the_id(host: BookieHost) -> None:
    """Under the new id, which no ledger names yet, the start could not tell it from the disk of a new bookie."""
    host.boot(4)
    host.name_in_ledgers(4)
    for path in host.version("l2").parent.iterdir():
        if path.name != "VERSION":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    refused = host.operator.run(*migrate(host, "--ledgers-follow", "--confirm", ID))
    assert (refused.exit_code, "l2 is empty, but ledgers reference" in refused.stderr) == (3, True), refused.stderr
    host.drop_ledgers(4)
    host.operator.succeed(*migrate(host, "--confirm", ID))


def test_an_id_that_is_taken(host: BookieHost) -> None:
    host.boot()
    host.name_in_ledgers(4, bookie_id=NEW_ID)
    before = host.tree()
    refused = host.operator.run(*migrate(host, "--ledgers-follow", "--confirm", ID))
    assert refused.exit_code == 3
    assert "they belong to another bookie" in refused.stderr
    host.drop_ledgers(4)
    stored = host.stored()
    assert stored is not None
    host.plant(stored.replace(ID.encode(), NEW_ID.encode()), NEW_ID)
    refused = host.operator.run(*migrate(host, "--confirm", ID))
    assert refused.exit_code == 3
    assert "has a cookie already" in refused.stderr
    host.plant(None, NEW_ID)
    host.name_directories("j", "l2 l1")
    assert host.operator.run(*migrate(host, "--confirm", ID)).exit_code == 3
    host.name_directories("j", "l1 l2")
    assert host.operator.run(*migrate(host, old="nobody"), "--confirm", "nobody").exit_code == 3
    assert {name: data for name, data in host.tree().items() if name.startswith(("j/", "l"))} == {
        name: data for name, data in before.items() if name.startswith(("j/", "l"))
    }


def test_swapped_volumes_are_no_migration(host: BookieHost) -> None:
    """Two bookies with the same paths on two machines, and the disks of one mounted at the other."""
    host.boot(4)
    stored = host.stored()
    assert stored is not None
    host.plant(stored.replace(ID.encode(), b"bookie-2"), "bookie-2")
    host.id = "bookie-2"
    assert host.verify()["cause"] == "directory of another bookie"
    refused = host.operator.run(*migrate(host, "--confirm", ID, new="bookie-2"))
    assert refused.exit_code == 3


@needs_strace
@pytest.mark.strace
@pytest.mark.parametrize(
    "call",
    [
        ("rename", 3),
        *(pytest.param(("rename", number), marks=pytest.mark.battery) for number in (1, 2, 4, 5, 6)),
        *(pytest.param(("unlink", number), marks=pytest.mark.battery) for number in (1, 2, 3)),
    ],
)
def test_killed_at_every_step(host: BookieHost, call: tuple[str, int]) -> None:
    host.boot(4)
    host.name_in_ledgers(4)
    name, number = call
    tracing = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={name}"]
    injection = ["-e", f"inject={name}:signal=KILL:when={number}"]
    words = migrate(host, "--ledgers-follow", "--confirm", ID)
    killed = subprocess.run(
        [*tracing, *injection, *bkctl_command(*words)],
        env=bkctl_environment(**host.operator.environment, PYTHONDONTWRITEBYTECODE="1"),
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert killed.returncode != 0
    is_over = not list(host.directory.rglob("bkctl.migration"))
    for bookie_id in (ID, NEW_ID):
        host.id = bookie_id
        found = host.verify()
        if not is_over:
            assert found["cause"] == "interrupted migration"
            assert str(found["command"]).startswith(f"bkctl cookie migrate --from {ID} --to {NEW_ID}")
            with pytest.raises(CookieError, match="interrupted migration"):
                host.boot(4)
    host.id = ID
    host.operator.on_store(lambda store: end_locks(store, host.root))
    again = host.operator.run(*words)
    assert again.exit_code == 0, again.stderr
    assert host.stored(ID) is None
    host.id = NEW_ID
    assert host.verify()["is_healthy"]
    host.boot(4)
