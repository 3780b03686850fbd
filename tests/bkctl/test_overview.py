"""``bkctl config show`` and ``bkctl config explain``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bkctl.conftest import RunMain

CONF = "# a bookie\nmetadataServiceUri=zk://c/ledgers\njournalDirectories=/j\nledgerDirectories=/l\ngcWaitTime=60000\n"


def test_values_with_their_origin(run_main: RunMain, tmp_path: Path) -> None:
    (tmp_path / "bk.conf").write_text(CONF)
    (tmp_path / "c.toml").write_text('timeout = "3s"\n[replication]\nlock_wait_s = 1\n[bookie]\nport = 1\n')
    words = (
        "config",
        "show",
        "--with-origin",
        "--conf",
        "bk.conf",
        "--config",
        "c.toml",
        "--zk-rate",
        "7",
        "-o",
        "json",
    )
    result = run_main(*words, BKCTL_BOOKIE_PORT="4000", BKCTL_CLIENT_ADD_TIMEOUT_S="2.5")
    assert (result.exit_code, result.stderr) == (0, "")
    rows = {row["name"]: (row["value"], row["origin"]) for row in json.loads(result.stdout)["items"]}
    assert rows["metadata_uri"] == ("zk://c/ledgers", "bk.conf")
    assert rows["bookie.garbage_collection.wait_s"] == (60.0, "bk.conf:5 (gcWaitTime)")
    assert rows["bookie.port"] == (4000, "BKCTL_BOOKIE_PORT")
    assert rows["client.add_timeout_s"] == (2.5, "BKCTL_CLIENT_ADD_TIMEOUT_S")
    assert rows["replication.lock_wait_s"] == (1, "c.toml")
    assert rows["zookeeper.operation_timeout_s"] == (3.0, "c.toml")
    assert rows["zookeeper.scan_operations_per_s_max"] == (7.0, "--zk-rate")
    assert rows["bookie.frame_bytes_max"] == (5 * 1024 * 1024, "default")
    changed = run_main(*words, "--changed", BKCTL_BOOKIE_PORT="4000")
    assert {row["origin"] for row in json.loads(changed.stdout)["items"]}.isdisjoint({"default"})


def test_secrets_are_hidden(run_main: RunMain, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('[zookeeper]\ndigest = "me:sesame"\n[zookeeper.sasl]\npassword = "file:/s"\n')
    environment = {"BKCTL_LEDGER_PASSWORD": "sesame", "BKCTL_ZOOKEEPER_KEY_PASSWORD": "sesame"}
    for words in (("show",), ("show", "--with-origin"), ("explain", "digest"), ("explain", "ledger_password")):
        result = run_main("config", *words, "--config", "c.toml", **environment)
        assert result.exit_code == 0
        assert "sesame" not in result.stdout + result.stderr
    shown = run_main("config", "show", "--config", "c.toml", "-o", "csv", **environment).stdout
    assert "zookeeper.digest,(hidden)" in shown
    assert "zookeeper.sasl.password,file:/s" in shown


def test_the_plan_of_a_start_shows_no_secret(run_main: RunMain, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('[zookeeper]\ndigest = "me:sesame"\n[zookeeper.sasl]\npassword = "file:/s"\n')
    options = "--dry-run -o json --config c.toml -u zk://h/l --journal-dir j --ledger-dir l --set allowLoopback=true"
    result = run_main("bookie", "start", *options.split(), BKCTL_ZOOKEEPER_KEY_PASSWORD="sesame")
    assert result.exit_code == 0
    assert "sesame" not in result.stdout + result.stderr
    shown = json.loads(result.stdout)["zookeeper"]
    assert (shown["digest"], shown["sasl"]["password"]) == ("(hidden)", "file:/s")


@pytest.mark.parametrize(
    "key",
    ["bookie.disks.check_interval_s", "check_interval_s", "diskCheckInterval", "BKCTL_BOOKIE_DISKS_CHECK_INTERVAL_S"],
)
def test_a_setting_is_found_by_each_of_its_names(run_main: RunMain, key: str) -> None:
    result = run_main("config", "explain", key, "-o", "json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert (found["name"], found["unit"], found["range"]) == ("bookie.disks.check_interval_s", "s", "above 0")
    assert (found["java_key"], found["java_range"]) == ("diskCheckInterval", "at least 1 ms")
    assert (found["value"], found["default"], found["origin"]) == (10.0, 10.0, "default")


def test_a_key_of_several_settings_names_them(run_main: RunMain) -> None:
    result = run_main("config", "explain", "nettyMaxFrameSizeBytes", "-o", "name")
    assert result.stdout.split() == [
        "client.writer_frame_bytes_max",
        "bookie.storage.engine.entry_log.entry_bytes_max",
        "bookie.frame_bytes_max",
    ]


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("journalMaxBackups", "bookie.storage.journal.backup_count_max"),
        ("numReadWorkerThreads", "numReadWorkerThreads"),
    ],
)
def test_explain_prints_the_name_of_the_setting(run_main: RunMain, key: str, name: str) -> None:
    result = run_main("config", "explain", key, "-o", "name")
    assert (result.exit_code, result.stdout) == (0, f"{name}\n")


def test_a_java_key_without_a_setting_says_why(run_main: RunMain) -> None:
    ignored = run_main("config", "explain", "numReadWorkerThreads")
    assert "ignored: the bookie runs one thread for each kind of work" in ignored.stdout
    for key in ("zkServers", "zkLedgersRootPath", "ledgerManagerFactoryClass"):
        assert "part of the metadata URI" in run_main("config", "explain", key).stdout
    assert "the daemon takes racks from" in run_main("config", "explain", "reppDnsResolverClass").stdout
    assert "refused unless empty or false" in run_main("config", "explain", "disableServerSocketBind").stdout
    assert "authorized_roles in [bookie.tls]" in run_main("config", "explain", "authorizedRoles").stdout


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("journalMaxSizMB", "journalMaxSizeMB"),
        ("bookie.prot", "bookie.port"),
        ("flush_intervall_s", "flush_interval_s"),
        ("BKCTL_BOOKIE_PROT", "BKCTL_BOOKIE_PORT"),
    ],
)
def test_a_misspelt_name_is_answered_with_the_likely_one(run_main: RunMain, key: str, meant: str) -> None:
    result = run_main("config", "explain", key)
    assert (result.exit_code, result.stderr) == (4, f"error: unknown setting {key}: did you mean {meant}?\n")
    assert "bkctl config show lists all" in run_main("config", "explain", "zzzzqqqq").stderr


@pytest.mark.parametrize(
    ("environment", "conf", "sentence"),
    [
        ({"BKCTL_BOOKIE_PORT": "70000"}, "", "BKCTL_BOOKIE_PORT=70000: must be from 0 to 65535"),
        (
            {"BKCTL_BOOKIE_STORAGE_JOURNAL_FORMAT_VERSION": "3"},
            "",
            "BKCTL_BOOKIE_STORAGE_JOURNAL_FORMAT_VERSION=3: must be from 4 to 6",
        ),
        ({}, "minorCompactionThreshold=1.5\n", "(minorCompactionThreshold) is 1.5; it must be at most 1"),
        ({}, "minorCompactionInterval=1\n", "of 1 s is shorter than the time between two garbage collections"),
        ({}, "diskUsageWarnThreshold=0.99\n", "(diskUsageWarnThreshold) is 0.99 and must not be above full_fraction"),
    ],
)
def test_what_bookie_start_refuses_is_not_shown(
    run_main: RunMain, tmp_path: Path, environment: dict[str, str], conf: str, sentence: str
) -> None:
    (tmp_path / "bk.conf").write_text(CONF + conf)
    start = run_main("bookie", "start", "--conf", "bk.conf", **environment)
    assert sentence in start.stderr
    for words in (("show",), ("explain", "bookie.port")):
        result = run_main("config", *words, "--conf", "bk.conf", **environment)
        assert (result.exit_code, result.stderr) == (13, start.stderr)


def test_the_machine_of_a_client_needs_no_directories(run_main: RunMain) -> None:
    result = run_main("config", "show", "--changed", "-o", "name", BKCTL_METADATA_URI="zk://c/ledgers")
    assert result.stdout.split() == ["metadata_uri", "output"]


def test_the_timeout_of_commands_is_the_origin_of_their_operation_timeout(run_main: RunMain) -> None:
    found = json.loads(run_main("config", "explain", "zookeeper.operation_timeout_s", "-o", "json").stdout)
    assert (found["value"], found["default"], found["origin"]) == (10.0, 15.0, "timeout")


def test_a_file_without_a_cluster_is_a_configuration(run_main: RunMain, tmp_path: Path) -> None:
    (tmp_path / "bk.conf").write_text("journalDirectories=/j\nledgerDirectories=/l\n")
    words = ("config", "show", "--with-origin", "-o", "csv")
    assert "nothing is configured" in run_main(*words).stdout
    assert "nothing is configured" not in run_main(*words, "--conf", "bk.conf").stdout


def test_a_unit_alone_is_no_range(run_main: RunMain) -> None:
    found = json.loads(run_main("config", "explain", "minorCompactionInterval", "-o", "json").stdout)
    assert found["java_range"] is None
    assert "(at most 1)" in run_main("config", "explain", "minorCompactionThreshold", "-o", "json").stdout
