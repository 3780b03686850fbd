"""``bkctl config contexts`` and ``bkctl config use-context``."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from bkctl.commands.contexts import with_context
from tests.bkctl.conftest import RunMain

FILE = """# our clusters
context = "prod"  # the default
timeout = "100ms"

[contexts.prod]
metadata_uri = "zk://127.0.0.1:1/ledgers"

[contexts."eu west"]
metadata_uri = "zk://127.0.0.1:2/ledgers"
read_only = true
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / ".config" / "bkctl" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text(FILE)
    path.chmod(0o640)
    return path


def items(stdout: str) -> list[tuple[str, bool]]:
    return [(row["name"], row["current"]) for row in json.loads(stdout)["items"]]


def test_contexts_are_listed_with_the_current_one(run_main: RunMain, file: Path) -> None:
    listed = run_main("config", "contexts", "-o", "table")
    assert listed.exit_code == 0
    lines = [line.split() for line in listed.stdout.splitlines()]
    assert lines[0] == ["CURRENT", "NAME", "CLUSTER", "READ-ONLY"]
    assert lines[-1] == ["*", "prod", "zk://127.0.0.1:1/ledgers", "no"]
    assert items(run_main("config", "contexts", "-o", "json").stdout) == [("eu west", False), ("prod", True)]
    other = run_main("config", "contexts", "-o", "json", BKCTL_CONTEXT="eu west")
    assert items(other.stdout) == [("eu west", True), ("prod", False)]
    assert f"BKCTL_CONTEXT is set, and has precedence over the context of {file}" in other.stderr
    by_uri = run_main("config", "contexts", "-o", "json", BKCTL_METADATA_URI="zk://h/l")
    assert items(by_uri.stdout) == [("eu west", False), ("prod", False)]
    assert run_main("config", "contexts", "-o", "name").stdout == "eu west\nprod\n"


def test_without_a_file_the_list_is_empty_and_says_how_to_add_one(run_main: RunMain) -> None:
    for words in (("contexts", "-o", "json"), ("contexts", "--config", "/dev/null", "-o", "json")):
        result = run_main("config", *words)
        assert (result.exit_code, items(result.stdout)) == (0, [])
        assert "a context is a table [contexts.NAME] with metadata_uri" in result.stderr
    missing = run_main("config", "use-context", "prod")
    assert missing.exit_code == 4
    assert "no context prod: there is no TOML file" in missing.stderr


def test_use_context_changes_one_line_and_commands_use_it(run_main: RunMain, file: Path) -> None:
    planned = run_main("config", "use-context", "eu west", "--dry-run")
    assert (planned.exit_code, file.read_text()) == (0, FILE)
    table = run_main("config", "use-context", "eu west", "--dry-run", "-o", "table").stdout
    assert table.startswith("will make context eu west the current one in ")
    assert "instance_id" not in table
    assert "plan_hash" not in table
    done = run_main("config", "use-context", "eu west", "-o", "json", "-y")
    assert done.exit_code == 0
    body = json.loads(done.stdout)
    assert (body["name"], body["changed"], body["previous"]) == ("eu west", True, "prod")
    assert "to undo: bkctl config use-context prod" in done.stderr
    assert file.read_text() == FILE.replace('"prod"  #', '"eu west"  #')
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o640
    assert "127.0.0.1:2" in run_main("bookie", "list").stderr
    again = run_main("config", "use-context", "eu west", "-o", "json")
    assert (again.exit_code, json.loads(again.stdout)["changed"]) == (0, False)
    # a context that is read-only does not keep its operator from choosing another one
    assert run_main("config", "use-context", "prod").exit_code == 0
    assert file.read_text() == FILE


def test_a_current_context_that_does_not_exist_is_repaired(run_main: RunMain, file: Path) -> None:
    file.write_text(FILE.replace('context = "prod"', 'context = "gone"'))
    assert run_main("bookie", "list").exit_code == 13
    assert items(run_main("config", "contexts", "-o", "json").stdout) == [("eu west", False), ("prod", False)]
    by_variable = run_main("config", "use-context", "prod", BKCTL_CONTEXT="gone")
    assert by_variable.exit_code == 0
    assert "BKCTL_CONTEXT is set, and has precedence: unset it to use context prod" in by_variable.stderr
    assert file.read_text() == FILE


def test_a_missing_context_is_one_sentence_with_the_others(run_main: RunMain, file: Path) -> None:
    result = run_main("config", "use-context", "prd")
    assert result.exit_code == 4
    assert result.stderr == f"error: no context prd in {file} (defined: eu west, prod); did you mean prod?\n"
    refused = run_main("config", "use-context", "prod", BKCTL_READ_ONLY="1")
    assert (refused.exit_code, file.read_text()) == (3, FILE)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", 'context = "b"\n'),
        ("[contexts.a]\ncontext = 1\n", 'context = "b"\n[contexts.a]\ncontext = 1\n'),
        ("color = 'never'\n  context='a'\r\nx = 1", "color = 'never'\ncontext = \"b\"\r\nx = 1"),
        ("contexts = 1\n#context = 'a'\n", "context = \"b\"\ncontexts = 1\n#context = 'a'\n"),
    ],
)
def test_only_the_line_of_the_context_changes(before: str, after: str) -> None:
    assert with_context(before, "b") == after


def test_a_file_whose_other_settings_would_change_is_left(run_main: RunMain, file: Path) -> None:
    odd = 'admin_token_hosts = """a,\ncontext = "b"\n"""\n' + FILE
    file.write_text(odd)
    result = run_main("config", "use-context", "eu west")
    assert (result.exit_code, file.read_text()) == (3, odd)
    assert f'{file} has an unusual form: write context = "eu west" yourself' in result.stderr
