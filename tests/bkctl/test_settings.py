"""Flags beat environment, environment beats files, files beat defaults."""

from __future__ import annotations

from pathlib import Path

import pytest

from bkctl.commands.config import ColorMode, GlobalFlags, OutputForm, Settings
from bkctl.commands.errors import InvalidArgumentError
from bkctl.runtime.config import ClientConfig, LayoutConfig, ZooKeeperConfig, ZooKeeperSaslConfig, ZooKeeperTlsConfig
from bkctl.runtime.errors import ConfigurationError
from bkctl.settings import java_metadata_uri, read_sources, resolve_metadata_uri, resolve_settings

TOML = """
metadata_uri = "zk://toml/ledgers"
output = "yaml"
timeout = "3s"

[contexts.prod]
metadata_uri = "zk://prod/ledgers"

[zookeeper]
session_timeout_ms = 7000

[client]
add_timeout_s = 2.5
"""


def settings_of(flags: GlobalFlags | None = None, /, **environment: str) -> Settings:
    return resolve_settings(read_sources(flags or GlobalFlags(), environment))


def write(tmp_path: Path, name: str, text: str) -> str:
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def test_defaults() -> None:
    settings = settings_of()
    assert settings == Settings(zookeeper=ZooKeeperConfig(operation_timeout_s=10.0), client=ClientConfig())


def test_each_source_of_the_metadata_uri_beats_those_behind_it(tmp_path: Path) -> None:
    toml = write(tmp_path, "c.toml", TOML)
    conf = write(tmp_path, "bk.conf", "metadataServiceUri=zk://conf/ledgers\n")
    flags = GlobalFlags(config=toml, conf=conf)

    def uri(flags: GlobalFlags, **environment: str) -> tuple[str | None, str]:
        return resolve_metadata_uri(read_sources(flags, environment))

    assert uri(GlobalFlags(config=toml)) == ("zk://toml/ledgers", toml)
    assert uri(flags) == ("zk://conf/ledgers", conf)
    assert uri(flags, BKCTL_CONTEXT="prod") == ("zk://prod/ledgers", "context prod")
    environment = {"BKCTL_CONTEXT": "prod", "BKCTL_METADATA_URI": "zk://env/ledgers"}
    assert uri(flags, **environment) == ("zk://env/ledgers", "BKCTL_METADATA_URI")
    by_context = GlobalFlags(config=toml, cluster="prod")
    assert uri(by_context, **environment) == ("zk://prod/ledgers", "context prod")
    by_flag = GlobalFlags(config=toml, cluster="prod", metadata_uri="zk://flag/ledgers")
    assert uri(by_flag, **environment) == ("zk://flag/ledgers", "--metadata-uri")


def test_an_empty_uri_does_not_fall_through_to_another_cluster() -> None:
    with pytest.raises(InvalidArgumentError, match="--metadata-uri is empty"):
        settings_of(GlobalFlags(metadata_uri=""), BKCTL_METADATA_URI="zk://other/ledgers")


def test_files_named_by_the_environment(tmp_path: Path) -> None:
    conf = write(tmp_path, "bk.conf", "metadataServiceUri=zk://conf/ledgers\nzkTimeout=4000\n")
    for name in ("BKCTL_CONF", "BOOKIE_CONF"):
        settings = settings_of(**{name: conf})
        assert settings.metadata_uri == "zk://conf/ledgers"
        assert settings.zookeeper.session_timeout_ms == 4000


def test_toml_of_the_user_is_found(tmp_path: Path) -> None:
    (tmp_path / "bkctl").mkdir()
    write(tmp_path / "bkctl", "config.toml", TOML)
    settings = settings_of(XDG_CONFIG_HOME=str(tmp_path))
    assert settings.metadata_uri == "zk://toml/ledgers"
    assert settings.output is OutputForm.YAML
    assert settings.timeout_s == 3.0
    assert settings.zookeeper == ZooKeeperConfig(session_timeout_ms=7000, operation_timeout_s=3.0)
    assert settings.client == ClientConfig(add_timeout_s=2.5)


@pytest.mark.parametrize(("limit", "accepted"), [(1_000_000, 16 * 1024 * 1024), (20_000_000, 20_000_000)])
def test_the_frame_limit_of_the_bookies_limits_writers_and_never_what_is_accepted(
    tmp_path: Path, limit: int, accepted: int
) -> None:
    conf = write(tmp_path, "bk.conf", f"metadataServiceUri=zk://conf/ledgers\nnettyMaxFrameSizeBytes={limit}\n")
    client = settings_of(BKCTL_CONF=conf).client
    assert (client.writer_frame_bytes_max, client.frame_bytes_max) == (limit, accepted)


def test_flags_and_environment_beat_the_toml_file(tmp_path: Path) -> None:
    toml = write(tmp_path, "c.toml", TOML)
    environment = {"BKCTL_OUTPUT": "csv", "BKCTL_TIMEOUT": "4s", "BKCTL_YES": "true", "BKCTL_NO_PROGRESS": "1"}
    settings = settings_of(GlobalFlags(config=toml), **environment)
    assert (settings.output, settings.timeout_s) == (OutputForm.CSV, 4.0)
    assert settings.assume_yes
    assert not settings.has_progress
    settings = settings_of(GlobalFlags(config=toml, output=OutputForm.JSON, timeout="500ms"), **environment)
    assert (settings.output, settings.timeout_s) == (OutputForm.JSON, 0.5)


def test_flags_behind_the_command_beat_those_before_it() -> None:
    before = GlobalFlags(output=OutputForm.JSON, debug=True, color=ColorMode.NEVER)
    after = GlobalFlags(output=OutputForm.CSV)
    assert after.over(before) == GlobalFlags(output=OutputForm.CSV, debug=True, color=ColorMode.NEVER)


@pytest.mark.parametrize(
    ("toml", "sentence"),
    [
        ("metadata_url = 'x'", "metadata_url"),
        ("[replicaton]\nlock_wait_s = 1", r"c\.toml: unknown name 'replicaton' .*; did you mean 'replication'\?"),
        ("client = 1", r"c\.toml: client must be a table: \[client\]"),
        (
            "[contexts.a]\nmetadata_url = 'x'",
            r"c\.toml: settings of contexts\.a: unknown name 'metadata_url' .*; did you mean 'metadata_uri'\?",
        ),
        ("[contexts.a]\nmetadata_uri = 5", r"c\.toml: contexts\.a\.metadata_uri = 5: expected str, got int"),
        ("[contexts.a]\nread_only = true", r"c\.toml: \[contexts\.a\] has no metadata_uri"),
        ("contexts.a = 'x'", r"c\.toml: contexts\.a must be a table"),
        ("[client]\nadd_timeout = 1", "unknown name 'add_timeout'"),
        ("[client]\nadd_timeout_s = -1", r"client\.add_timeout_s = -1: must be above 0"),
        ("output = 'xml'", r"c\.toml: output = xml: give one of"),
        (
            "[bookie_client.tls]\nkey_type = 'JKS'",
            r"key_type = JKS: give one of PEM, PKCS12; only Java .*: keytool ",
        ),
        ("not toml", "c.toml"),
    ],
)
def test_mistakes_in_toml_are_named(tmp_path: Path, toml: str, sentence: str) -> None:
    path = write(tmp_path, "c.toml", toml)
    with pytest.raises(ConfigurationError, match=sentence):
        settings_of(GlobalFlags(config=path))


def test_only_names_that_a_file_may_have_are_listed(tmp_path: Path) -> None:
    path = write(tmp_path, "c.toml", "[xyz]")
    known = r"metadata_uri, context, output, color, timeout, trash_retention_days, admin_token_hosts, .*, bookie\)$"
    with pytest.raises(ConfigurationError, match=rf"unknown name 'xyz' \(known: {known}"):
        settings_of(GlobalFlags(config=path))


def test_unknown_context_tells_which_there_are(tmp_path: Path) -> None:
    path = write(tmp_path, "c.toml", TOML)
    with pytest.raises(ConfigurationError, match=r"context 'test' not found in .*c\.toml \(defined: prod\)"):
        settings_of(GlobalFlags(config=path, cluster="test"))


def test_bad_values_of_the_environment_are_named() -> None:
    with pytest.raises(InvalidArgumentError, match="BKCTL_OUTPUT=xml"):
        settings_of(BKCTL_OUTPUT="xml")
    with pytest.raises(ConfigurationError, match="BKCTL_YES=perhaps"):
        settings_of(BKCTL_YES="perhaps")
    with pytest.raises(InvalidArgumentError, match="'soon' is not a duration"):
        settings_of(BKCTL_TIMEOUT="soon")


@pytest.mark.parametrize(
    ("conf", "uri"),
    [
        ("metadataServiceUri=zk+hierarchical://a:1;b:2/l\n", "zk+hierarchical://a:1;b:2/l"),
        ("zkServers=a:1,b:2\n", "zk+null://a:1;b:2/ledgers"),
        ("zkServers=a:1\nzkLedgersRootPath=/bk\n", "zk+null://a:1/bk"),
        (
            "zkServers=a:1\nledgerManagerFactoryClass=org.apache.bookkeeper.meta.LongHierarchicalLedgerManagerFactory\n",
            "zk+longhierarchical://a:1/ledgers",
        ),
        ("zkServers=a:1,b:2/chroot\n", "zk+null://a:1;b:2/chroot/ledgers"),
        ("metadataServiceUri=\nzkServers=a:1\n", "zk+null://a:1/ledgers"),
        ("metadataServiceUri=zk://u/l\nzkServers=a:1\nledgerManagerFactoryClass=x\n", "zk://u/l"),
        ("zkServers=\n", None),
        ("bookiePort=1\n", None),
    ],
)
def test_metadata_uri_as_java_derives_it(tmp_path: Path, conf: str, uri: str | None) -> None:
    sources = read_sources(GlobalFlags(conf=write(tmp_path, "bk.conf", conf)), {})
    assert sources.conf is not None
    assert java_metadata_uri(sources.conf) == uri


@pytest.mark.parametrize("factory", ["org.apache.bookkeeper.meta.LegacyHierarchicalLedgerManagerFactory", "Flat"])
def test_a_factory_class_that_no_uri_names_is_refused(tmp_path: Path, factory: str) -> None:
    conf = write(tmp_path, "bk.conf", f"zkServers=a:1\nledgerManagerFactoryClass={factory}\n")
    with pytest.raises(ConfigurationError, match=r"bk\.conf: ledgerManagerFactoryClass = .*zk\+null://"):
        settings_of(GlobalFlags(conf=conf))


def test_old_settings_of_the_ledger_layout(tmp_path: Path) -> None:
    text = "zkServers=a:1\nledgerManagerType=flat\nallowShadedLedgerManagerFactoryClass=true\n"
    settings = settings_of(GlobalFlags(conf=write(tmp_path, "bk.conf", text)))
    assert settings.zookeeper.layout == LayoutConfig(ledger_manager_type="flat", is_shaded_factory_allowed=True)
    assert (
        settings_of(GlobalFlags(conf=write(tmp_path, "c.conf", "zkServers=a:1\n"))).zookeeper.layout == LayoutConfig()
    )


@pytest.mark.parametrize("values", [["zk://a:1,b:2/ledgers"], ["zk://a:1/ledgers", "zk://b:2/ledgers"]])
def test_two_values_of_the_metadata_uri_are_refused_with_the_cure(tmp_path: Path, values: list[str]) -> None:
    conf = write(tmp_path, "bk.conf", "".join(f"metadataServiceUri={value}\n" for value in values))
    with pytest.raises(ConfigurationError, match=r"has a comma or occurs twice.*separate the servers by semicolons"):
        settings_of(GlobalFlags(conf=conf))


SECURE = """
[contexts.prod]
metadata_uri = "zk://prod/ledgers"

[contexts.prod.zookeeper]
digest = "file:/etc/prod"
tls = { ca_file = "/etc/ca.pem", certificate_file = "/etc/me.pem" }

[zookeeper]
has_secure_acl = true
scan_operations_per_s_max = 100
sasl = { username = "bkctl", password = "file:/etc/secret" }
"""


def test_secure_access_of_a_context(tmp_path: Path) -> None:
    toml = write(tmp_path, "c.toml", SECURE)
    plain = settings_of(GlobalFlags(config=toml)).zookeeper
    assert (plain.digest, plain.tls, plain.scan_operations_per_s_max) == (None, None, 100.0)
    assert plain.sasl == ZooKeeperSaslConfig(username="bkctl", password="file:/etc/secret")
    prod = settings_of(GlobalFlags(config=toml, cluster="prod")).zookeeper
    assert prod.digest == "file:/etc/prod"
    assert prod.tls == ZooKeeperTlsConfig(ca_file="/etc/ca.pem", certificate_file="/etc/me.pem")
    assert prod.sasl == plain.sasl


def test_secrets_of_the_environment_are_referred_to(tmp_path: Path) -> None:
    toml = write(tmp_path, "c.toml", SECURE)
    secrets = {
        "BKCTL_ZOOKEEPER_DIGEST": "me:sesame",
        "BKCTL_ZOOKEEPER_SASL_PASSWORD": "sesame",
        "BKCTL_ZOOKEEPER_KEY_PASSWORD": "sesame",
    }
    zookeeper = settings_of(GlobalFlags(config=toml, cluster="prod"), **secrets).zookeeper
    assert zookeeper.digest == "env:BKCTL_ZOOKEEPER_DIGEST"
    assert zookeeper.sasl is not None
    assert zookeeper.sasl.password == "env:BKCTL_ZOOKEEPER_SASL_PASSWORD"
    assert zookeeper.tls is not None
    assert zookeeper.tls.key_password == "env:BKCTL_ZOOKEEPER_KEY_PASSWORD"
    assert "sesame" not in repr(zookeeper)
    assert settings_of(**secrets).zookeeper.tls is None


@pytest.mark.parametrize(
    "line", ['digest = ["me:sesame"]', "digest = 123456", 'sasl = "me:sesame"', "sasl = { password = 123456 }"]
)
def test_an_error_message_shows_no_secret(tmp_path: Path, line: str) -> None:
    toml = write(tmp_path, "c.toml", f"[zookeeper]\n{line}\n")
    with pytest.raises(ConfigurationError, match=r"c\.toml: zookeeper\.\w+(\.password)?: expected ") as refused:
        settings_of(GlobalFlags(config=toml))
    assert "sesame" not in str(refused.value)
    assert "123456" not in str(refused.value)


def test_a_typo_inside_a_table_is_named(tmp_path: Path) -> None:
    toml = write(tmp_path, "c.toml", '[zookeeper.tls]\nca_fil = "x"\n')
    with pytest.raises(ConfigurationError, match=r"zookeeper\.tls: unknown name 'ca_fil'"):
        settings_of(GlobalFlags(config=toml))


def test_the_request_rate(tmp_path: Path) -> None:
    conf = write(tmp_path, "bk.conf", "zkRequestRateLimit=12.5\n")
    assert settings_of(GlobalFlags(conf=conf)).zookeeper.scan_operations_per_s_max == 12.5
    assert settings_of(GlobalFlags(conf=conf, metadata_rate=3.0)).zookeeper.scan_operations_per_s_max == 3.0
    assert settings_of(GlobalFlags(metadata_rate=0.0)).zookeeper.scan_operations_per_s_max == 0.0
    off = write(tmp_path, "off.conf", "zkRequestRateLimit=0\n")
    assert settings_of(GlobalFlags(conf=off)).zookeeper == settings_of().zookeeper
    wrong = write(tmp_path, "wrong.conf", "zkRequestRateLimit=many\n")
    with pytest.raises(ConfigurationError, match="zkRequestRateLimit = many: not a decimal number"):
        settings_of(GlobalFlags(conf=wrong))
    for rate in (float("inf"), float("nan")):
        with pytest.raises(InvalidArgumentError, match=f"--zk-rate {rate}: not a valid rate"):
            settings_of(GlobalFlags(metadata_rate=rate))
