"""bkctl storage journal scan, held against the manifest of Java's own files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands.storage.conftest import PREALLOCATION_BYTES, Directories
from tests.processes import BkctlResult, run_bkctl
from tests.storage.engines import KEY, checkpoint, entry
from tests.storage.golden import FILES, content

JOURNALS = ("db-4.18.0/crash/journal/1a1fb79cb57.txn.gz", "journal-v4-4.18.0/crash/journal/1a1fb8bffcc.txn.gz")


@pytest.mark.parametrize("name", JOURNALS)
def test_scan_of_a_journal_of_java(tmp_path: Path, name: str) -> None:
    path = tmp_path / "1f.txn"
    path.write_bytes(content(name))
    expected = [each for each in FILES[name]["records"] if each["type"] != "padding"]
    items = run_bkctl("storage", "journal", "scan", str(path), "-o", "json").json()["items"]
    assert [(item["offset"], item["ledger_id"]) for item in items] == [
        (each["offset"], str(each["ledger"])) for each in expected
    ]
    assert [item["type"] == "entry" for item in items] == [each["type"] == "entry" for each in expected]
    second = items[1]["offset"]
    rest = run_bkctl("storage", "journal", "scan", str(path), "--from", str(second), "-o", "json").json()["items"]
    assert rest == items[1:]


def test_all_files_of_all_directories(tmp_path: Path) -> None:
    directories = Directories(tmp_path, journals=2)
    directories.fill()
    result = directories.succeed("journal", "scan", "-o", "json")
    items = result.json()["items"]
    assert len({item["path"] for item in items}) == 2
    assert sorted({(item["ledger_id"], item["type"]) for item in items}) == [
        *[("1", "entry"), ("1", "ledger key"), ("2", "entry"), ("2", "ledger key")],
        *[("3", "entry"), ("3", "fence"), ("3", "ledger key"), ("4", "entry"), ("4", "ledger key")],
    ]
    assert KEY.hex() not in result.stdout
    assert KEY.decode() not in result.stdout
    entries = directories.succeed(
        "journal", "scan", "--entries-only", "--ledger", "3", "-o", "csv"
    ).stdout.splitlines()[1:]
    assert [line.split(",")[4] for line in entries] == ["0", "1", "2"]
    two = directories.succeed("journal", "scan", "--ledger", "3", "--ledger", "0x1", "-o", "json").json()["items"]
    assert {item["ledger_id"] for item in two} == {"1", "3"}
    conf = tmp_path / "bk.conf"
    journals, (ledgers,) = directories.config.journal_directories, directories.config.ledger_directories
    conf.write_text(
        f"metadataServiceUri=zk://h/ledgers\njournalDirectories={','.join(journals)}\nledgerDirectories={ledgers}\n"
    )
    one = ("--conf", str(conf), "--journal-dir", journals[1])  # the option replaces the list of the file
    odd = run_bkctl("storage", "journal", "scan", *one, "-o", "json").json()["items"]
    assert {item["ledger_id"] for item in odd} == {"1", "3"}


def test_what_was_torn_or_damaged_is_told(directories: Directories) -> None:
    directories.fill(is_flushed=False)
    current = Path(directories.config.journal_directories[0]) / "current"
    newest = max(current.glob("*.txn"), key=lambda path: int(path.stem, 16))
    whole = newest.read_bytes()
    assert len(whole) == PREALLOCATION_BYTES
    newest.write_bytes(whole[:540] + bytes(len(whole) - 540))
    result = directories.run("journal", "scan", newest.name, "-o", "json")
    items = result.json()["items"]
    assert items[-1]["type"] in {"dropped", "damaged"}
    newest.write_bytes(whole[:512] + b"\xff\xff\x00\x00" + whole[516:])
    result = directories.run("journal", "scan", "-o", "json")
    assert result.exit_code == 12
    assert result.json()["items"][-1]["type"] == "damaged"
    assert str(newest) in result.stderr
    assert "at offset 512" in result.stderr


def test_refusals(directories: Directories) -> None:
    directories.fill()
    for words, code, said in (
        (("scan", "7"), 4, "no journal 7.txn"),
        (("scan", "--from", "512"), 2, "--from needs a journal file"),
        (("scan", "foo.txn"), 2, "'foo.txn' is not a journal"),
    ):
        failed = directories.run("journal", *words)
        assert (failed.exit_code, said in failed.stderr) == (code, True), failed
    assert not (Path(directories.config.journal_directories[0]) / "current" / "7.txn").exists()


@pytest.mark.parametrize("name", JOURNALS)
def test_a_start_where_no_record_can_be_is_a_usage_error(tmp_path: Path, name: str) -> None:
    path = tmp_path / "1f.txn"
    path.write_bytes(content(name))
    size = path.stat().st_size
    offsets = [each["offset"] for each in FILES[name]["records"]]
    first, second = offsets[:2]

    def scan(start: int) -> BkctlResult:
        return run_bkctl("storage", "journal", "scan", str(path), f"--from={start}", "-o", "csv")

    for start, said in (
        (size + 1, f"--from {size + 1} is after the end of {path}, which has {size} bytes"),
        (10**30, f"which has {size} bytes"),
        (-1, "--from"),
        (1, f"--from 1 is in the header of {path}: its records begin at {first}"),
        (first - 1, f"its records begin at {first}"),
        (first + 1, f"no record of {path} begins at {first + 1}: one begins at {first}, and goes up to {second}"),
        (second - 1, f"one begins at {first}"),
    ):
        result = scan(start)
        assert (result.exit_code, result.stdout, said in result.stderr) == (2, "", True), (start, result)
    assert scan(size).exit_code == 0, "where a mark may stand"
    whole = scan(0).stdout
    assert scan(first).stdout == whole


def test_what_cannot_be_read_does_not_end_the_listing(directories: Directories) -> None:
    directories.fill()
    current = Path(directories.config.journal_directories[0]) / "current"
    records = directories.succeed("journal", "scan", "-o", "json").json()["items"]
    (current / "1.txn").mkdir()
    result = directories.run("journal", "scan", "-o", "json")
    first, *rest = result.json()["items"]
    assert (first["type"], first["note"], first["path"]) == ("unreadable", "Is a directory", str(current / "1.txn"))
    assert rest == records
    assert (result.exit_code, result.stderr) == (1, f"error: {current / '1.txn'}: Is a directory\n")
    (current / "1.txn").rmdir()
    (current / "bkctl.journals").write_bytes(b"junk")
    result = directories.run("journal", "scan", "-o", "json")
    assert (result.exit_code, "is not a catalog of journals" in result.stderr) == (12, True)
    assert result.json()["items"] == records


def test_a_start_behind_damage_is_believed(tmp_path: Path) -> None:
    path = tmp_path / "1f.txn"
    data = bytearray(content(JOURNALS[0]))
    path.write_bytes(data)
    items = run_bkctl("storage", "journal", "scan", str(path), "-o", "json").json()["items"]
    data[items[0]["offset"]] = 0xFF
    path.write_bytes(data)
    assert run_bkctl("storage", "journal", "scan", str(path)).exit_code == 12
    rest = run_bkctl("storage", "journal", "scan", str(path), "--from", str(items[1]["offset"]), "-o", "json")
    assert (rest.exit_code, rest.json()["items"]) == (0, items[1:])


def test_replay_brings_back_what_the_mark_leaves_out(tmp_path: Path) -> None:
    directories = Directories(tmp_path, journals=2, ledgers=2)
    directories.fill()
    first = {path.parent.parent.name: path for path in tmp_path.glob("j*/current/*.txn")}
    with directories.opened() as storage:
        storage.engine_of(2).delete_ledger(2)
        checkpoint(storage)
    marks = directories.succeed("mark", "-o", "json").json()["items"]
    options = ("--from", str(first["j0"]), "-o", "json")
    plan = directories.succeed("journal", "replay", *options, "--dry-run").json()
    assert plan["items"][0]["path"] == str(first["j0"])
    assert directories.run("journal", "replay", *options).exit_code == 3, "nobody is there to ask"
    for _ in range(2):
        result = directories.succeed("journal", "replay", *options, "--yes").json()
        assert (result["entries"], result["dropped_bytes"]) == (6, 0), (
            "ledgers 2 and 4; the other journal has nothing new"
        )
    with directories.opened() as storage:
        assert storage.engine_of(2).stored.list_entries(2) == [0, 1, 2]
        assert storage.engine_of(2).stored.read(2, 1) == entry(2, 1)
    later = directories.succeed("mark", "-o", "json").json()["items"]
    for before, after in zip(marks, later, strict=True):
        assert (int(before["journal_id"]), before["offset"]) <= (int(after["journal_id"]), after["offset"])


def test_replay_refuses(directories: Directories) -> None:
    directories.fill()
    with directories.opened():
        running = directories.run("journal", "replay", "--from", "1", "--yes")
    assert (running.exit_code, "stop the bookie first" in running.stderr) == (5, True)
    elsewhere = directories.root / "1.txn"
    elsewhere.touch()
    other = directories.run("journal", "replay", "--from", str(elsewhere), "--yes")
    assert (other.exit_code, "is not in any of the bookie's directories" in other.stderr) == (2, True)
    missing = directories.run("journal", "replay", "--from", "1", "--yes")
    assert (missing.exit_code, "no journal 1.txn" in missing.stderr) == (4, True)
