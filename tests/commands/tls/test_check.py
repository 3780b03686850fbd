"""``bkctl tls check``: what it finds in files."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest

from bkctl.runtime.security.certificates import Authority, certificate_pem, key_pem, new_authority, new_key
from tests.certificate_files import CertificateFiles, write_certificate
from tests.processes import BkctlResult, run_bkctl

NO_CLUSTER = 'metadata_uri = "zk://127.0.0.1:1/ledgers"\n'
NOW = datetime.datetime.now(datetime.UTC)


@pytest.fixture(scope="module")
def authority() -> Authority:
    return new_authority("test", 100, NOW)


def check(*words: str) -> BkctlResult:
    return run_bkctl("tls", "check", *words, "-o", "json")


def rows_of(result: BkctlResult) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = result.json()["items"]
    return rows


def worse_than_information(result: BkctlResult) -> list[tuple[str, str, str]]:
    return [
        (row["severity"], row["check"], row["finding"]) for row in rows_of(result) if row["severity"] != "information"
    ]


def test_good_files_have_information_only(tmp_path: Path, authority: Authority) -> None:
    files = write_certificate(authority, tmp_path / "b1", hosts=("b1", "192.0.2.7"), role="ops", days=90)
    result = check(files.certificate, files.ca, "--ca-file", files.ca)
    assert (result.exit_code, worse_than_information(result)) == (0, [])
    found = {
        (each["check"], each["finding"]) for each in result.json()["items"] if each["subject"] == files.certificate
    }
    assert {("names", "b1, 192.0.2.7"), ("role", "ops"), ("chain", "signed by the CA CN=test")} < found


@pytest.mark.parametrize(
    ("days", "age", "expected"),
    [
        (20, 0, ("warning", "dates", "in 20 days")),
        (31, 2, ("warning", "dates", "in 29 days")),
        (5, 6, ("critical", "dates", "expired at")),
        (5, -3, ("critical", "dates", "not valid before")),
    ],
)
def test_dates(tmp_path: Path, authority: Authority, days: int, age: int, expected: tuple[str, str, str]) -> None:
    made = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=age, minutes=-4)
    files = write_certificate(authority, tmp_path / "b1", hosts=("b1",), days=days, now=made)
    result = check(files.certificate)
    ((severity, check_name, finding),) = worse_than_information(result)
    assert (result.exit_code, severity, check_name) == (10, *expected[:2])
    assert expected[2] in finding


def test_another_ca_and_files_without_a_certificate_are_critical(tmp_path: Path, authority: Authority) -> None:
    files = write_certificate(authority, tmp_path / "b1", hosts=("b1",), days=90)
    other = tmp_path / "other.pem"
    other.write_bytes(certificate_pem(new_authority("other", 90, NOW).certificate))
    result = check(files.certificate, files.key, str(tmp_path / "none"), "--ca-file", str(other))
    assert result.exit_code == 10
    assert worse_than_information(result) == [
        ("critical", "chain", "its issuer CN=test is not in the CA file"),
        ("critical", "files", f"the certificate in {files.key} is missing: expected '-----BEGIN CERTIFICATE-----'"),
        ("critical", "files", f"cannot read {tmp_path / 'none'} (certificate_file): No such file or directory"),
    ]


def test_another_ca_with_the_same_name_is_not_taken_for_the_issuer(tmp_path: Path, authority: Authority) -> None:
    files = write_certificate(authority, tmp_path / "b1", hosts=("b1",), days=90)
    other = tmp_path / "other.pem"
    other.write_bytes(certificate_pem(new_authority("test", 90, NOW).certificate))
    result = check(files.certificate, "--ca-file", str(other))
    said = "its issuer CN=test is not in the CA file, which has another CA with this name"
    assert worse_than_information(result) == [("critical", "chain", said)]


def settings(path: Path, files: CertificateFiles) -> Path:
    path.write_text(
        f'{NO_CLUSTER}[bookie_client.tls]\nkey_file = "{files.key}"\ncertificate_file = "{files.certificate}"\n'
        f'ca_file = "{files.ca}"\n'
    )
    return path


def test_the_files_of_the_settings_fit_each_other(tmp_path: Path, authority: Authority) -> None:
    files = write_certificate(authority, tmp_path / "ann", role="ops", days=90)
    config = settings(tmp_path / "c.toml", files)
    good = check("--config", str(config))
    assert (good.exit_code, worse_than_information(good)) == (0, [])
    Path(files.key).chmod(0o604)
    open_to_all = check("--config", str(config))
    assert open_to_all.exit_code == 10
    assert worse_than_information(open_to_all) == [
        ("warning", "key", f"every user of this machine may use it: chmod o= {files.key}"),
    ]
    Path(files.key).write_bytes(key_pem(new_key()))
    ((severity, check_name, finding),) = worse_than_information(check("--config", str(config)))
    assert (severity, check_name) == ("critical", "files")
    assert "does not belong to" in finding


def test_files_that_serve_both_sides_are_listed_once(tmp_path: Path, authority: Authority) -> None:
    files = write_certificate(authority, tmp_path / "b1", hosts=("b1",), role="ops", days=90)
    config = settings(tmp_path / "c.toml", files)
    tls = config.read_text().partition("[bookie_client.tls]")[2]
    directories = f'journal_directories = ["{tmp_path}/j"]\nledger_directories = ["{tmp_path}/l"]\n'
    bookie = f'[bookie]\nbookie_id = "b1:3181"\nadvertised_address = "b1"\n{directories}[bookie.tls]{tls}'
    config.write_text(config.read_text() + bookie)
    checks = [(each["subject"], each["check"]) for each in rows_of(check("--config", str(config)))]
    own = [(files.certificate, name) for name in ("dates", "chain", "role", "names")]
    assert sorted(checks) == sorted([(files.ca, "dates"), *own])
    config.write_text(f'{config.read_text()}authorized_roles = ["ops"]\n[bookie.sasl]\njaas_file = "{tmp_path}/jaas"\n')
    contradictory = check("--config", str(config))
    ((severity, check_name, finding),) = worse_than_information(contradictory)
    assert (contradictory.exit_code, severity, check_name) == (10, "critical", "settings")
    assert finding.startswith("roles of certificates and logins with SASL exclude each other")


REFUSED = "bookies with these settings refuse this one as their client: it "
"""It is their client when it repairs ledgers."""


@pytest.mark.parametrize(
    ("of_bookie", "of_client", "expected"),
    [
        ('authorized_roles = ["admin", "bookie"]', "[bookie_client.tls]\n{key}{ca}", None),
        (
            'authorized_roles = ["admin"]',
            "[bookie_client.tls]\n{key}{ca}",
            ("warning", "role", "the first role bookie, but the bookie accepts admin"),
        ),
        (
            'authorized_roles = ["admin"]',
            "",
            ("warning", "settings", f"{REFUSED}connects in clear text (bookie_client.tls)"),
        ),
        ("is_required = true", "", ("warning", "settings", f"{REFUSED}connects in clear text (bookie_client.tls)")),
        (
            "is_client_certificate_required = true",
            "[bookie_client.tls]\n{ca}",
            ("warning", "settings", f"{REFUSED}shows no certificate (bookie_client.tls.key_file)"),
        ),
        ("is_client_certificate_required = true", "", None),
        (
            '[bookie.sasl]\njaas_file = "jaas.conf"',
            "[bookie_client.tls]\n{key}{ca}",
            ("warning", "settings", f"{REFUSED}does not log in (bookie_client.sasl)"),
        ),
    ],
)
def test_what_a_bookie_needs_as_a_client_of_the_others(
    tmp_path: Path, authority: Authority, of_bookie: str, of_client: str, expected: tuple[str, str, str] | None
) -> None:
    files = write_certificate(authority, tmp_path / "b1", hosts=("b1",), role="bookie", days=90)
    key, ca = f'key_file = "{files.key}"\ncertificate_file = "{files.certificate}"\n', f'ca_file = "{files.ca}"\n'
    config = tmp_path / "c.toml"
    config.write_text(
        f'{NO_CLUSTER}[bookie]\njournal_directories = ["{tmp_path}/j"]\nledger_directories = ["{tmp_path}/l"]\n'
        f'advertised_address = "b1"\n[bookie.tls]\n{key}{ca}{of_bookie}\n{of_client.format(key=key, ca=ca)}'
    )
    result = check("--config", str(config))
    assert worse_than_information(result) == ([] if expected is None else [expected])
    assert result.exit_code == (0 if expected is None else 10)


def test_nothing_to_check_is_said(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(NO_CLUSTER)
    result = check("--config", str(tmp_path / "c.toml"))
    assert (result.exit_code, result.stderr) == (
        2,
        "error: the settings have no TLS files of a client, or of a bookie with its ledger directories: give FILEs or "
        "--bookie HOST:PORT\n",
    )
    useless = check("--ca-file", "x", "--bookie", "b1:3181")
    assert (useless.exit_code, "--ca-file is for FILEs" in useless.stderr) == (2, True)
