"""Completion: what is offered for a line, and that real shells complete with it."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.bkctl.conftest import RunMain
from tests.bkctl.test_main import NO_SERVER
from tests.processes import Cluster, TerminalSession, run_bkctl

SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], "source <(bkctl completion bash)"),
    "zsh": (["zsh", "-f", "-i"], "autoload -U compinit; compinit -u -D; source <(bkctl completion zsh)"),
    "fish": (["fish", "--no-config", "-i"], "bkctl completion fish | source"),
}
INSTALLED = [name for name in SHELLS if shutil.which(name)]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        (["rec"], {"recover"}),
        (["bookie", "l"], {"list", "log-level"}),
        (["-o", "json", "bookie", "l"], {"list", "log-level"}),
        (["recover", "l"], {"ledger"}),
        (["recover", "--open-"], {"--open-ledgers"}),
        (["audit", "--sp"], {"--spark"}),
        (["bookie", "list", "--metadata"], {"--metadata-uri"}),
        (["bookie", "list", "-o", "js"], {"json", "jsonl"}),
        (["bookie", "list", "--output=js"], {"--output=json", "--output=jsonl"}),
        (["audit", "--fail-on", "c"], {"critical"}),
        (["audit", "run", "--fail-on", "lost,cr"], {"lost,critical"}),
        (["audit", "--sort", "prob"], {"problem"}),
        (["audit", "run", "--sort=own"], {"--sort=owner"}),
        (["config", "explain", "time"], {"timeout"}),
        (["config", "explain", "journalMaxS"], {"journalMaxSizeMB"}),
        (["help", "lost-i"], {"lost-index"}),
        (["help", "aud"], {"audit", "audit-queries", "audit-report"}),
        (["completion", ""], {"bash", "fish", "zsh"}),
        (["ledger", "list", "--state", "--"], set()),
        (["ledger", "show", ""], set()),
        (["no-such-command", ""], None),
    ],
)
def test_what_is_offered(run_main: RunMain, line: list[str], offered: set[str] | None) -> None:
    result = run_main("__complete", *line)
    assert (result.exit_code, result.stderr) == (0, "")
    if offered is not None:
        assert set(result.stdout.split()) == offered


def test_contexts_of_the_file_that_the_line_names(run_main: RunMain, tmp_path: Path) -> None:
    names = ("production", "preview", "test")
    tables = "".join(f'[contexts.{name}]\nmetadata_uri = "zk://{name}/ledgers"\n' for name in names)
    (tmp_path / "c.toml").write_text(tables)
    found = run_main("__complete", "--config", str(tmp_path / "c.toml"), "bookie", "list", "--context", "pr")
    assert found.stdout.split() == ["preview", "production"]
    assert run_main("__complete", "bookie", "list", "--context", "pr").stdout == ""


def test_bookie_ids_of_the_cluster_that_the_line_names(cluster: Cluster) -> None:
    ids = sorted(bookie.id for bookie in cluster.bookies)
    for line in (
        "bookie show",
        "recover failed-bookie",
        f"decommission {ids[0]}",
        f"decommission {ids[0]} --accept-loss",
        "ledger list --bookie",
        "ledger read 5 --from-bookie",
        "ledger close 5 --accept-loss",
        "ledger rewrite-bookie --from",
        "ledger rewrite-bookie --to",
    ):
        found = run_bkctl("__complete", "-u", cluster.metadata_uri, *line.split(), "")
        assert (found.stdout.split(), found.stderr) == (ids, "")
    assert run_bkctl("__complete", "recover", "-u", cluster.metadata_uri, ids[0][:5]).stdout.split() == ids


def test_no_cluster_and_no_answer_are_silent(run_main: RunMain) -> None:
    for cluster in ([], ["-u", NO_SERVER], ["-u", "nonsense"]):
        result = run_main("__complete", *cluster, "bookie", "show", "")
        assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.parametrize("shell", INSTALLED)
def test_a_shell_completes_an_id(shell: str, cluster: Cluster) -> None:
    """The completed command runs: the id has a colon, which separates words for bash."""
    program, load = SHELLS[shell]
    bookie_id = cluster.bookies[0].id
    others = [bookie.id for bookie in cluster.bookies[1:]]
    starts = (bookie_id[:length] for length in range(len(bookie_id)))
    start = next(start for start in starts if not any(other.startswith(start) for other in others))
    path = os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)))
    variables = {"PATH": path, "BKCTL_METADATA_URI": cluster.metadata_uri, "BKCTL_OUTPUT": "json"}
    with TerminalSession(program=program, **variables) as session:
        session.type(f"{load}; echo load''ed\n")
        session.wait_for("loaded")
        session.type(f"bkctl boo\tsho\t{start}\t\n")
        session.wait_for('"kind": "Bookie')
