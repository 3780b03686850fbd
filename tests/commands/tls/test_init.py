"""``bkctl tls init``: the files, what a second run does, and that OpenSSL accepts them."""

from __future__ import annotations

import os
import ssl
import stat
import tomllib
from pathlib import Path

import pytest

from bkctl.commands.tls.init import AuthorityFiles, read_certificate
from bkctl.runtime.security.certificates import alternative_names, matches_host
from bkctl.runtime.security_config import BookieTlsConfig, ClientTlsConfig
from tests.processes import BkctlResult, run_bkctl


def init(directory: Path, *words: str) -> BkctlResult:
    return run_bkctl("tls", "init", str(directory), *words)


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_keys_are_private_and_certificates_name_hosts_and_role(tmp_path: Path) -> None:
    directory = tmp_path / "new" / "c"
    hosts = ("--bookie", "localhost:3181", "--bookie", "192.0.2.7", "--bookie", "::1", "--bookie", "[2001:db8::7]:3181")
    made = init(directory, *hosts, "--client", "ann", "--role", "ops")
    assert made.exit_code == 0, made.stderr
    assert "ca/key.pem apart" in made.stderr
    names = ("key.pem", "certificate.pem", "ca.pem")
    places = ("bookies/localhost", "bookies/192.0.2.7", "bookies/::1", "bookies/2001:db8::7", "clients/ann")
    own = {f"{place}/{name}" for place in places for name in names}
    assert set(contents(directory)) == {"ca/key.pem", "ca/ca.pem", *own}
    for path in directory.rglob("key.pem"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    found = {place: read_certificate(str(directory / place / "certificate.pem")) for place in places}
    assert alternative_names(found["bookies/localhost"])[0] == "localhost"
    assert "127.0.0.1" in alternative_names(found["bookies/localhost"])
    for address in ("192.0.2.7", "::1", "2001:db8::7"):
        assert alternative_names(found[f"bookies/{address}"]) == [address]
    assert alternative_names(found["clients/ann"]) == []
    assert {each.subject.rfc4514_string() for each in found.values()} >= {"OU=0:ops,CN=ann", "OU=0:ops,CN=localhost"}


def test_the_printed_settings_name_the_files(tmp_path: Path) -> None:
    made = run_bkctl("tls", "init", str(tmp_path), "--bookie", "b1", "--client", "ann", "--role", "ops", "-o", "json")
    bookie, client = made.json()["settings"]
    tables = tomllib.loads(bookie["toml"])
    config = BookieTlsConfig(**tables["bookie"]["tls"])
    assert Path(config.key_file or "").read_bytes().startswith(b"-----BEGIN PRIVATE KEY-----")
    assert (list(config.authorized_roles), config.is_client_certificate_required) == (["ops"], True)
    assert os.path.dirname(ClientTlsConfig(**tables["bookie_client"]["tls"]).ca_file or "") == bookie["directory"]
    assert "bookie" not in tomllib.loads(client["toml"])
    java = dict(line.split("=", 1) for line in bookie["java"].splitlines())
    assert (java["tlsKeyStore"], java["authorizedRoles"]) == (config.key_file, "ops")
    assert "authorizedRoles" not in client["java"]


def test_a_second_run_adds_what_is_missing_and_replaces_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "c"
    assert init(directory, "--bookie", "b1").exit_code == 0
    before = contents(directory)
    same = init(directory, "--bookie", "b1:3181")
    assert (same.exit_code, "is in" in same.stderr) == (0, True)
    assert contents(directory) == before
    (directory / "bookies/b1/certificate.pem").unlink()
    assert init(directory, "--bookie", "b1", "--client", "ann").exit_code == 0
    after = contents(directory)
    renewed = after["bookies/b1/certificate.pem"]
    assert renewed != before["bookies/b1/certificate.pem"]
    assert before.items() - {("bookies/b1/certificate.pem", before["bookies/b1/certificate.pem"])} <= after.items()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # the renewed certificate fits the old key
    context.load_cert_chain(directory / "bookies/b1/certificate.pem", directory / "bookies/b1/key.pem")


@pytest.mark.parametrize(
    ("words", "lost", "reason"),
    [
        (("--bookie", "b1", "--role", "other"), "", "has role ops, not other"),
        (("--bookie", "b1"), "", "has role ops, not none"),
        (("--bookie", "b1", "--role", "ops"), "bookies/b1/key.pem", "has lost its key.pem"),
        (("--bookie", "b2"), "ca/key.pem", "ca/key.pem is missing: restore it"),
        (("--bookie", "b2"), "ca/ca.pem", "ca/ca.pem is missing: restore it"),
        (("--bookie", "b2"), "ca", "/bookies/b1: restore them, or give another directory"),
    ],
)
def test_files_that_do_not_fit_are_refused_before_any_change(
    tmp_path: Path, words: tuple[str, ...], lost: str, reason: str
) -> None:
    assert init(tmp_path, "--bookie", "b1", "--role", "ops").exit_code == 0
    if lost:
        (tmp_path / lost).rename(tmp_path.with_suffix(".offline"))
    before = contents(tmp_path)
    refused = init(tmp_path, *words, "--client", "new")
    assert (refused.exit_code, refused.stdout, refused.stderr.count("\n")) == (5, "", 1)
    assert reason in refused.stderr
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((), "give --bookie HOST or --client NAME"),
        (("--bookie", "../b1"), "give a host name or an address"),
        (("--client", "a/b"), "--client a/b: use letters"),
        (("--client", "a", "--role", "a,b"), "--role a,b: use letters"),
        (("--client", "a", "--days", "0"), "--days"),
    ],
)
def test_names_that_cannot_be_used_are_refused(tmp_path: Path, words: tuple[str, ...], reason: str) -> None:
    refused = init(tmp_path / "c", *words)
    assert refused.exit_code == 2
    assert reason in refused.stderr
    assert not (tmp_path / "c").exists()


def test_a_rehearsal_writes_nothing_and_a_saved_plan_is_carried_out(tmp_path: Path) -> None:
    words = ("--bookie", "b1", "--client", "ann")
    assert init(tmp_path / "c", *words, "-n").exit_code == 0
    assert not (tmp_path / "c").exists()
    assert init(tmp_path / "c", *words, "--plan-out", str(tmp_path / "plan")).exit_code == 0
    assert not (tmp_path / "c").exists()
    assert init(tmp_path / "c", *words, "--apply", str(tmp_path / "plan")).exit_code == 0
    assert not AuthorityFiles(str(tmp_path / "c")).missing_authority()


@pytest.mark.parametrize(
    ("host", "is_matched"),
    [
        ("b1.example.com", True),
        ("B1.Example.com.", True),
        ("b2.pool.example.com", True),
        ("x.b2.pool.example.com", False),
        ("pool.example.com", False),
        ("192.0.2.7", True),
        ("192.0.2.8", False),
    ],
)
def test_which_names_are_a_host(host: str, is_matched: bool) -> None:
    assert matches_host(["b1.example.com", "*.pool.example.com", "192.0.2.7"], host) is is_matched
