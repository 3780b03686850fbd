"""A variable that nothing reads is told of, or refused where one that is read was meant."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import bkctl
from bkctl.commands.config import GlobalFlags
from bkctl.runtime.errors import ConfigurationError
from bkctl.setting_readers import all_settings
from bkctl.settings import read_sources, variable_warnings
from tests.bkctl.conftest import RunMain

ROOT = Path(bkctl.__file__).parent.parent
KNOWN = {each.variable for each in all_settings()}


def warnings_of(flags: GlobalFlags | None = None, /, **environment: str) -> list[str]:
    return variable_warnings(read_sources(flags or GlobalFlags(), environment))


def test_every_variable_that_the_source_names_is_known() -> None:
    sources = [path for floor in ("bkctl", "commands") for path in (ROOT / floor).rglob("*.py")]
    read = {name for path in sources for name in re.findall(r'"(BKCTL_[A-Z_]+)"', path.read_text(encoding="utf-8"))}
    assert read <= KNOWN


def test_known_ones_and_those_of_others_are_nothing_to_tell() -> None:
    assert (
        warnings_of(**dict.fromkeys(KNOWN - {"BKCTL_CONF", "BKCTL_CONFIG"}, "x"), HOME="/nowhere", XBKCTL_YES="1") == []
    )


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("BKCTL_BOOKIE_PROT", "BKCTL_BOOKIE_PORT"),
        ("BKCTL_METADATA_URL", "BKCTL_METADATA_URI"),
        ("BKCTL_READONLY", "BKCTL_READ_ONLY"),
        ("BKCTL_BOOKIE_LEDGER_DIR", "BKCTL_BOOKIE_LEDGER_DIRS"),
    ],
)
def test_a_misspelt_one_is_refused_as_in_the_toml_file(name: str, meant: str) -> None:
    with pytest.raises(
        ConfigurationError, match=f"{name}: unknown environment variable: set {meant}, or unset this one"
    ):
        warnings_of(**{name: "x"})
    assert warnings_of(**{name: ""}) == []


def test_any_other_is_a_warning_of_every_command(run_main: RunMain) -> None:
    sentence = "BKCTL_HOME: unknown environment variable, ignored"
    assert warnings_of(BKCTL_HOME="/opt") == [sentence]
    result = run_main("bookie", "start", "--dry-run", BKCTL_HOME="/opt")
    assert (result.exit_code, result.stderr) == (0, f"warning: {sentence}\n")
    refused = run_main("cluster", "nuke", BKCTL_READONLY="1")
    assert (refused.exit_code, "set BKCTL_READ_ONLY" in refused.stderr) == (13, True)


def test_what_a_file_refers_to_may_have_any_name(tmp_path: Path) -> None:
    conf, toml = tmp_path / "bk.conf", tmp_path / "config.toml"
    conf.write_text("ledgerDirectories=/a,${env:BKCTL_BOOKIE_LEDGER_DIR}/l\n")
    toml.write_text('[contexts.prod]\nmetadata_uri = "zk://a/l"\nzookeeper = { digest = "env:BKCTL_PROD_DIGEST" }\n')
    flags = GlobalFlags(conf=str(conf), config=str(toml))
    assert warnings_of(flags, BKCTL_BOOKIE_LEDGER_DIR="/d", BKCTL_PROD_DIGEST="u:p") == []
