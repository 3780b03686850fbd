"""bk_server.conf is read by the rules of Commons Configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from bkctl.java_conf import JavaConf
from bkctl.runtime.errors import ConfigurationError
from bkctl.setting_readers import java_values, settings_of


def read(tmp_path: Path, text: str, **environment: str) -> JavaConf:
    path = tmp_path / "bk_server.conf"
    path.write_text(text)
    return JavaConf.read(str(path), environment)


def test_syntax_of_java_properties(tmp_path: Path) -> None:
    conf = read(tmp_path, "# comment\n! comment\na=1\nb = 2\nc: 3\nd = one\\\n   line\ne=\\u0041\n")
    assert [conf.text(key) for key in "abcde"] == ["1", "2", "3", "oneline", "A"]


def test_a_comma_splits_every_value_and_a_scalar_keeps_the_first_part(tmp_path: Path) -> None:
    conf = read(tmp_path, "metadataServiceUri=zk+hierarchical://a:2181,b:2181/ledgers\nledgerDirectories=/a, /b,/c\n")
    assert conf.text("metadataServiceUri") == "zk+hierarchical://a:2181"
    assert conf.parts_dropped("metadataServiceUri") == ("b:2181/ledgers",)
    assert conf.texts("ledgerDirectories") == ("/a", "/b", "/c")


def test_a_key_that_occurs_twice_accumulates_and_the_first_wins(tmp_path: Path) -> None:
    conf = read(tmp_path, "journalDirectories=/a\nbookiePort=1\njournalDirectories=/b\nbookiePort=2\n")
    assert conf.texts("journalDirectories") == ("/a", "/b")
    assert conf.text("bookiePort") == "1"


def test_empty_values_count_as_unset(tmp_path: Path) -> None:
    conf = read(tmp_path, "ledgerDirectories=\nbookieId=\n")
    assert conf.texts("ledgerDirectories") == ()
    assert conf.text("bookieId") is None
    assert "bookieId" in conf


def test_references_are_expanded_and_unknown_ones_stay(tmp_path: Path) -> None:
    text = "base=/data\nledgerDirectories=${base}/l,${env:DISK}/l,${sys:user.home}/l,${nope}\n"
    conf = read(tmp_path, text, DISK="/disk")
    assert conf.texts("ledgerDirectories") == ("/data/l", "/disk/l", "${sys:user.home}/l", "${nope}")


def test_a_reference_to_itself_is_refused(tmp_path: Path) -> None:
    conf = read(tmp_path, "a=${b}\nb=${a}\n")
    with pytest.raises(ConfigurationError, match="refers to itself"):
        conf.text("a")


def test_include_is_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "more.conf").write_text("bookiePort=4000\nbookieId=other\n")
    conf = read(tmp_path, "bookieId=mine\ninclude=more.conf\n")
    assert conf.text("bookiePort") == "4000"
    assert conf.source("bookiePort") == f"{tmp_path}/more.conf:1 (bookiePort)"
    assert conf.source("bookieId") == f"{tmp_path}/bk_server.conf:1 (bookieId)"
    assert conf.text("bookieId") == "mine"


def test_files_that_include_each_other_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="circular include"):
        read(tmp_path, "include=bk_server.conf\n")


@pytest.mark.parametrize(
    ("text", "truth"), [("true", True), ("YES", True), ("on", True), ("false", False), ("off", False)]
)
def test_truth_values(tmp_path: Path, text: str, truth: bool) -> None:
    conf = read(tmp_path, f"allowLoopback={text}\n")
    assert java_values(conf, settings_of("bookie"))["bookie", "is_loopback_allowed"].value is truth


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("bookiePort=12x", r"bk_server\.conf: bookiePort = 12x: not a whole number"),
        ("allowLoopback=maybe", "allowLoopback = maybe: neither true nor false"),
        ("allowLoopback=1", "allowLoopback = 1: neither true nor false"),
    ],
)
def test_what_is_no_number_or_truth_names_file_key_and_value(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        java_values(read(tmp_path, text), settings_of("bookie"))


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_files_of_both_encodings_are_read(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "bk_server.conf"
    path.write_bytes("# für den Betrieb\r\njournalDirectory=/données\r\n".encode(encoding))
    assert JavaConf.read(str(path), {}).text("journalDirectory") == "/données"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="nope: No such file"):
        JavaConf.read(str(tmp_path / "nope"), {})
    with pytest.raises(ConfigurationError, match="cannot read the configuration file"):
        read(tmp_path, "a=\\uZZZZ\n")


def test_overriding_replaces_all_occurrences(tmp_path: Path) -> None:
    conf = read(tmp_path, "journalDirectories=/a\njournalDirectories=/b\n").overridden({"journalDirectories": "/x,/y"})
    assert conf.texts("journalDirectories") == ("/x", "/y")
