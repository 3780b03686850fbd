"""TLS and logins at bookies: the tables of settings, their variables, and Java's keys for them."""

from __future__ import annotations

import json
import re
import ssl
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bkctl.commands.config import GlobalFlags
from bkctl.commands.context import BookieFlags, DaemonFlags
from bkctl.runtime.config import BookieConfig, ZooKeeperSaslConfig
from bkctl.runtime.errors import ConfigurationError
from bkctl.runtime.metadata.zookeeper.access import session_credentials
from bkctl.runtime.net.tls_failures import alert_sentence
from bkctl.runtime.security.login import client_logins
from bkctl.runtime.security.tls_contexts import bookie_contexts, client_contexts
from bkctl.runtime.security_config import (
    BookieClientConfig,
    BookieLoginConfig,
    BookieTlsConfig,
    ClientLoginConfig,
    ClientTlsConfig,
    StoreType,
)
from bkctl.server_settings import resolve_bookie_settings, resolve_daemon_settings
from bkctl.settings import general_values, read_sources, resolve_settings
from tests.interop.security_files import TestAuthority
from tests.processes import run_bkctl

TLS = "tlsProviderFactoryClass=org.apache.bookkeeper.tls.TLSContextFactory\n"
SASL = "bookieAuthProviderFactoryClass=org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory\n"
CLIENT_SASL = "org.apache.bookkeeper.sasl.SASLClientProviderFactory"
ROLES = "bookieAuthProviderFactoryClass=org.apache.bookkeeper.tls.BookieAuthZFactory\n"
JAVA_KEYS: dict[str, Any] = {
    "ca_java_key": "tlsTrustStore",
    "certificate_java_key": "tlsCertificatePath",
    "key_java_key": "tlsKeyStore",
}
NOT_SHOWN = JAVA_KEYS | dict.fromkeys(("certificate_java_key", "key_java_key"), "tlsClientAuthentication=true")
"""Of a file that has a key for clients, and does not make them show its certificate."""
BOOKIE = "metadataServiceUri=zk://h/ledgers\njournalDirectories=/j\nledgerDirectories=/l\n"


def client_of(tmp_path: Path, *, toml: str = "", conf: str = "", **environment: str) -> BookieClientConfig:
    """What commands use, and the daemon and the bookie too, which must not differ."""
    flags = files(tmp_path, toml, BOOKIE + conf)
    sources = read_sources(flags, environment)
    found = resolve_settings(sources).client.security
    of_daemon = resolve_daemon_settings(sources, DaemonFlags()).config.client.security
    assert of_daemon.tls == found.tls
    if of_daemon.sasl is not None and found.sasl is not None:  # it has a section of its own in a JAAS file, as in Java
        of_daemon = msgspec.structs.replace(
            of_daemon, sasl=msgspec.structs.replace(of_daemon.sasl, jaas_section=found.sasl.jaas_section)
        )
    assert of_daemon == found
    assert resolve_bookie_settings(sources, BookieFlags()).config.client == found
    return found


def without_note(login: ClientLoginConfig | BookieLoginConfig | ZooKeeperSaslConfig | None) -> object:
    """Its settings alone: the note is only for errors."""
    assert login is not None
    login = msgspec.structs.replace(login, variables_note="")
    return msgspec.structs.replace(login, allowed_ids_java_key=None) if isinstance(login, BookieLoginConfig) else login


def bookie_of(tmp_path: Path, *, toml: str = "", conf: str = "", **environment: str) -> BookieConfig:
    flags = files(tmp_path, toml, BOOKIE + conf)
    return resolve_bookie_settings(read_sources(flags, environment), BookieFlags()).config


def files(tmp_path: Path, toml: str, conf: str) -> GlobalFlags:
    (tmp_path / "bkctl.toml").write_text(toml)
    (tmp_path / "bk.conf").write_text(conf)
    return GlobalFlags(config=str(tmp_path / "bkctl.toml"), conf=str(tmp_path / "bk.conf"))


def test_without_settings_connections_are_plain(tmp_path: Path) -> None:
    assert client_of(tmp_path) == BookieClientConfig(
        tls_java_key="tlsProviderFactoryClass", sasl_java_key="clientAuthProviderFactoryClass"
    )
    assert (bookie_of(tmp_path).tls, bookie_of(tmp_path).sasl) == (None, None)


def test_the_table_is_used_by_commands_daemons_and_bookies(tmp_path: Path) -> None:
    toml = '[bookie_client.tls]\nca_file = "/ca"\n[bookie_client.sasl]\nusername = "u"\npassword = "file:/p"\n'
    assert client_of(tmp_path, toml=toml) == BookieClientConfig(
        tls=ClientTlsConfig(ca_file="/ca"), sasl=ClientLoginConfig(username="u", password="file:/p")
    )


def test_the_table_of_a_context_wins(tmp_path: Path) -> None:
    toml = (
        'context = "prod"\n[bookie_client.tls]\nca_file = "/a"\n[contexts.prod]\nmetadata_uri = "zk://h/l"\n'
        '[contexts.prod.bookie_client.tls]\nca_file = "/b"\n'
    )
    assert client_of(tmp_path, toml=toml).tls == ClientTlsConfig(ca_file="/b")


def test_variables_alone_are_enough_and_a_secret_is_a_reference(tmp_path: Path) -> None:
    found = client_of(tmp_path, BKCTL_BOOKIE_CLIENT_SASL_USERNAME="u", BKCTL_BOOKIE_CLIENT_SASL_PASSWORD="sesame-1")
    login = ClientLoginConfig(username="u", password="env:BKCTL_BOOKIE_CLIENT_SASL_PASSWORD")
    assert without_note(found.sasl) == login


def test_a_variable_may_refer_to_a_secret_as_a_file_does(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("sesame-1\n")
    reference = f"file:{tmp_path}/password"
    for variable in ("BKCTL_BOOKIE_CLIENT_SASL_PASSWORD", "BKCTL_ZOOKEEPER_SASL_PASSWORD"):
        environment = {variable.replace("PASSWORD", "USERNAME"): "u", variable: reference}
        sources = read_sources(files(tmp_path, "", BOOKIE), environment)
        found = resolve_settings(sources)
        sasl = found.client.security.sasl or found.zookeeper.sasl
        assert sasl is not None
        assert sasl.password == reference
    general = general_values(read_sources(files(tmp_path, "", BOOKIE), {"BKCTL_LEDGER_PASSWORD": reference}))
    assert general["ledger_password",].value == "env:BKCTL_LEDGER_PASSWORD", "only the password itself may be there"
    client_logins(ClientLoginConfig(username="u", password=reference), {})


def test_a_certificate_and_a_login_are_each_of_one_source(tmp_path: Path) -> None:
    """The files of the TOML file's login would not fit to those of a stronger source; what that leaves out is added."""
    toml = (
        '[bookie_client.tls]\nca_file = "/ca.pem"\nkey_file = "/key.pem"\ncertificate_file = "/cert.pem"\n'
        'ciphers = ["X"]\n[bookie_client.sasl]\nusername = "u"\npassword = "file:/p"\nservice = "s"\n'
    )
    conf = f"{TLS}tlsClientAuthentication=true\nclientKeyStore=/op.p12\nclientKeyStoreType=PKCS12\n"
    conf += "clientKeyStorePasswordPath=/pw\ntlsHostnameVerificationEnabled=true\n"
    found = client_of(tmp_path, toml=toml, conf=conf, BKCTL_BOOKIE_CLIENT_SASL_JAAS_FILE="/jaas")
    assert found.tls is not None
    assert (found.tls.key_file, found.tls.key_type, found.tls.certificate_file) == ("/op.p12", StoreType.PKCS12, None)
    assert (found.tls.ca_file, found.tls.key_password, found.tls.ciphers) == ("/ca.pem", "file:/pw", ("X",))
    assert without_note(found.sasl) == ClientLoginConfig(jaas_file="/jaas", service="s")
    key = {"BKCTL_BOOKIE_CLIENT_TLS_KEY_FILE": "/k", "BKCTL_BOOKIE_CLIENT_TLS_CERTIFICATE_FILE": "/c"}
    tls = client_of(tmp_path, toml=toml, conf=conf, **key).tls
    assert tls is not None
    assert (tls.key_file, tls.key_type, tls.key_password, tls.certificate_file) == ("/k", StoreType.PEM, None, "/c")
    found = client_of(tmp_path, toml=toml, BKCTL_BOOKIE_CLIENT_SASL_PASSWORD="sesame-1")
    login = ClientLoginConfig(username="u", password="env:BKCTL_BOOKIE_CLIENT_SASL_PASSWORD", service="s")
    assert without_note(found.sasl) == login


def test_an_error_names_the_variables_that_set_a_login_or_a_certificate_aside(tmp_path: Path) -> None:
    toml = '[bookie_client.sasl]\njaas_file = "/jaas"\n[bookie_client.tls]\nkey_file = "/key"\n'
    toml += 'certificate_file = "/cert"\n[zookeeper.sasl]\nusername = "u"\npassword = "file:/p"\n'
    TestAuthority(tmp_path).issue("client")
    variables = {
        "BKCTL_BOOKIE_CLIENT_SASL_USERNAME": "x",
        "BKCTL_BOOKIE_CLIENT_TLS_KEY_FILE": f"{tmp_path}/client.key",
        "BKCTL_ZOOKEEPER_SASL_USERNAME": "x",
    }
    sources = read_sources(files(tmp_path, toml, BOOKIE), variables)
    found = resolve_settings(sources)
    sasl, tls, zookeeper = found.client.security.sasl, found.client.security.tls, found.zookeeper
    assert sasl is not None
    assert tls is not None
    place = f"{tmp_path}/bkctl.toml"
    for check, count in (
        (lambda: client_logins(sasl, {}), f"SASL_USERNAME is set, so jaas_file in {place} does not count"),
        (lambda: client_contexts(tls, {}), f"TLS_KEY_FILE is set, so certificate_file in {place} does not count"),
        (
            lambda: session_credentials(zookeeper, {}, print),
            f"SASL_USERNAME is set, so password in {place} does not count",
        ),
    ):
        with pytest.raises(ConfigurationError) as caught:
            check()
        assert re.search(rf"; BKCTL_\w+_{re.escape(count)}$", str(caught.value)), str(caught.value)
    both = client_of(tmp_path, toml=toml, BKCTL_BOOKIE_CLIENT_SASL_PASSWORD="sesame-1").sasl
    assert both is not None
    with pytest.raises(ConfigurationError, match=r"jaas_file: remove one of them; BKCTL_\w+_SASL_PASSWORD is set$"):
        client_logins(both, {})


def test_a_login_at_zookeeper_by_variables_alone() -> None:
    environment = {"BKCTL_ZOOKEEPER_SASL_USERNAME": "u", "BKCTL_ZOOKEEPER_SASL_PASSWORD": "sesame-1"}
    sasl = resolve_settings(read_sources(GlobalFlags(config="/dev/null"), environment)).zookeeper.sasl
    assert sasl is not None
    assert (sasl.username, sasl.password) == ("u", "env:BKCTL_ZOOKEEPER_SASL_PASSWORD")


def test_a_bookie_conf_is_enough_for_clients(tmp_path: Path) -> None:
    stores = (
        "tlsTrustStore=/ca.pem\ntlsTrustStoreType=PEM\ntlsKeyStore=/key.pem\ntlsKeyStoreType=PEM\n"
        "tlsCertificatePath=/cert.pem\ntlsKeyStorePasswordPath=/pw\ntlsEnabledProtocols=TLSv1.2,TLSv1.1\n"
    )
    plain = ClientTlsConfig(ca_file="/ca.pem", protocols=("TLSv1.2",), is_hostname_checked=False, **NOT_SHOWN)
    assert client_of(tmp_path, conf=TLS + stores).tls == plain
    mutual = client_of(tmp_path, conf=TLS + stores + "tlsClientAuthentication=true\n").tls
    assert mutual is not None
    assert (mutual.key_file, mutual.certificate_file, mutual.key_password) == ("/key.pem", "/cert.pem", "file:/pw")


def test_keys_of_clients_come_before_those_of_the_bookie(tmp_path: Path) -> None:
    conf = (
        TLS + "tlsTrustStore=/a\nclientTrustStore=/b\nclientTrustStoreType=PKCS12\n"
        "clientTrustStorePasswordPath=/p\ntlsHostnameVerificationEnabled=true\n"
    )
    assert client_of(tmp_path, conf=conf + "tlsKeyStore=/k\n").tls == ClientTlsConfig(
        ca_file="/b",
        ca_type=StoreType.PKCS12,
        ca_password="file:/p",
        is_hostname_checked=True,
        **NOT_SHOWN | {"ca_java_key": "clientTrustStore"},
    )


def test_logins_by_the_sections_of_a_jaas_file(tmp_path: Path) -> None:
    """Commands and bookies use another section than the daemon, as in Java; the file itself is no key of Java."""
    keys = "saslJaasClientSectionName=C\nbookkeeper.sasl.servicename=s\n"
    conf = f"{BOOKIE}clientAuthProviderFactoryClass={CLIENT_SASL}\n{keys}"
    environment = {"BKCTL_BOOKIE_CLIENT_SASL_JAAS_FILE": "/jaas", "BKCTL_ZOOKEEPER_SASL_JAAS_FILE": "/jaas"}
    for line, section in (("", "Auditor"), ("saslJaasAuditorSectionName=A\n", "A")):
        sources = read_sources(files(tmp_path, "", conf + line), environment)
        login = ClientLoginConfig(jaas_file="/jaas", jaas_section="C", jaas_daemon_section=section, service="s")
        settings, daemon = resolve_settings(sources), resolve_daemon_settings(sources, DaemonFlags()).config
        assert without_note(settings.client.security.sasl) == login
        assert without_note(resolve_bookie_settings(sources, BookieFlags()).config.client.sasl) == login
        assert without_note(daemon.client.security.sasl) == msgspec.structs.replace(login, jaas_section=section)
        assert without_note(settings.zookeeper.sasl) == ZooKeeperSaslConfig(jaas_file="/jaas")


def test_suites_have_javas_names(tmp_path: Path) -> None:
    """Compared with OpenSSL's own list."""
    command = ["openssl", "ciphers", "-stdname", "ALL"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    names = dict(line.split()[:3:2] for line in listed.splitlines())
    exchanges, ciphers = "ECDHE_RSA|ECDHE_ECDSA|DHE_RSA|RSA", "AES_[0-9]+_(GCM|CBC)|CHACHA20_POLY1305"
    known = re.compile(f"TLS_({exchanges})_WITH_({ciphers})_SHA[0-9]*")
    java = [name for name in names if known.fullmatch(name)]
    assert len(java) > 20
    for suites, found in (
        (java, tuple(names[each] for each in java)),
        (["ECDHE-RSA-AES128-GCM-SHA256", "SSL_X"], ("ECDHE-RSA-AES128-GCM-SHA256", "SSL_X")),
        (["TLS_AES_128_GCM_SHA256", java[0]], (names[java[0]],)),
    ):
        tls = client_of(tmp_path, conf=f"{TLS}tlsEnabledCipherSuites={','.join(suites)}\n").tls
        assert tls is not None
        assert (tls.ciphers, tls.protocols) == (found, ())
    only_1_3 = client_of(tmp_path, conf=f"{TLS}tlsEnabledCipherSuites=TLS_AES_128_GCM_SHA256\n").tls
    assert only_1_3 is not None
    assert (only_1_3.ciphers, only_1_3.protocols) == ((), ("TLSv1.3",))


def test_commands_show_settings_but_no_secrets(tmp_path: Path) -> None:
    login = '[bookie_client.sasl]\nusername = "u"\npassword = "sesame-0"\n'
    files(tmp_path, login + '[bookie_client.tls]\nca_file = "/ca"', "")
    flags = ("--config", str(tmp_path / "bkctl.toml"))
    shown = run_bkctl(
        *("config", "show", *flags, "-o", "json"),
        BKCTL_BOOKIE_CLIENT_TLS_KEY_PASSWORD="sesame-1",
        BKCTL_ZOOKEEPER_SASL_USERNAME="u",
        BKCTL_ZOOKEEPER_SASL_PASSWORD="sesame-2",
    )
    values = {each["name"]: each["value"] for each in json.loads(shown.stdout)["items"]}
    assert values["bookie_client.tls.ca_file"] == "/ca"
    assert values["bookie_client.sasl.username"] == "u"
    assert values["bookie_client.tls.key_password"] == "env:BKCTL_BOOKIE_CLIENT_TLS_KEY_PASSWORD"
    assert "sesame" not in shown.stdout + shown.stderr
    explained = run_bkctl("config", "explain", "bookie_client.sasl.password", *flags)
    assert (explained.exit_code, "sesame" in explained.stdout) == (0, False)


def test_a_bookie_by_javas_keys(tmp_path: Path) -> None:
    stores = "tlsKeyStore=/k.p12\ntlsKeyStoreType=PKCS12\ntlsCertificatePath=/ignored\ntlsTrustStore=/ca\n"
    found = bookie_of(tmp_path, conf=TLS + stores + ROLES + "authorizedRoles=a,b\ntlsClientAuthentication=true\n")
    assert found.tls == BookieTlsConfig(
        key_file="/k.p12",
        key_type=StoreType.PKCS12,
        ca_file="/ca",
        ca_type=StoreType.PKCS12,
        is_client_certificate_required=True,
        authorized_roles=("a", "b"),
        **JAVA_KEYS,
    )
    found = bookie_of(tmp_path, conf=SASL + "saslJaasClientAllowedIds=.*\n", BKCTL_BOOKIE_SASL_JAAS_FILE="/jaas")
    assert (found.tls, without_note(found.sasl)) == (None, BookieLoginConfig(jaas_file="/jaas", allowed_ids=".*"))


@pytest.mark.parametrize(
    ("conf", "sentence"),
    [
        ("tlsProviderFactoryClass=a.B\n", "tlsProviderFactoryClass = a.B: bkctl has only org.apache.bookkeeper.tls"),
        ("bookieAuthProviderFactoryClass=a.B\n", "bookieAuthProviderFactoryClass = a.B: bkctl has only "),
        (ROLES + "authorizedRoles=a\n", "roles need TLS"),
        (TLS + ROLES, "needs the roles: set authorizedRoles"),
        ("authorizedRoles=a\n", "authorizedRoles. needs bookieAuthProviderFactoryClass="),
        (TLS + "tlsClientAuthentication=yess\n", "tlsClientAuthentication = yess: neither true nor false"),
    ],
)
def test_protection_that_a_bookie_would_not_give_is_refused(tmp_path: Path, conf: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        bookie_of(tmp_path, conf=conf)


@pytest.mark.parametrize(
    ("conf", "sentence"),
    [
        (
            TLS + "tlsHostnameVerificationEnabled=yess\n",
            "tlsHostnameVerificationEnabled = yess: neither true nor false",
        ),
        (TLS + "tlsClientAuthentication=1\n", "tlsClientAuthentication = 1: neither true nor false"),
        (f"clientAuthProviderFactoryClass={ROLES.partition('=')[2]}", "bkctl has only org.apache.bookkeeper.sasl"),
    ],
)
def test_protection_that_a_client_would_not_use_is_refused(tmp_path: Path, conf: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        client_of(tmp_path, conf=conf)


@pytest.mark.parametrize(
    ("toml", "sentence"),
    [
        ('[client.security.tls]\nca_file = "/ca"\n', "belongs in .bookie_client.tls."),
        ('[bookie.client.tls]\nca_file = "/ca"\n', "belongs in .bookie_client."),
        ('[bookie_client.tls]\nca_java_key = "tlsTrustStore"\n', "unknown name 'ca_java_key'"),
    ],
)
def test_there_is_one_name_for_each_setting(tmp_path: Path, toml: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        client_of(tmp_path, toml=toml)


@pytest.mark.parametrize(
    ("conf", "sentence"),
    [
        ("", "a bookie cannot use TLS without a certificate: set tlsKeyStore and tlsCertificatePath"),
        ("tlsCertificatePath=/cert.pem\n", "tlsCertificatePath (/cert.pem) has no effect without tlsKeyStore"),
        (
            "tlsClientAuthentication=true\n",
            "certificates of clients cannot be verified without the CA that signs them: set tlsTrustStore",
        ),
    ],
)
def test_files_that_a_java_file_does_not_name_are_missing_by_its_keys(tmp_path: Path, conf: str, sentence: str) -> None:
    found = bookie_of(tmp_path, conf=TLS + conf).tls
    assert found is not None
    with pytest.raises(ConfigurationError) as caught:
        bookie_contexts(found, {})
    assert str(caught.value) == sentence


def test_versions_that_openssl_no_longer_has_are_named(tmp_path: Path) -> None:
    place = f"{tmp_path}/bk.conf:5 (tlsEnabledProtocols)"
    for versions, refused in (
        ("TLSv1.1", "TLSv1.1 is"),
        ("TLSv1.2,TLSv9", "TLSv9 is"),
        ("TLSv1,TLSv1.1", "TLSv1, TLSv1.1 are"),
    ):
        for settings_of_side in (client_of, bookie_of):
            with pytest.raises(ConfigurationError) as caught:
                settings_of_side(tmp_path, conf=f"{TLS}tlsEnabledProtocols={versions}\n")
            assert str(caught.value) == f"{place}: {refused} not supported (use TLSv1.2, TLSv1.3)"
    flags = files(tmp_path, "", f"{BOOKIE}{TLS}tlsEnabledProtocols=TLSv1.2,TLSv1.1\n")
    loaded = resolve_bookie_settings(read_sources(flags, {}), BookieFlags())
    assert loaded.config.tls is not None
    assert loaded.config.tls.protocols == ("TLSv1.2",)
    assert loaded.warnings == (f"{place}: TLSv1.1 is not supported and left out (use TLSv1.2, TLSv1.3)",)


def test_values_that_only_the_bookie_can_judge_are_refused_with_their_place(tmp_path: Path) -> None:
    authority = TestAuthority(tmp_path)
    authority.issue("bookie")
    own = f"tlsKeyStore={authority.file('bookie.key')}\ntlsKeyStoreType=PEM\ntlsCertificatePath={tmp_path}/bookie.pem\n"
    (tmp_path / "jaas").write_text('Bookie { Digest required user_a="b"; };')
    for conf, place in (
        (f"permittedStartupUsers=x\n{TLS}{own}", "4 (permittedStartupUsers)"),
        (f"tlsEnabledCipherSuites=TLS_FOO\n{TLS}{own}", "4 (tlsEnabledCipherSuites)"),
        (f"saslJaasClientAllowedIds=*bad(\n{SASL}", "4 (saslJaasClientAllowedIds)"),
    ):
        flags = files(tmp_path, "", BOOKIE + conf)
        words = ("--conf", str(flags.conf), "--config", str(flags.config))
        refused = run_bkctl("bookie", "start", "--dry-run", *words, BKCTL_BOOKIE_SASL_JAAS_FILE=f"{tmp_path}/jaas")
        assert (refused.exit_code, f" {flags.conf}:{place} " in refused.stderr) == (1, True), refused


def test_a_key_without_a_certificate_is_missing_by_the_name_of_its_own_source(tmp_path: Path) -> None:
    authority = TestAuthority(tmp_path)
    authority.issue("bookie")
    key = authority.file("bookie.key")
    of_java = f"{TLS}tlsKeyStore={key}\ntlsKeyStoreType=PEM\n"
    of_toml = f'[bookie.tls]\nkey_file = "{key}"\n'
    for toml, conf, setting in (("", of_java, "tlsCertificatePath"), (of_toml, TLS, "certificate_file")):
        found = bookie_of(tmp_path, toml=toml, conf=conf).tls
        assert found is not None
        with pytest.raises(ConfigurationError) as caught:
            bookie_contexts(found, {})
        assert str(caught.value) == f"{key} contains a key without a certificate: set {setting}"


def test_files_of_both_sources_are_missing_by_the_name_of_their_own(tmp_path: Path) -> None:
    conf = TLS + f"tlsCertificatePath={tmp_path}/none\ntlsClientAuthentication=true\n"
    authority = TestAuthority(tmp_path)
    authority.issue("a")
    toml = f'[bookie_client.tls]\nca_file = "{tmp_path}/ca.pem"\nkey_file = "{tmp_path}/{{}}"\n'
    for key, sentence in (
        ("a.key", f"cannot read {tmp_path}/none (tlsCertificatePath): No such file or directory"),
        ("b.key", f"cannot read {tmp_path}/b.key (key_file): No such file or directory"),
    ):
        found = client_of(tmp_path, toml=toml.format(key), conf=conf).tls
        assert found is not None
        with pytest.raises(ConfigurationError) as caught:
            client_contexts(found, {})
        assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("conf", "sentence"),
    [
        ("", "it requires a client certificate: set tlsClientAuthentication=true, tlsCertificatePath and tlsKeyStore"),
        ("clientKeyStore=/k.p12\n", "it requires a client certificate: set tlsClientAuthentication=true"),
        (
            "tlsClientAuthentication=true\ntlsKeyStore=/k.p12\n",
            "it rejects the certificate of this client, /k.p12 (tlsKeyStore): expired",
        ),
    ],
)
def test_a_bookies_refusal_names_the_keys_of_a_java_file(tmp_path: Path, conf: str, sentence: str) -> None:
    error = ssl.SSLError()
    error.reason = "SSLV3_ALERT_CERTIFICATE_EXPIRED"
    assert alert_sentence(error, client_of(tmp_path, conf=TLS + conf).tls) == sentence


def test_a_file_that_asks_for_a_login_never_leads_to_a_connection_without(tmp_path: Path, metadata_uri: str) -> None:
    conf = tmp_path / "bk.conf"
    sasl = f"clientAuthProviderFactoryClass={CLIENT_SASL}"
    conf.write_text(f"metadataServiceUri={metadata_uri}\n{sasl}\n")
    assert run_bkctl("cluster", "init", "-u", metadata_uri).exit_code == 0
    read = run_bkctl("ledger", "read", "7", "--conf", str(conf))
    assert read.exit_code == 13
    assert read.stderr == (
        "error: a login with DIGEST-MD5 needs bookie_client.sasl.username and bookie_client.sasl.password, or both in "
        "a JAAS file (bookie_client.sasl.jaas_file)\n"
    )


UNUSED = "tlsProvider=JDK\ntlsTrustStore=/ca.pem\ntlsTrustStoreType=PEM\ntlsClientAuthentication=true\n"


def test_tls_that_no_key_switches_on_is_named_once(tmp_path: Path) -> None:
    flags = files(tmp_path, "", BOOKIE.replace("//h/", "//127.0.0.1:1/") + UNUSED)
    words = ("--conf", str(flags.conf), "--config", str(flags.config))
    said = (
        f"warning: {flags.conf}: tlsTrustStore, tlsClientAuthentication have no effect without "
        f"{TLS.strip()}: connections are in clear text"
    )
    for command in (("bookie", "start", "--dry-run"), ("autorecovery", "start", "--dry-run"), ("config", "show")):
        result = run_bkctl(*command, *words)
        assert (result.exit_code, result.stderr.splitlines().count(said)) == (0, 1), result
        assert "OpenSSL" not in result.stderr
    checked = run_bkctl("bookie", "init", "--check", *words, "--timeout", "1s")
    assert checked.stderr.splitlines().count(said) == 1, checked.stderr
    switched_on = run_bkctl("config", "show", *words, BKCTL_BOOKIE_CLIENT_TLS_CA_FILE="/ca.pem")
    assert "clear text" not in switched_on.stderr
    authority = TestAuthority(tmp_path)
    authority.issue("bookie")
    of_bookie = run_bkctl(
        *("bookie", "start", "--dry-run", *words),
        BKCTL_BOOKIE_TLS_KEY_FILE=str(authority.file("bookie.key")),
        BKCTL_BOOKIE_TLS_CERTIFICATE_FILE=str(authority.file("bookie.pem")),
    )
    assert (of_bookie.exit_code, "clear text" in of_bookie.stderr) == (0, False), of_bookie.stderr
    assert "tlsProvider has no effect (TLS comes from OpenSSL" in of_bookie.stderr
