"""``bkctl tls check --bookie``: what it finds at bookies that run."""

from __future__ import annotations

import datetime
import shutil
import subprocess
from pathlib import Path

import pytest

from bkctl.runtime.security.certificates import Authority, new_authority
from tests.certificate_files import CertificateFiles, write_certificate
from tests.commands.bookie.admin_bookie import running_bookie
from tests.processes import LOOPBACK, BkctlResult, free_port, run_bkctl

pytestmark = pytest.mark.cluster

NOW = datetime.datetime.now(datetime.UTC)


@pytest.fixture(scope="module")
def authority() -> Authority:
    return new_authority("test", 100, NOW)


@pytest.fixture
def client(authority: Authority, tmp_path: Path) -> CertificateFiles:
    return write_certificate(authority, tmp_path / "client", role="reader", days=90)


def of_bookie(files: CertificateFiles, **more: str) -> dict[str, str]:
    """Variables that give a bookie these files."""
    given = {"KEY_FILE": files.key, "CERTIFICATE_FILE": files.certificate, "CA_FILE": files.ca, **more}
    return {f"BKCTL_BOOKIE_TLS_{name}": value for name, value in given.items()}


def check(client: CertificateFiles, bookie_id: str) -> BkctlResult:
    config = Path(client.key).with_name("client.toml")
    config.write_text(
        f'[bookie_client.tls]\nkey_file = "{client.key}"\ncertificate_file = "{client.certificate}"\n'
        f'ca_file = "{client.ca}"\n'
    )
    return run_bkctl("tls", "check", "--bookie", bookie_id, "--config", str(config), "-o", "json", "--timeout", "20s")


def findings(result: BkctlResult) -> dict[str, tuple[str, str]]:
    return {row["check"]: (row["severity"], row["finding"]) for row in result.json()["items"]}


def test_a_good_bookie_serves_this_client(
    metadata_uri: str, authority: Authority, client: CertificateFiles, tmp_path: Path
) -> None:
    files = write_certificate(authority, tmp_path / "bookie", hosts=(LOOPBACK,), days=90)
    with running_bookie(metadata_uri, tmp_path / "data", variables=of_bookie(files)) as bookie:
        result = check(client, bookie.bookie_id)
    assert result.exit_code == 0, result.stderr
    found = findings(result)
    assert {severity for severity, _ in found.values()} == {"information"}
    assert found["protocol"][1].startswith("TLSv1.3, ")
    assert found["chain"][1] == f"verified with {client.ca}"
    assert found["names"][1] == LOOPBACK
    assert found["access"][1] == "it serves this client"


def test_a_bookie_without_tls_serves_a_client_without_tls(metadata_uri: str, tmp_path: Path) -> None:
    with running_bookie(metadata_uri, tmp_path / "data") as bookie:
        result = run_bkctl("tls", "check", "--bookie", bookie.bookie_id, "-o", "json", "--timeout", "20s")
    assert result.exit_code == 0, result.stderr
    assert findings(result) == {
        "handshake": ("information", "it does not use TLS, and neither do the settings"),
        "access": ("information", "it serves this client without TLS"),
    }


@pytest.mark.parametrize(
    ("host", "age_days", "is_known", "expected"),
    [
        (LOOPBACK, 95, True, {"handshake": "its certificate has expired", "dates": "expired at"}),
        (LOOPBACK, 70, True, {"dates": "in 19 days"}),
        (LOOPBACK, 0, False, {"handshake": "not signed by a CA in bookie_client.tls.ca_file"}),
        ("b1.example.com", 0, True, {"handshake": "not for the host 127.0.0.1", "names": "does not name 127.0.0.1"}),
    ],
)
def test_what_is_wrong_with_a_certificate_is_said_once_per_cause(
    metadata_uri: str,
    authority: Authority,
    client: CertificateFiles,
    tmp_path: Path,
    host: str,
    age_days: int,
    is_known: bool,
    expected: dict[str, str],
) -> None:
    made = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=age_days)
    signer = authority if is_known else new_authority("other", 100, NOW)
    files = write_certificate(signer, tmp_path / "bookie", hosts=(host,), days=90, now=made)
    with running_bookie(metadata_uri, tmp_path / "data", variables=of_bookie(files)) as bookie:
        result = check(client, bookie.bookie_id)
    assert result.exit_code == 10
    bad = {name: sentence for name, (severity, sentence) in findings(result).items() if severity != "information"}
    assert bad.keys() == expected.keys()
    for name, part in expected.items():
        assert part in bad[name]


def test_a_role_that_the_bookie_does_not_accept(
    metadata_uri: str, authority: Authority, client: CertificateFiles, tmp_path: Path
) -> None:
    files = write_certificate(authority, tmp_path / "bookie", hosts=(LOOPBACK,), days=90)
    variables = of_bookie(files, AUTHORIZED_ROLES="writer")
    with running_bookie(metadata_uri, tmp_path / "data", variables=variables) as bookie:
        result = check(client, bookie.bookie_id)
    assert result.exit_code == 10
    severity, sentence = findings(result)["access"]
    assert (severity, sentence.partition(" of ")[0]) == ("critical", "it does not accept the role")


@pytest.mark.parametrize(
    ("is_required", "settings", "expected"),
    [
        ("false", "", "it serves this client without TLS"),
        ("true", "", "serves only clients that use TLS or log in: set bookie_client.tls or bookie_client.sasl"),
        (
            "true",
            '[bookie_client.sasl]\nusername = "bookkeeper"\npassword = "env:PASSWORD"\n',
            "it accepted the login, but serves only clients with TLS: set bookie_client.tls",
        ),
    ],
)
def test_a_client_without_tls(
    metadata_uri: str, authority: Authority, tmp_path: Path, is_required: str, settings: str, expected: str
) -> None:
    files = write_certificate(authority, tmp_path / "bookie", hosts=(LOOPBACK,), days=90)
    config = tmp_path / "client.toml"
    config.write_text(settings)
    with running_bookie(metadata_uri, tmp_path / "data", variables=of_bookie(files, IS_REQUIRED=is_required)) as bookie:
        words = ("tls", "check", "--bookie", bookie.bookie_id, "--config", str(config), "-o", "json")
        result = run_bkctl(*words, "--timeout", "20s", PASSWORD="one")
    severity, sentence = findings(result)["access"]
    assert expected in sentence
    is_served = is_required == "false"
    assert (severity, result.exit_code) == (("information", 0) if is_served else ("critical", 10))


def test_a_java_file_without_the_key_that_switches_tls_on(
    metadata_uri: str, authority: Authority, tmp_path: Path
) -> None:
    files = write_certificate(authority, tmp_path / "bookie", hosts=(LOOPBACK,), days=90)
    conf = tmp_path / "client.conf"
    conf.write_text(f"clientTrustStore={files.ca}\nclientTrustStoreType=PEM\n")
    fix = ": set tlsProviderFactoryClass or clientAuthProviderFactoryClass"
    with running_bookie(metadata_uri, tmp_path / "data", variables=of_bookie(files, IS_REQUIRED="true")) as bookie:
        words = ("--conf", str(conf), "-u", metadata_uri)
        checked = run_bkctl("tls", "check", "--bookie", bookie.bookie_id, "-o", "json", *words)
        refused = run_bkctl("bookie", "sanity", bookie.bookie_id, *words)
    assert findings(checked)["access"][1].endswith(fix)
    assert (refused.exit_code, refused.stderr.splitlines()[-1][-len(fix) :]) == (11, fix)


def test_a_bookie_without_tls_and_no_bookie_at_all(metadata_uri: str, client: CertificateFiles, tmp_path: Path) -> None:
    with running_bookie(metadata_uri, tmp_path / "data") as bookie:
        plain = check(client, bookie.bookie_id)
    assert (plain.exit_code, set(findings(plain))) == (10, {"handshake"})
    assert "it does not use TLS" in findings(plain)["handshake"][1]
    absent = check(client, f"{LOOPBACK}:{free_port()}")
    assert (absent.exit_code, set(findings(absent))) == (10, {"connection"})
    assert findings(absent)["connection"] == ("critical", "Connection refused")
    bad = run_bkctl("tls", "check", "--bookie", "b1")
    assert (bad.exit_code, "give HOST:PORT" in bad.stderr) == (2, True)


def test_a_jks_file_of_java_ends_a_command_with_the_line_that_converts_it(metadata_uri: str, tmp_path: Path) -> None:
    store, password = tmp_path / "store.jks", tmp_path / "password"
    keytool = shutil.which("keytool")
    assert keytool is not None
    words = ("-genkeypair", "-alias", "a", "-keyalg", "EC", "-dname", "CN=a", "-storetype", "JKS")
    passwords = ("-storepass", "of the store", "-keypass", "of the store", "-keystore", str(store))
    subprocess.run([keytool, *words, *passwords], check=True, capture_output=True)
    password.touch(0o600)
    password.write_text("of the store")
    conf = tmp_path / "client.conf"
    conf.write_text(
        "tlsProviderFactoryClass=org.apache.bookkeeper.tls.TLSContextFactory\n"
        f"clientTrustStore={store}\nclientTrustStoreType=JKS\nclientTrustStorePasswordPath={password}\n"
    )
    made = run_bkctl("cluster", "init", BKCTL_METADATA_URI=metadata_uri)
    assert made.exit_code == 0, made.stderr
    for command in (
        ("bookie", "sanity", "b1.example.com:3181"),
        ("ledger", "write-test"),
        ("recover", "b1:3181", "-y"),
    ):
        refused = run_bkctl(*command, "--conf", str(conf), BKCTL_METADATA_URI=metadata_uri)
        assert refused.exit_code == 13, refused.stderr
        sentence = refused.stderr.splitlines()[-1]
        assert f"{store} is a JKS file" in sentence
        assert f"keytool -importkeystore -srckeystore {store} " in sentence
        assert "then set clientTrustStore to " in sentence
        assert sentence.endswith("and clientTrustStoreType to PKCS12")
    password.write_text("another")
    words = ("-genkeypair", "-alias", "a", "-keyalg", "EC", "-dname", "CN=a", "-storetype", "PKCS12")
    store.unlink()
    subprocess.run([keytool, *words, *passwords], check=True, capture_output=True)
    conf.write_text(conf.read_text().replace("=JKS", "=PKCS12"))
    refused = run_bkctl("bookie", "sanity", "b1:3181", "--conf", str(conf), BKCTL_METADATA_URI=metadata_uri)
    assert (refused.exit_code, "check clientTrustStorePasswordPath" in refused.stderr) == (13, True), refused.stderr
    refused = run_bkctl(
        *("bookie", "sanity", "b1:3181", "--conf", str(conf)),
        BKCTL_METADATA_URI=metadata_uri,
        BKCTL_BOOKIE_CLIENT_TLS_CA_FILE=str(store),
        BKCTL_BOOKIE_CLIENT_TLS_CA_TYPE="PKCS12",
        BKCTL_BOOKIE_CLIENT_TLS_CA_PASSWORD=f"file:{password}",
    )
    assert (refused.exit_code, "check ca_password" in refused.stderr) == (13, True), refused.stderr
