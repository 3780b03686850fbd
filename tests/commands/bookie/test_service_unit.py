"""The sample unit for systemd: its command line, signals and exit codes are those of the real command."""

from __future__ import annotations

import configparser
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import run_bkctl

UNIT = Path(__file__).parents[3] / "docs" / "examples" / "bkctl-bookie.service"
CONF = "/etc/bookkeeper/bk_server.conf"


@pytest.fixture
def service() -> configparser.SectionProxy:
    parser = configparser.RawConfigParser(comment_prefixes=("#",), delimiters=("=",), allow_no_value=True)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(UNIT)
    return parser["Service"]


def test_the_command_line_starts_a_bookie(service: configparser.SectionProxy, tmp_path: Path) -> None:
    program, *arguments = shlex.split(service["ExecStart"])
    assert Path(program).name == "bkctl"
    assert CONF in arguments
    (tmp_path / "bk.conf").write_text(
        "metadataServiceUri=zk://localhost/ledgers\njournalDirectories=/j\nledgerDirectories=/l\n"
    )
    given = [str(tmp_path / "bk.conf") if each == CONF else each for each in arguments]
    shown = run_bkctl(*given, "--dry-run", "-o", "json")
    assert shown.exit_code == 0, shown.stderr
    assert shown.json()["storage"]["ledger_directories"] == ["/l"]


def test_signals_and_exit_codes_are_those_of_a_bookie(service: configparser.SectionProxy, tmp_path: Path) -> None:
    assert service["Type"] == "notify"
    assert shlex.split(service["ExecReload"]) == ["/bin/kill", "-HUP", "$MAINPID"]
    assert "KillSignal" not in service, "SIGTERM, the default, is the clean stop"
    refused = run_bkctl("bookie", "start", "--conf", str(tmp_path / "missing.conf"))
    assert str(refused.exit_code) == service["RestartPreventExitStatus"]
    assert service["SuccessExitStatus"] == "143"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_unit_and_finds_it_hardened(service: configparser.SectionProxy, tmp_path: Path) -> None:
    program = shlex.split(service["ExecStart"])[0]
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace(program, sys.executable))
    for arguments in (("verify",), ("security", "--offline=true", "--threshold=20", "--no-pager")):
        judged = subprocess.run(["systemd-analyze", *arguments, str(unit)], capture_output=True, text=True, check=False)
        assert (judged.returncode, judged.stderr) == (0, ""), judged.stdout
