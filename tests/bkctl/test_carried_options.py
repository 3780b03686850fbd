"""Printed commands carry the options for the cluster that this command was given, and no others."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from bkctl.carried_options import carrying
from bkctl.commands.config import GlobalFlags, OutputForm
from tests.bkctl.conftest import RunMain
from tests.processes import Cluster, run_bkctl

URI = "zk://h:2181/ledgers"
TWO_SERVERS = "zk://h1:2181;h2:2181/ledgers"


def test_no_option_for_a_cluster_was_given() -> None:
    text = "start one: bkctl autorecovery start"
    assert carrying(GlobalFlags(output=OutputForm.JSON, yes=True, timeout="3s"))(text) == text


@pytest.mark.parametrize(
    ("text", "completed"),
    [
        ("bkctl recover failed-bookie b1:3181", f"bkctl -u {URI} recover failed-bookie b1:3181"),
        ("bkctl recover b1:3181", f"bkctl -u {URI} recover b1:3181"),
        ("unknown (1 down; bkctl audit counts)", f"unknown (1 down; bkctl -u {URI} audit counts)"),
        ("run `bkctl bookie start`", f"run `bkctl -u {URI} bookie start`"),
        (
            "bkctl cluster nuke, then bkctl cluster restore FILE",
            f"bkctl -u {URI} cluster nuke, then bkctl -u {URI} cluster restore FILE",
        ),
        ("first\nbkctl status\nlast", f"first\nbkctl -u {URI} status\nlast"),
        ("bkctl audit -u zk://other/ledgers", "bkctl audit -u zk://other/ledgers"),
        ("bkctl audit --metadata-uri=zk://other/ledgers", "bkctl audit --metadata-uri=zk://other/ledgers"),
        ("bkctl audit; bkctl audit -u zk://o/l", f"bkctl -u {URI} audit; bkctl audit -u zk://o/l"),
        ("a running bkctl bookie", "a running bkctl bookie"),
        ("bkctl help lost-index", "bkctl help lost-index"),
        ("name a directory that bkctl audit --out wrote", "name a directory that bkctl audit --out wrote"),
        ("it was not written by bkctl ledger verify", "it was not written by bkctl ledger verify"),
        ("no such option (see bkctl status --help)", "no such option (see bkctl status --help)"),
        ("bkctl dev cluster up", "bkctl dev cluster up"),
        ("bkctl config use-context prod", "bkctl config use-context prod"),
    ],
)
def test_a_command_carries_the_options_that_it_takes_and_does_not_have(text: str, completed: str) -> None:
    assert carrying(GlobalFlags(metadata_uri=URI))(text) == completed


def test_all_options_for_a_cluster_are_carried_as_words_of_a_shell() -> None:
    flags = GlobalFlags(config="my file.toml", metadata_uri=TWO_SERVERS, cluster="prod", conf="bk.conf", quiet=True)
    command = carrying(flags)("bkctl status")
    options = ["--config", "my file.toml", "-u", TWO_SERVERS, "--context", "prod", "-c", "bk.conf"]
    assert shlex.split(command) == ["bkctl", *options, "status"]
    assert carrying(flags)("bkctl config contexts") == "bkctl --config 'my file.toml' config contexts"


def test_a_secret_is_not_carried() -> None:
    """Java ignores such a query, but some write one."""
    flags = GlobalFlags(metadata_uri=f"{URI}?password=hidden")
    assert carrying(flags)("bkctl status") == f"bkctl -u '{URI}?password=***' status"


@pytest.mark.parametrize("is_before", [True, False])
def test_a_usage_error_carries_nothing_to_help_pages(run_main: RunMain, is_before: bool) -> None:
    words = ["-u", URI, "status"] if is_before else ["status", "-u", URI]
    assert "(see bkctl status --help)" in run_main(*words, "--nope").stderr


@pytest.mark.cluster
@pytest.mark.parametrize("option", ["-u", "--context"])
def test_what_is_printed_works_where_it_is_pasted(cluster: Cluster, tmp_path: Path, option: str) -> None:
    """Nothing but the command line says which cluster it is: not the environment, not the user's own file."""
    config = tmp_path / "of operator.toml"
    config.write_text(f'[contexts.prod]\nmetadata_uri = "{cluster.metadata_uri}"\n')
    by_context = ("--config", str(config), "--context", "prod")
    given = by_context if option == "--context" else ("-u", cluster.metadata_uri)
    found = run_bkctl(*given, "status", "-o", "json").json()["findings"]
    command = shlex.join(["bkctl", *given, "autorecovery", "start"])
    assert [each["command"] for each in found] == [command]
    shown = run_bkctl(*given, "status", "-o", "table").stdout
    assert command in shown
    assert f"({shlex.join(['bkctl', *given, 'audit'])} counts copies)" in shown
    refused = run_bkctl("recover", *given, cluster.bookies[0].id, "-n").stderr
    assert shlex.join(["bkctl", *given, "bookie", "drain", cluster.bookies[0].id]) in refused
    undo = run_bkctl(*given, "autorecovery", "disable", "-y").stderr.strip().rpartition("to undo: ")[2]
    assert shlex.split(undo) == ["bkctl", *given, "autorecovery", "enable"]
    assert run_bkctl(*shlex.split(undo)[1:], "-y").exit_code == 0
