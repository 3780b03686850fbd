"""The cookie doctor on real directories: the cause, the command, and that the command mends it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest

from bkctl.runtime.errors import CookieError
from tests.commands.cookie.conftest import ID, BookieHost, answer


def instance_replaced(host: BookieHost) -> None:
    async def replace(store: object) -> None:
        await store.set(f"{host.root}/INSTANCEID", b"another", -1)  # type: ignore[attr-defined]

    host.operator.on_store(replace)


def formatted(host: BookieHost) -> None:
    host.plant(None)
    instance_replaced(host)


def moved(host: BookieHost) -> None:
    (host.directory / "l2").rename(host.directory / "moved")
    host.name_directories("j", "l1 moved")


def linked(host: BookieHost) -> None:
    (host.directory / "link").symlink_to(host.directory / "l2")
    host.name_directories("j", "l1 link")


def trailing_slash(host: BookieHost) -> None:
    host.ledgers = (host.ledgers[0], host.ledgers[1] + "/")


def emptied(host: BookieHost, name: str = "l2") -> None:
    shutil.rmtree(host.directory / name)
    (host.directory / name).mkdir()


def emptied_but_for_version(host: BookieHost, *names: str) -> None:
    """As of an operator who puts the VERSION file back on an emptied disk."""
    for name in names:
        data = host.version(name).read_bytes()
        emptied(host, name)
        host.version(name).parent.mkdir()
        host.version(name).write_bytes(data)


def all_emptied_and_cookie_deleted(host: BookieHost) -> None:
    for name in ("j", "l1", "l2"):
        emptied(host, name)
    host.plant(None)


def other_directories(host: BookieHost) -> None:
    host.name_directories("k", "m1 m2")


def cookies_swapped_too(host: BookieHost) -> None:
    host.name_directories("j", "l2 l1")
    data = host.cookie("generate").stdout.encode()
    host.plant(data)
    for name in ("j", "l1", "l2"):
        host.version(name).write_bytes(data)


def swap_mounts(host: BookieHost, *new_names: str) -> None:
    (host.directory / "l1").rename(host.directory / "aside")
    (host.directory / "l2").rename(host.directory / (new_names or ("l1", "l2"))[0])
    (host.directory / "aside").rename(host.directory / (new_names or ("l1", "l2"))[1])


def renamed_and_crossed(host: BookieHost) -> None:
    swap_mounts(host, "n1", "n2")
    host.name_directories("j", "n1 n2")


class Case(NamedTuple):
    """What happens to a bookie that stores ledgers 4 and 5, which name it."""

    harm: Callable[[BookieHost], object]
    cause: str
    command: str
    has_remedy: bool = False


CASES = {
    "moved directory": Case(moved, "moved directory", f"cookie update {ID} --from-config", True),
    "symlink": Case(linked, "moved directory", f"cookie update {ID} --from-config", True),
    "damaged VERSION": Case(
        lambda host: host.version("l1").write_bytes(b"5\nbook"),
        "damaged VERSION file",
        f"cookie update {ID} --from-config",
        True,
    ),
    "lost VERSION": Case(
        lambda host: host.version("l1").unlink(), "missing VERSION file", f"cookie update {ID} --from-config", True
    ),
    "damaged cookie": Case(
        lambda host: host.plant(b"junk"), "damaged stored cookie", f"cookie update {ID} --from-config", True
    ),
    "lost cookie": Case(
        lambda host: host.plant(None), "missing stored cookie", f"cookie create {ID} --from-config", True
    ),
    "new address": Case(lambda host: setattr(host, "id", "bookie-2"), "new address", f"bookie start --bookie-id {ID}"),
    "empty directory": Case(emptied, "empty directory", "help lost-disk"),
    "emptied journal": Case(lambda host: emptied(host, "j"), "empty directory", "help lost-disk"),
    "emptied but for VERSION": Case(
        lambda host: emptied_but_for_version(host, "l2"), "empty directory", "help lost-disk"
    ),
    "emptied journal but for VERSION": Case(
        lambda host: emptied_but_for_version(host, "j"), "empty directory", "help lost-disk"
    ),
    "all emptied but for VERSION": Case(
        lambda host: emptied_but_for_version(host, "j", "l1", "l2"), "empty directory", "help lost-disk"
    ),
    "emptied and forgotten": Case(all_emptied_and_cookie_deleted, "empty directory", f"decommission {ID}"),
    "missing disk": Case(
        lambda host: (host.directory / "l2").rename(host.directory / "elsewhere"), "missing disk", "cookie verify"
    ),
    "swapped": Case(
        lambda host: host.name_directories("j", "l2 l1"), "number or order of directories changed", "bookie start"
    ),
    "swapped, and cookies with them": Case(cookies_swapped_too, "swapped volumes", "cookie verify"),
    "swapped mounts": Case(swap_mounts, "swapped volumes", "cookie verify"),
    "renamed and crossed": Case(renamed_and_crossed, "swapped volumes", "cookie verify"),
    "a ledger directory as journal": Case(
        lambda host: host.name_directories("l1", "l1 l2"), "number or order of directories changed", "bookie start"
    ),
    "one more": Case(
        lambda host: host.name_directories("j", "l1 l2 l3"), "number or order of directories changed", "bookie start"
    ),
    "two bookies": Case(other_directories, "two bookies with one id", "bookie start --bookie-id"),
    "different instance": Case(instance_replaced, "different instance", "cluster instance-id"),
    "wrong cluster": Case(formatted, "wrong cluster", "cluster instance-id"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_cause_command_and_cure(host: BookieHost, case: Case) -> None:
    host.boot(4, 5)
    host.name_in_ledgers(4, 5)
    assert host.verify()["is_healthy"]
    case.harm(host)
    found = host.verify()
    assert found["cause"] == case.cause
    assert str(found["command"]).startswith(f"bkctl {case.command}")
    if case.command == "help lost-disk":
        assert host.run_printed(found["command"]).stdout.startswith("# A lost disk")
    with pytest.raises(CookieError, match="bkctl cookie verify") as refused:
        host.boot(4, 5)
    sentence = str(refused.value).partition(" (run bkctl cookie verify")[0]
    assert sentence.partition(":")[0] == str(found["sentence"]).partition(":")[0]
    if case.has_remedy:
        result = host.run_printed(found["command"], *answer(str(found["command"]).split()[2], ID))
        assert result.exit_code == 0, result.stderr
        assert host.verify()["is_healthy"]
        host.boot(4, 5)


def test_the_spelling_of_a_directory_is_no_finding(host: BookieHost) -> None:
    host.boot(4, 5)
    stored, version = host.stored(), host.version("l2").read_bytes()
    trailing_slash(host)
    assert host.verify()["is_healthy"]
    host.boot(4, 5)
    assert (host.stored(), host.version("l2").read_bytes()) == (stored, version), "the cookies stay as they were"


def test_an_address_that_the_start_refuses_is_a_finding(host: BookieHost) -> None:
    """Also for a bookie whose id is configured, so that the id does not follow from the address."""
    host.boot(4, 5)
    host.is_loopback_allowed = False
    found = host.verify()
    assert (found["is_healthy"], found["cause"]) == (False, "unusable address")
    assert "127.0.0.1 is a loopback address" in str(found["sentence"])
    assert str(found["command"]).startswith("bkctl bookie start --advertised-address ")
    started = host.operator.run("bookie", "start", *host.arguments, "--port", "0")
    assert str(found["sentence"]) in started.stderr


@pytest.mark.parametrize("is_loss_accepted", [False, True])
def test_an_emptied_index_directory(host: BookieHost, is_loss_accepted: bool) -> None:
    """The ledger directories hold all that it is made from: nothing need leave the cluster, or come from others."""
    host.name_directories("j", "l1 l2", "i1 i2")
    host.boot(4, 5)
    host.name_in_ledgers(4, 5)
    emptied(host, "i1")
    found = host.verify()
    assert found["cause"] == "empty directory"
    assert str(found["command"]).startswith("bkctl storage index rebuild")
    before = host.tree()
    with pytest.raises(CookieError, match="run `bkctl storage index rebuild`"):
        host.boot(4, 5, is_loss_accepted=is_loss_accepted)
    assert host.tree() == before
    result = host.run_printed(found["command"], "--yes")
    assert result.exit_code == 0, result.stderr
    assert host.verify()["is_healthy"]
    host.boot(4, 5)


def test_an_index_directory_that_is_not_there(host: BookieHost) -> None:
    host.name_directories("j", "l1 l2", "i1 i2")
    host.boot(4, 5)
    (host.directory / "i2").rename(host.directory / "elsewhere")
    sentence = str(host.verify()["sentence"])
    assert sentence.startswith(f"missing disk: {host.directory / 'i2'} does not exist")
    assert sentence.endswith(
        "Only if the index is lost permanently: create the directory, and run `bkctl storage index rebuild`"
    )


def test_a_cookie_of_no_instance_in_a_cluster_that_has_one(host: BookieHost) -> None:
    """Of layout 3, or of a cluster that was made without INSTANCEID: there is no old one to put back."""
    host.boot(4)
    host.plant(host.cookie("generate", "--instance-id", "").stdout.encode())
    found = host.verify()
    assert found["cause"] == "different instance"
    assert "the cluster had no INSTANCEID when the bookie joined" in str(found["sentence"])
    assert "restore the old INSTANCEID" not in str(found["sentence"])


def test_directories_in_another_order_are_not_more_directories(host: BookieHost) -> None:
    host.boot()
    host.name_directories("j", "l2 l1")
    assert host.verify()["cause"] == "number or order of directories changed"
    refused = host.cookie("expand", "--yes")
    assert (refused.exit_code, "more directories" in refused.stderr) == (3, False)


@pytest.mark.parametrize("case", ["swapped", "one more"])
def test_the_old_list_is_in_the_command(host: BookieHost, case: str) -> None:
    host.boot(4, 5)
    host.name_in_ledgers(4, 5)
    old = [word for path in host.ledgers for word in ("--ledger-dir", path)]
    CASES[case].harm(host)
    assert " ".join(old) in str(host.verify()["command"])


def test_volumes_that_are_mounted_back(host: BookieHost) -> None:
    host.boot(4, 5)
    swap_mounts(host)
    found = host.verify()
    assert "l1 was ledger 1 of 2" in str(found["sentence"])
    assert host.run_printed(found["command"]).exit_code == 10
    swap_mounts(host)
    assert host.run_printed(found["command"]).exit_code == 0
    host.boot(4, 5)


def test_index_directories_that_the_bookie_never_had(host: BookieHost) -> None:
    host.boot(4, 5)
    ledgers = host.ledgers
    host.name_directories("j", "l1 l2", "i1 i2")
    command = str(host.verify()["command"])
    assert command.startswith("bkctl bookie start ")
    assert "--index-dir" not in command
    assert " ".join(word for path in ledgers for word in ("--ledger-dir", path)) in command


def test_ledgers_that_name_the_id_on_disk(host: BookieHost) -> None:
    host.boot(4, 5)
    host.name_in_ledgers(4, 5)
    host.id = "bookie-2"
    assert host.verify()["ledgers_naming_it"] == 2


@pytest.mark.parametrize(("is_known", "command"), [(True, "cookie show bookie-9"), (False, "cookie verify")])
def test_a_directory_of_another_bookie(host: BookieHost, is_known: bool, command: str) -> None:
    host.boot(4)
    data = host.version("l1").read_bytes().replace(b"bookie-1", b"bookie-9")
    host.version("l1").write_bytes(data)
    if is_known:
        host.plant(data, "bookie-9")
    found = host.verify()
    assert found["cause"] == "directory of another bookie"
    assert str(found["command"]).startswith(f"bkctl {command}")


def test_an_emptied_disk_is_blessed_by_nothing_while_ledgers_name_the_bookie(host: BookieHost) -> None:
    host.boot(4, 5)
    host.name_in_ledgers(4, 5)
    emptied(host)
    before = host.tree()
    for verb in (["update", ID, "--from-config"], ["create", ID, "--from-config"], ["expand"], ["delete", ID]):
        arguments = verb[1:] if verb[0] == "delete" else [*verb[1:], *host.arguments]
        result = host.operator.run("cookie", verb[0], *arguments, *answer(verb[0], ID))
        assert result.exit_code in {3, 5}, f"{verb}: {result}"
    assert host.tree() == before
    host.drop_ledgers(4, 5)
    found = host.verify()
    assert str(found["command"]).startswith(f"bkctl cookie delete {ID}")
    assert host.run_printed(found["command"], "--confirm", ID).exit_code == 0
    for name in ("j", "l1", "l2"):
        emptied(host, name)
    assert host.verify()["is_new"]
    host.boot(6)


@pytest.mark.parametrize("harm", [lambda host: None, moved, lambda host: host.plant(b"junk")])
def test_a_disk_with_its_version_file_alone_is_blessed_by_nothing_while_ledgers_name_the_bookie(
    host: BookieHost, harm: Callable[[BookieHost], object]
) -> None:
    host.boot(4, 5)
    host.name_in_ledgers(4, 5)
    emptied_but_for_version(host, "l2")
    harm(host)
    assert host.verify()["cause"] == "empty directory"
    result = host.cookie("update", ID, "--from-config", "--confirm", ID)
    assert (result.exit_code, "is empty, but ledgers reference bookie" in result.stderr) == (3, True), result.stderr


@pytest.mark.parametrize("wiped", [(), ("l1", "l2"), ("j",)])
def test_directories_of_a_decommissioned_bookie(host: BookieHost, wiped: Sequence[str]) -> None:
    """Its sentence says to empty them, and so does its command, also if the lost disk is why it was decommissioned."""
    host.boot(4, 5)
    for name in wiped:
        emptied(host, name)
    host.plant(None)
    found = host.verify()
    assert found["cause"] == "missing stored cookie"
    assert "to use the directories again, empty them" in str(found["sentence"])
    assert str(found["command"]).startswith("bkctl bookie format ")
    result = host.run_printed(found["command"], "--confirm", ID)
    assert result.exit_code == 0, result.stderr
    assert host.verify()["is_new"]
    host.boot(6)


def test_empty_directories_of_a_bookie_that_no_ledger_names(host: BookieHost) -> None:
    """A start that was cut off behind the stamp; and a bookie named by ledgers that never got an entry of them."""
    host.boot()
    emptied_but_for_version(host, "j", "l1", "l2")
    assert host.verify()["is_healthy"]
    host.name_directories("j", "l1 l2")
    host.boot()
    host.name_in_ledgers(4, 5)
    assert host.verify()["is_healthy"]
    host.boot()


def test_no_directory_of_a_stopped_bookie_looks_emptied(host: BookieHost) -> None:
    host.name_directories("j1 j2", "l1 l2", "i1 i2")
    host.boot()
    host.name_in_ledgers(4, 6)
    found = host.verify()
    assert (found["is_healthy"], found["ledgers_naming_it"]) == (True, None), "and no ledger is read for that"
    host.boot(4, 6)
    assert host.verify()["is_healthy"]
    host.boot(4, 6)


def test_an_index_of_layout_4(host: BookieHost) -> None:
    host.name_directories("j", "l1 l2", "i1 i2")
    host.boot(4, 5)
    host.name_in_ledgers(4, 5)
    data = host.stored()
    assert data is not None
    old = b"4\n" + b"\n".join(line for line in data.split(b"\n")[1:] if not line.startswith(b"indexDirs"))
    host.plant(old)
    for name in ("j", "l1", "l2", "i1", "i2"):
        host.version(name).write_bytes(old)
    found = host.verify()
    assert found["cause"] == "cookie of layout 4 without index directories"
    assert host.run_printed(found["command"], "--confirm", ID).exit_code == 0
    assert host.stored() == data
    host.boot(4, 5)


def test_every_version_file_is_damaged(host: BookieHost) -> None:
    """As of a bookie with one directory for everything, even one that never noted its place."""
    host.name_directories("all", "all")
    host.boot(4)
    host.name_in_ledgers(4)
    (host.directory / "all" / "current" / "bkctl.place").unlink()
    host.version("all").write_bytes(b"")
    found = host.verify()
    assert found["cause"] == "damaged VERSION file"
    assert host.run_printed(found["command"], "--confirm", ID).exit_code == 0
    host.boot(4)


def test_new_healthy_and_running(host: BookieHost) -> None:
    assert host.verify()["is_new"]
    with host.running():
        found = host.verify()
        assert (found["is_healthy"], found["is_registered"], found["is_new"]) == (True, True, False)
        host.name_directories("k", "m1 m2")
        assert host.verify()["cause"] == "two bookies with one id"


def test_what_is_shown(host: BookieHost) -> None:
    host.boot(4)
    host.version("l1").write_bytes(host.version("l1").read_bytes().replace(b"bookie-1", b"bookie-9"))
    result = host.cookie("verify", "-o", "table")
    assert result.exit_code == 10
    assert "directory of another bookie" in result.stdout
    line = next(line for line in result.stdout.splitlines() if "bookie-9" in line and "bookieHost" in line)
    assert str(host.version("l1")) in line
    assert str(host.version("l2")) not in result.stdout.partition("Differences")[2], "what is equal is not shown"


def test_settings_from_a_java_file(host: BookieHost) -> None:
    host.boot(4)
    conf = host.directory / "state.conf"
    conf.write_text(
        f"bookieId={ID}\nadvertisedAddress=127.0.0.1\nallowLoopback=true\njournalDirectories={host.journals[0]}\n"
        f"ledgerDirectories={','.join(host.ledgers)}\n"
    )
    result = host.operator.run("cookie", "verify", "--conf", str(conf), "-o", "json")
    assert result.exit_code == 0, result.stderr
    (host.directory / "l2").rename(host.directory / "elsewhere")
    found = host.operator.run("cookie", "verify", "--conf", str(conf), "-o", "json").json()
    assert str(found["command"]) == f"bkctl -c {conf} cookie verify"


def test_ledger_directories_that_share_an_index_directory(host: BookieHost) -> None:
    """As Java's InterleavedLedgerStorage accepts them."""
    host.name_directories("j", "l1 l2 l3 l4", "i")
    body = host.verify()
    assert (body["is_healthy"], body["is_new"]) == (True, True)
