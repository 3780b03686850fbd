"""Results on a pipe: the same text as on a terminal, for less, grep and awk; other forms on request."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.bkctl.conftest import RunMain
from tests.bkctl.test_every_command import COMMANDS, is_taken, words_for
from tests.processes import bkctl_environment, run_bkctl, run_bkctl_on_terminal

WITHOUT_TABLES = {
    "autorecovery delay get",
    "autorecovery start",
    "bookie ready",
    "bookie show",
    "bookie start",
    "cluster backup",
    "cluster health-check status",
    "cluster info",
    "cluster instance-id",
    "completion",
    "cookie generate",
    "cookie show",
    "dev zookeeper",
    "ledger export",
}


def in_shell(commands: str) -> subprocess.CompletedProcess[str]:
    """Run what one would type, with the default form of results."""
    path = os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)))
    environment = bkctl_environment(PATH=path, BKCTL_OUTPUT="", NO_COLOR="", TERM="xterm-256color")
    command = ["bash", "-euo", "pipefail", "-c", commands]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_a_pipe_gets_the_text_of_the_terminal() -> None:
    piped = run_bkctl("config", "show", BKCTL_OUTPUT="")
    assert piped.stdout.split("\n")[0].split() == ["SETTING", "VALUE"]
    assert run_bkctl_on_terminal("config", "show", COLUMNS="1000")[1] == piped.stdout


def test_grep_awk_and_head_work() -> None:
    found = in_shell("bkctl config show | grep -w timeout; bkctl config show | awk '$1 == \"timeout\" {print $2}'")
    assert found.stdout.split() == ["timeout", "10s", "10s"]
    for form in ("table", "json", "csv", "yaml"):
        first = in_shell(f"set +o pipefail; bkctl config show -o {form} | head -1")
        assert (len(first.stdout.splitlines()), first.stderr) == (1, ""), form


def test_the_option_wins_over_the_variable_and_this_over_the_file(run_main: RunMain, tmp_path: object) -> None:
    path = f"{tmp_path}/config.toml"
    with open(path, "w", encoding="utf-8") as file:
        file.write('output = "csv"\n')
    words = ("config", "show", "--config", path)
    assert run_main(*words, BKCTL_OUTPUT="").stdout.startswith("name,value")
    assert run_main(*words, BKCTL_OUTPUT="name").stdout.startswith("metadata_uri\n")
    assert json.loads(run_main(*words, "-o", "json", BKCTL_OUTPUT="name").stdout)["kind"] == "Settings"


def test_a_wrong_variable_is_one_sentence(run_main: RunMain) -> None:
    result = run_main("config", "show", BKCTL_OUTPUT="xml")
    assert result.exit_code == 2
    assert result.stderr == "error: BKCTL_OUTPUT=xml: give one of table, wide, json, yaml, csv, name, jsonl\n"


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_wide_is_refused_where_it_has_no_effect(name: str) -> None:
    assert is_taken([*words_for(name), "-o", "wide"]) is (name not in WITHOUT_TABLES)


def test_the_refusal_of_wide_is_one_sentence(run_main: RunMain) -> None:
    result = run_main("-o", "wide", "cluster", "info")
    sentence = "-o wide is not supported by bkctl cluster info, which prints no table (see bkctl cluster info --help)"
    assert (result.exit_code, result.stderr) == (2, f"error: {sentence}\n")
    assert "no table" not in run_main("cluster", "info", BKCTL_OUTPUT="wide").stderr
