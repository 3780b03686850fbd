"""Directory lists that contradict the directories: no command changes anything, and the checks tell it as a problem."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from bkctl.app import build_app
from bkctl.commands.context import Effect
from bkctl.storage.filenames import LOCK, PLACE, VERSION
from bkctl.storage.index.ledger_index import LEDGERS_NOTED, NEEDS_INTEGRITY_CHECK
from tests.bkctl.test_main import leaves
from tests.commands.storage.conftest import Directories
from tests.processes import run_bkctl
from tests.storage.engines import checkpoint

COMMANDS = {
    "index rebuild": ("index", "rebuild", "--locations", "--yes"),
    "journal replay": ("journal", "replay", "--yes", "--from"),
    "limbo end": ("limbo", "end", "--yes"),
    "hand-back": ("hand-back", "--yes"),
    "adopt": ("adopt", "--yes"),
}


def first(paths: tuple[str, ...]) -> tuple[str, ...]:
    return paths[:1]


def swapped(paths: tuple[str, ...]) -> tuple[str, ...]:
    return paths[::-1]


LISTS: dict[str, dict[str, Callable[[tuple[str, ...]], tuple[str, ...]]]] = {
    "journals swapped": {"journal_directories": swapped},
    "ledgers swapped": {"ledger_directories": swapped},
    "indexes swapped": {"index_directories": swapped},
    "pairs swapped": {"ledger_directories": swapped, "index_directories": swapped},
    "one journal": {"journal_directories": first},
    "one ledger directory with its index": {"ledger_directories": first, "index_directories": first},
}


@pytest.fixture
def directories(tmp_path: Path) -> Directories:
    """Two of each kind; ledgers 1 to 3 in limbo, which may end."""
    directories = Directories(tmp_path, journals=2, ledgers=2, indexes=2)
    directories.fill()
    with directories.opened() as storage:
        for ledger_id in (1, 2, 3):
            storage.engine_of(ledger_id).set_limbo(ledger_id)
        storage.engines[0].rows.write_flags(NEEDS_INTEGRITY_CHECK | LEDGERS_NOTED)
        checkpoint(storage)
    directories.stamp()
    return directories


def contents(directories: Directories) -> dict[str, bytes]:
    """Every file of the bookie, but for locks, and the indexes: LevelDB writes its files again when it opens one."""
    return {
        str(path): path.read_bytes()
        for directory in directories.config.all_directories
        for path in sorted(Path(directory).rglob("*"))
        if path.is_file() and path.name != LOCK and "/ldb-" not in str(path)
    }


def test_no_command_changes_the_directories_in_read_only_mode_or_for_a_plan(directories: Directories) -> None:
    changing = {
        name.removeprefix("bkctl storage ")
        for name, command in leaves(build_app())
        if name.startswith("bkctl storage ") and command.callback.effects != (Effect.LOOKS,)
    }
    assert set(COMMANDS) == changing
    saved = directories.root / "plan.json"
    before = contents(directories)
    journal = min(Path(directories.config.journal_directories[0], "current").glob("*.txn"))
    for name, words in COMMANDS.items():
        given = [*words, *([str(journal)] if words[-1] == "--from" else [])]
        directories.succeed(*given, "--dry-run")
        directories.succeed(*given, "--plan-out", str(saved))
        assert saved.exists()
        refused = run_bkctl("storage", *given, *directories.arguments, BKCTL_READ_ONLY="1")
        assert (refused.exit_code, "BKCTL_READ_ONLY is set" in refused.stderr) == (3, True), name
        assert contents(directories) == before, name
    assert not (directories.root / "state").exists(), "no audit trail, no trash"


def listed(directories: Directories, lists: str) -> Directories:
    """The same directories by a list that is not theirs."""
    wrong = Directories(directories.root)
    changes = {name: change(getattr(directories.config, name)) for name, change in LISTS[lists].items()}
    wrong.config = msgspec.structs.replace(directories.config, **changes)
    return wrong


def tree(directories: Directories) -> dict[str, bytes]:
    """All files; of the locks, that they are there."""
    paths = [path for directory in directories.config.all_directories for path in Path(directory).rglob("*")]
    return {str(path): path.read_bytes() if path.is_file() and path.name != LOCK else b"" for path in paths}


def remove_everywhere(directories: Directories, name: str) -> None:
    for directory in directories.config.all_directories:
        (Path(directory) / "current" / name).unlink()


def words(directories: Directories, command: str) -> tuple[str, ...]:
    newest = max((directories.root / "j0" / "current").glob("*.txn"), key=lambda path: int(path.stem, 16))
    return (*COMMANDS[command], str(newest)) if command == "journal replay" else COMMANDS[command]


def require_refused(directories: Directories, lists: str, command: str, sentence: str) -> None:
    before = tree(directories)
    result = listed(directories, lists).run(*words(directories, command))
    assert (result.exit_code, "nothing was changed: " in result.stderr) == (3, True), result.stderr
    assert sentence in result.stderr
    assert "list all directories as before, in number and order" in result.stderr
    assert tree(directories) == before
    assert not (directories.root / "state").exists(), "it ends before the plan"


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_takes_a_list_that_the_directories_contradict(directories: Directories, command: str) -> None:
    remove_everywhere(directories, LOCK)
    require_refused(
        directories, "one ledger directory with its index", command, f"{VERSION}: it lists the directories "
    )


@pytest.mark.parametrize("lists", LISTS)
def test_the_cookies_and_the_places_each_alone_are_enough(directories: Directories, lists: str) -> None:
    """Cookies can be rewritten for another list; places are not there before the first start by bkctl."""
    places = {path: path.read_bytes() for path in directories.root.glob(f"*/current/{PLACE}")}
    remove_everywhere(directories, PLACE)
    require_refused(directories, lists, "index rebuild", f"{VERSION}: it lists the directories ")
    for path, place in places.items():
        path.write_bytes(place)
    remove_everywhere(directories, VERSION)
    require_refused(directories, lists, "index rebuild", f"{PLACE}: the directory was ")


@pytest.mark.parametrize("lists", ["journals swapped", "indexes swapped"])
def test_the_checks_tell_it_as_a_problem(directories: Directories, lists: str) -> None:
    wrong = listed(directories, lists)
    found = wrong.run("check", "-o", "json")
    assert found.exit_code == 10, found.stderr
    problems = [each for each in found.json()["items"] if each["check"] == "VERSION"]
    assert {each["severity"] for each in problems} == {"critical"}
    assert {each["path"] for each in problems} == {f"{each}/current/{VERSION}" for each in wrong.config.all_directories}
    assert {"list all directories as before" in each["fix"] for each in problems} == {True}


def test_a_directory_of_another_bookie(directories: Directories) -> None:
    """With the same names, as on two machines alike."""
    version = directories.root / "i1" / "current" / VERSION
    own = version.read_bytes()
    directories.stamp("bookie-2")
    version.write_bytes(own)
    result = directories.run(*COMMANDS["index rebuild"])
    sentence = f"{version}: it belongs to bookie bookie-1, but"
    assert (result.exit_code, sentence in result.stderr) == (3, True), result.stderr


def test_without_a_witness_a_log_in_the_wrong_directory_is_a_problem(directories: Directories) -> None:
    remove_everywhere(directories, VERSION)
    remove_everywhere(directories, PLACE)
    items = listed(directories, "ledgers swapped").run("check", "-o", "json").json()["items"]
    found = [each for each in items if "belong elsewhere" in each["finding"]]
    assert [(each["severity"], "in number and order" in each["fix"]) for each in found] == [("critical", True)] * 2


def test_a_directory_that_says_nothing_is_where_the_others_put_it(directories: Directories) -> None:
    """A new disk for an index: docs/runbooks/lost-index.md."""
    shutil.rmtree(directories.root / "i1")
    (directories.root / "i1").mkdir()
    require_refused(directories, "indexes swapped", "index rebuild", f"{VERSION}: it lists the directories ")
    directories.succeed("index", "rebuild", "--yes")
    assert (directories.root / "i1" / "current" / VERSION).exists()


def test_with_their_own_lists_all_of_them_go_on(directories: Directories) -> None:
    directories.succeed(*COMMANDS["limbo end"])
    directories.succeed(*words(directories, "journal replay"))
    directories.succeed("hand-back", "--dry-run")
    directories.succeed(*COMMANDS["index rebuild"])
    directories.succeed("check", "--deep")
