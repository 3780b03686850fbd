"""Settings of the safety model: read-only switch, pinned cluster, state directory, what stands for an answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from bkctl.commands.config import GlobalFlags, Settings
from bkctl.runtime.errors import ConfigurationError
from bkctl.settings import read_sources, resolve_settings
from tests.bkctl.conftest import RunMain

TOML = """
trash_retention_days = 7

[contexts.prod]
metadata_uri = "zk://prod/ledgers"
read_only = true
instance_id = "i"

[contexts.test]
metadata_uri = "zk://test/ledgers"
"""
NO_SERVER = "zk://127.0.0.1:1/ledgers"


@pytest.fixture
def toml(tmp_path: Path) -> str:
    path = tmp_path / "c.toml"
    path.write_text(TOML)
    return str(path)


def settings_of(flags: GlobalFlags, **environment: str) -> Settings:
    return resolve_settings(read_sources(flags, environment))


def test_a_context_may_forbid_changes_and_pin_its_cluster(toml: str) -> None:
    for settings in (
        settings_of(GlobalFlags(config=toml, cluster="prod")),
        settings_of(GlobalFlags(config=toml), BKCTL_CONTEXT="prod"),
    ):
        assert settings.is_read_only
        assert (settings.context_name, settings.pinned_instance_id) == ("prod", "i")
        assert settings.trash_retention_days == 7
    settings = settings_of(GlobalFlags(config=toml, cluster="test"))
    assert (settings.is_read_only, settings.context_name, settings.pinned_instance_id) == (False, "test", None)


def test_a_cluster_named_otherwise_is_in_no_context(toml: str) -> None:
    by_flag = settings_of(GlobalFlags(config=toml, metadata_uri="zk://x/ledgers"), BKCTL_CONTEXT="prod")
    by_environment = settings_of(GlobalFlags(config=toml), BKCTL_METADATA_URI="zk://x/ledgers", BKCTL_CONTEXT="prod")
    for settings in (by_flag, by_environment):
        assert (settings.is_read_only, settings.context_name, settings.pinned_instance_id) == (False, None, None)


def test_the_switch_in_the_environment(toml: str) -> None:
    assert settings_of(GlobalFlags(), BKCTL_READ_ONLY="1").is_read_only
    assert settings_of(GlobalFlags(config=toml, cluster="prod"), BKCTL_READ_ONLY="0").is_read_only, "it only adds"
    with pytest.raises(ConfigurationError, match="BKCTL_READ_ONLY=perhaps"):
        settings_of(GlobalFlags(), BKCTL_READ_ONLY="perhaps")


@pytest.mark.parametrize(
    ("environment", "directory"),
    [
        ({"BKCTL_STATE_DIR": "/s", "XDG_STATE_HOME": "/x", "HOME": "/h"}, "/s"),
        ({"XDG_STATE_HOME": "/x", "HOME": "/h"}, "/x/bkctl"),
        ({"HOME": "/h"}, "/h/.local/state/bkctl"),
        ({}, ""),
    ],
)
def test_the_state_directory(environment: dict[str, str], directory: str) -> None:
    assert settings_of(GlobalFlags(), **environment).state_directory == directory


def test_flags_of_planned_commands() -> None:
    settings = settings_of(GlobalFlags(confirm="name", plan_out="p", apply="a"))
    assert (settings.confirmed_name, settings.plan_out_path, settings.apply_path) == ("name", "p", "a")


@pytest.mark.parametrize(
    "command",
    [
        ("cluster", "init"),
        ("cluster", "format", "--confirm", "x"),
        ("cluster", "nuke", "--confirm", "x"),
        ("cluster", "health-check", "disable"),
        ("decommission", "b1:3181", "--yes"),
        ("ledger", "write-test"),
    ],
)
def test_read_only_stops_a_command_before_it_reaches_the_cluster(run_main: RunMain, command: tuple[str, ...]) -> None:
    result = run_main(*command, "-u", NO_SERVER, "--timeout", "100ms", BKCTL_READ_ONLY="1")
    assert result.exit_code == 3
    assert result.stderr.startswith("error: nothing was changed: bkctl is in read-only mode")


def test_read_only_leaves_looking_and_rehearsals(run_main: RunMain) -> None:
    for command in (
        ("cluster", "info"),
        ("cluster", "backup", "f"),
        ("cluster", "nuke", "--dry-run"),
        ("cluster", "nuke", "--plan-out", "p"),
    ):
        result = run_main(*command, "-u", NO_SERVER, "--timeout", "100ms", BKCTL_READ_ONLY="1")
        assert result.exit_code == 6, result.stderr


def test_help_shows_what_a_planned_command_takes(run_main: RunMain) -> None:
    page = run_main("cluster", "format", "--help").stdout
    for option in ("--yes", "--confirm", "--dry-run", "--plan-out", "--apply"):
        assert option in page
