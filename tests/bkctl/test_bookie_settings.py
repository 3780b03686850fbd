"""A bookie's settings from flags, environment, bk_server.conf and TOML."""

from __future__ import annotations

from pathlib import Path

import pytest

from bkctl.commands.config import GlobalFlags
from bkctl.commands.context import BookieFlags, BookieSettings, LogFormat, LogSettings
from bkctl.commands.errors import InvalidArgumentError
from bkctl.runtime.config import ZooKeeperConfig
from bkctl.runtime.errors import ConfigurationError
from bkctl.runtime.log_level import LogLevel
from bkctl.runtime.security_config import AdminTlsConfig, StoreType
from bkctl.server_settings import DATA_DIRECTORY, resolve_bookie_settings
from bkctl.settings import read_sources

CONF = """
metadataServiceUri=zk+hierarchical://conf/ledgers
bookieId=bookie-a
bookiePort=3200
advertisedAddress=host.example
allowLoopback=true
forceReadOnlyBookie=false
listeningInterface=eth7
useHostNameAsBookieID=true
useShortHostName=yes
allowStorageExpansion=true
journalDirectories=/j1,/j2
ledgerDirectories=/l1,/l2
indexDirectories=/i1,/i2
flushInterval=5000
journalMaxSizeMB=100
journalPreAllocSizeMB=8
journalAlignmentSize=4096
journalMaxBackups=2
logSizeLimit=1000000
dbStorage_writeCacheMaxSizeMb=64
dbStorage_readAheadCacheMaxSizeMb=32
nettyMaxFrameSizeBytes=1000000
zkTimeout=6000
someKeyOfAnotherRelease=1
"""


def resolve(
    flags: BookieFlags | None = None, roots: GlobalFlags | None = None, /, **environment: str
) -> BookieSettings:
    return resolve_bookie_settings(read_sources(roots or GlobalFlags(), environment), flags or BookieFlags())


def write(tmp_path: Path, name: str, text: str) -> str:
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def test_nothing_configured_is_a_cluster_of_its_own() -> None:
    settings = resolve()
    assert settings.data_directory == DATA_DIRECTORY
    assert settings.config.metadata_uri == ""
    assert settings.config.advertised_address == "127.0.0.1"
    assert settings.config.is_loopback_allowed
    assert settings.config.storage.journal_directories == (f"{DATA_DIRECTORY}/journal",)
    assert settings.config.storage.ledger_directories == (f"{DATA_DIRECTORY}/ledgers",)


def test_flags_alone_do_not_configure_a_cluster() -> None:
    settings = resolve(BookieFlags(port=4000, journal_directories=("/j",)))
    assert settings.data_directory == DATA_DIRECTORY
    assert settings.config.port == 4000
    assert settings.config.storage.journal_directories == ("/j",)


@pytest.mark.parametrize("text", ["bookiePort=3181\n", "# nothing at all\n"])
def test_a_configuration_file_without_cluster_never_means_an_embedded_one(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigurationError, match="no cluster specified"):
        resolve(None, GlobalFlags(conf=write(tmp_path, "bk.conf", text)))
    with pytest.raises(ConfigurationError, match="no cluster specified"):
        resolve(BKCTL_CONFIG=write(tmp_path, "c.toml", ""))


def test_toml_of_the_user_without_bookie_settings_is_no_configuration(tmp_path: Path) -> None:
    (tmp_path / "bkctl").mkdir()
    path = tmp_path / "bkctl" / "config.toml"
    path.write_text('output = "json"\n')
    assert resolve(XDG_CONFIG_HOME=str(tmp_path)).data_directory == DATA_DIRECTORY
    path.write_text("[bookie]\nport = 4000\n")
    with pytest.raises(ConfigurationError, match="no cluster specified"):
        resolve(XDG_CONFIG_HOME=str(tmp_path))


def test_a_java_configuration_file(tmp_path: Path) -> None:
    settings = resolve(None, GlobalFlags(conf=write(tmp_path, "bk.conf", CONF)))
    config = settings.config
    assert settings.data_directory is None
    assert config.metadata_uri == "zk+hierarchical://conf/ledgers"
    assert (config.bookie_id, config.port, config.advertised_address) == ("bookie-a", 3200, "host.example")
    assert config.is_loopback_allowed
    assert not config.is_read_only
    assert config.listening_interface == "eth7"
    assert (config.is_host_name_id, config.is_host_name_short, config.is_storage_expansion_allowed) == (
        True,
        True,
        True,
    )
    assert config.flush_interval_s == 5.0
    assert config.frame_bytes_max == 1_000_000
    assert config.zookeeper == ZooKeeperConfig(session_timeout_ms=6000)
    storage = config.storage
    assert storage.journal_directories == ("/j1", "/j2")
    assert storage.ledger_directories == ("/l1", "/l2")
    assert storage.index_directories == ("/i1", "/i2")
    assert storage.journal.size_bytes_max == 100 << 20
    assert storage.journal.preallocation_bytes == 8 << 20
    assert storage.journal.alignment_bytes == 4096
    assert storage.journal.backup_count_max == 2
    assert storage.engine.entry_log.size_bytes_max == 1_000_000
    assert storage.engine.entry_log.entry_bytes_max == 1_000_000
    assert storage.engine.memtable_bytes_max == 32 << 20, "Java's value is the sum over two ledger directories"
    assert storage.engine.read_cache_bytes_max == 16 << 20


def test_flags_beat_environment_beats_java_file_beats_toml(tmp_path: Path) -> None:
    conf = write(tmp_path, "bk.conf", "metadataServiceUri=zk://c/ledgers\nbookiePort=2\nledgerDirectories=/conf\n")
    toml = write(tmp_path, "c.toml", '[bookie]\nport = 1\nflush_interval_s = 3\njournal_directories = ["/toml"]\n')
    roots = GlobalFlags(conf=conf, config=toml)
    config = resolve(None, roots).config
    assert (config.port, config.flush_interval_s) == (2, 3.0)
    assert config.storage.journal_directories == ("/toml",)
    assert config.storage.ledger_directories == ("/conf",)
    environment = {"BKCTL_BOOKIE_PORT": "3", "BKCTL_BOOKIE_LEDGER_DIRS": "/env1, /env2", "BKCTL_BOOKIE_ID": "b"}
    config = resolve(None, roots, **environment).config
    assert (config.port, config.bookie_id) == (3, "b")
    assert config.storage.ledger_directories == ("/env1", "/env2")
    config = resolve(BookieFlags(port=4, ledger_directories=("/flag",), is_read_only=True), roots, **environment).config
    assert config.port == 4
    assert config.storage.ledger_directories == ("/flag",)
    assert config.is_read_only


def test_what_clients_may_make_the_bookie_hold_is_set_in_toml(tmp_path: Path) -> None:
    text = "[bookie]\nconnections_max = 10\nconnection_memory_bytes_max = 20_000_000\nconnection_stall_s_max = 2.5\n"
    own = {"BKCTL_METADATA_URI": "zk://a/ledgers"}
    flags = BookieFlags(journal_directories=("j",), ledger_directories=("l",))
    config = resolve(flags, GlobalFlags(config=write(tmp_path, "c.toml", text)), **own).config
    limits = (config.connections_max, config.connection_memory_bytes_max, config.connection_stall_s_max)
    assert limits == (10, 20_000_000, 2.5)
    toml = write(tmp_path, "d.toml", "[bookie]\nconnection_memory_bytes_max = 1000\n")
    with pytest.raises(ConfigurationError, match=r"connection_memory_bytes_max"):
        resolve(flags, GlobalFlags(config=toml), **own)


def test_a_misspelt_key_given_by_hand_is_told() -> None:
    settings = resolve(BookieFlags(overrides=("journalMaxBackup=0", "journalMaxBackups=0")))
    assert settings.warnings == ("--set: unknown key journalMaxBackup, ignored; did you mean journalMaxBackups?",)


def test_set_overrides_the_java_file_and_works_without_one(tmp_path: Path) -> None:
    roots = GlobalFlags(conf=write(tmp_path, "bk.conf", CONF))
    config = resolve(BookieFlags(overrides=("bookiePort = 5", "ledgerDirectories=/x,/y")), roots).config
    assert config.port == 5
    assert config.storage.ledger_directories == ("/x", "/y")
    session = resolve(BookieFlags(overrides=("zkTimeout=1500", "metadataServiceUri=zk+null://h:1/x")), roots).config
    assert session.zookeeper.session_timeout_ms == 1500, "also of what is not the bookie's own"
    alone = resolve(BookieFlags(overrides=("journalMaxBackups=0",)))
    assert alone.data_directory == DATA_DIRECTORY
    assert alone.config.storage.journal.backup_count_max == 0


@pytest.mark.parametrize("text", ["bookiePort", "=1"])
def test_set_without_key_or_value_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="give KEY=VALUE"):
        resolve(BookieFlags(overrides=(text,)))


def test_a_cluster_without_directories_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no journal directories specified: use --journal-dir"):
        resolve(BKCTL_METADATA_URI="zk://a/ledgers")
    with pytest.raises(ConfigurationError, match="no ledger directories specified: use --ledger-dir"):
        resolve(BookieFlags(journal_directories=("j",)), BKCTL_METADATA_URI="zk://a/ledgers")


def test_a_key_that_would_lose_entries_is_refused(tmp_path: Path) -> None:
    key = "skipReplayJournalInvalidRecord"
    roots = GlobalFlags(conf=write(tmp_path, "bk.conf", f"{CONF}{key}=true\n"))
    with pytest.raises(ConfigurationError, match=rf"{key}: it would skip .*; to start without it: --set {key}="):
        resolve(None, roots)
    assert resolve(BookieFlags(overrides=(f"{key}=",)), roots).config.port == 3200


def test_keys_without_effect_are_reported_with_the_reason(tmp_path: Path) -> None:
    ignored = (
        "numReadWorkerThreads=8\nnumAddWorkerThreads=8\n"
        "ledgerStorageClass=org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage\n"
    )
    satisfied = "serverTcpNoDelay=true\nlocalScrubInterval=0\nbookieAuthProviderFactoryClass=\n"
    path = write(tmp_path, "bk.conf", CONF + ignored + satisfied)
    settings = resolve(BookieFlags(overrides=("openFileLimit=1", "nosuchkey=1")), GlobalFlags(conf=path))
    assert settings.warnings == (
        f"{path}: unknown key someKeyOfAnotherRelease, ignored",
        "--set: unknown key nosuchkey, ignored",
    )
    assert settings.comparison.ignored == {
        "the bookie has its own storage engine": ("ledgerStorageClass", "openFileLimit"),
        "the bookie runs one thread for each kind of work": ("numReadWorkerThreads", "numAddWorkerThreads"),
    }


def test_an_admin_port_that_differs_from_javas_is_reported(tmp_path: Path) -> None:
    def differences(text: str) -> list[str]:
        path = write(tmp_path, "bk.conf", CONF + text)
        return [difference.split(" (")[0] for difference in resolve(None, GlobalFlags(conf=path)).comparison.admin]

    assert differences("httpServerEnabled=false\n") == []
    assert differences("httpServerEnabled=true\n") == [
        "httpServerHost is 127.0.0.1",
        "adminTokenFile is not set",
    ]
    assert differences("httpServerEnabled=true\nhttpServerHost=0.0.0.0\nadminTokenFile=/token\n") == []
    https = "httpServerEnabled=true\nhttpServerHost=0.0.0.0\nhttpServerTlsEnable=true\n"
    assert differences(https) == ["adminTokenFile and adminAuthorizedRoles are not set"]
    assert differences(f"{https}adminAuthorizedRoles=admin\n") == []


@pytest.mark.parametrize(
    "keys",
    [
        "metadataServiceUri=zk://user:s3cret@c/ledgers\n",
        "metadataServiceUri=zk://user:s3,cret@c/ledgers\n",
        "zkServers=c:2181,user:s3cret@d:2181\n",
    ],
)
@pytest.mark.parametrize("other", [None, "zk://other/ledgers"])
def test_a_password_in_a_metadata_uri_is_refused_even_if_another_one_is_used(
    tmp_path: Path, keys: str, other: str | None
) -> None:
    conf = write(tmp_path, "bk.conf", keys + "journalDirectories=/j\nledgerDirectories=/l\n")
    with pytest.raises(ConfigurationError, match=r"bk\.conf: the metadata URI contains a user or a password") as raised:
        resolve(None, GlobalFlags(conf=conf, metadata_uri=other))
    assert "s3" not in str(raised.value)
    assert "cret" not in str(raised.value)


def test_a_metadata_uri_from_elsewhere_is_told(tmp_path: Path) -> None:
    roots = GlobalFlags(conf=write(tmp_path, "bk.conf", CONF))
    settings = resolve(None, roots, BKCTL_METADATA_URI="zk://other/ledgers")
    assert settings.config.metadata_uri == "zk://other/ledgers"
    assert any("zk://other/ledgers of BKCTL_METADATA_URI is used" in warning for warning in settings.warnings)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("bookiePort=70000\n", r"bk\.conf: bookiePort = 70000: must be from 0 to 65535"),
        ("journalAlignmentSize=100\n", "journalAlignmentSize = 100: must be a multiple of 512 from 512 to 1048576"),
        ("indexDirectories=/i,/i\nledgerDirectories=/a,/b\n", "a directory is listed twice"),
    ],
)
def test_values_out_of_range_are_named(tmp_path: Path, text: str, sentence: str) -> None:
    base = "metadataServiceUri=zk://c/ledgers\njournalDirectories=/j\n"
    conf = write(tmp_path, "bk.conf", text + base + "ledgerDirectories=/l\n" * ("ledgerDirectories" not in text))
    with pytest.raises(ConfigurationError, match=sentence):
        resolve(None, GlobalFlags(conf=conf))


def test_typos_in_toml_are_named(tmp_path: Path) -> None:
    toml = write(tmp_path, "c.toml", 'metadata_uri = "zk://c/ledgers"\n[bookie]\nprot = 1\n')
    with pytest.raises(ConfigurationError, match="unknown name 'prot'"):
        resolve(BookieFlags(journal_directories=("j",), ledger_directories=("l",)), GlobalFlags(config=toml))
    toml = write(tmp_path, "d.toml", '[bookie]\nmetadata_uri = "zk://c/ledgers"\n')
    with pytest.raises(ConfigurationError, match="belong outside"):
        resolve(None, GlobalFlags(config=toml, metadata_uri="zk://c/ledgers"))


@pytest.mark.parametrize(
    ("key", "typo"),
    [
        ("journalDirectories", "journalDirectores"),
        ("ledgerDirectories", "ledgerDirectorys"),
        ("metadataServiceUri", "metadataServiceURI"),
    ],
)
def test_what_lacks_because_of_a_misspelt_key_says_so(tmp_path: Path, key: str, typo: str) -> None:
    path = write(tmp_path, "bk.conf", CONF.replace(f"{key}=", f"{typo}="))
    with pytest.raises(ConfigurationError, match=rf"unknown key {typo}, ignored; did you mean {key}\?"):
        resolve(None, GlobalFlags(conf=path))


def test_misspelt_keys_of_a_file_are_reported_with_the_nearest_known_key(tmp_path: Path) -> None:
    text = CONF.replace("someKeyOfAnotherRelease=1\n", "")
    misspelt = {
        "bookieProt": "bookiePort",
        "LedgerDirectories": "ledgerDirectories",
        "diskUsageTreshold": "diskUsageThreshold",
        "numReadWorkerTreads": "numReadWorkerThreads",
        "tlsProviderFactory": "tlsProviderFactoryClass",
    }
    path = write(tmp_path, "bk.conf", text + "".join(f"{key}=1\n" for key in misspelt))
    assert resolve(None, GlobalFlags(conf=path)).warnings == tuple(
        f"{path}: unknown key {key}, ignored; did you mean {meant}?" for key, meant in misspelt.items()
    )


def test_the_log_is_set_by_flag_environment_java_file_or_toml(tmp_path: Path) -> None:
    toml = write(tmp_path, "c.toml", '[bookie]\nlog_file = "toml.log"\nlog_level = "error"\n')
    conf = write(tmp_path, "bk.conf", CONF + "logFile=conf.log\nlogLevel=warning\n")
    assert resolve().log == LogSettings(log_file=None, log_level=LogLevel.INFO)
    own = GlobalFlags(config=toml, metadata_uri="zk://a/ledgers")
    directories = BookieFlags(journal_directories=("j",), ledger_directories=("l",))
    assert resolve(directories, own).log == LogSettings(log_file="toml.log", log_level=LogLevel.ERROR)
    roots = GlobalFlags(config=toml, conf=conf)
    assert resolve(None, roots).log == LogSettings(log_file="conf.log", log_level=LogLevel.WARNING)
    assert resolve(None, roots, BKCTL_LOG_FILE="env.log").log.log_file == "env.log"
    assert resolve(BookieFlags(log_file="flag.log"), roots, BKCTL_LOG_FILE="env.log").log.log_file == "flag.log"
    assert resolve(None, roots).log.log_format is LogFormat.TEXT
    assert resolve(None, roots, BKCTL_LOG_FORMAT="json").log.log_format is LogFormat.JSON
    json_conf = GlobalFlags(conf=write(tmp_path, "json.conf", CONF + "logFormat=json\n"))
    assert resolve(None, json_conf).log.log_format is LogFormat.JSON
    assert resolve(BookieFlags(log_format="text"), json_conf).log.log_format is LogFormat.TEXT


@pytest.mark.parametrize("level", ['"loud"', "[]", "1"])
def test_an_unknown_log_level_is_refused(tmp_path: Path, level: str) -> None:
    toml = write(tmp_path, "c.toml", f"[bookie]\nlog_level = {level}\n")
    directories = BookieFlags(journal_directories=("j",), ledger_directories=("l",))
    with pytest.raises(ConfigurationError, match=r"bookie\.log_level = .*: give one of debug, info, warning, error"):
        resolve(directories, GlobalFlags(config=toml, metadata_uri="zk://a/ledgers"))


def test_directories_are_absolute_and_without_stray_slashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    conf = write(tmp_path, "bk_server.conf", "metadataServiceUri=zk://h/ledgers\njournalDirectories=/j/,//k\n")
    flags = BookieFlags(ledger_directories=("./l/../m", "/n//o/."))
    settings = resolve(flags, GlobalFlags(conf=conf), BKCTL_BOOKIE_INDEX_DIRS="i1/,i2")
    storage = settings.config.storage
    assert storage.journal_directories == ("/j", "/k")
    assert storage.ledger_directories == (f"{tmp_path}/l/../m", "/n/o"), "l may be a link"
    assert storage.index_directories == (f"{tmp_path}/i1", f"{tmp_path}/i2")


def test_parent_directories_at_the_beginning_of_a_relative_path_are_resolved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / "b")
    flags = BookieFlags(journal_directories=("../j",), ledger_directories=("./../../l", "../../../../../../../../m"))
    storage = resolve(flags, GlobalFlags(metadata_uri="zk://h/ledgers")).config.storage
    assert storage.journal_directories == (f"{tmp_path}/a/j",)
    assert storage.ledger_directories == (f"{tmp_path}/l", "/m")


def test_one_directory_spelled_in_two_ways_is_listed_twice() -> None:
    flags = BookieFlags(journal_directories=("/j",), ledger_directories=("/l", "/l/"))
    with pytest.raises(ConfigurationError, match="a directory is listed twice"):
        resolve(flags, GlobalFlags(metadata_uri="zk://h/ledgers"))


STORES = "httpServerEnabled=true\nhttpServerTlsEnable=true\nhttpServerKeyStorePath=/key.p12\n"


def test_stores_of_the_admin_port_that_java_keys_name_are_pkcs12(tmp_path: Path) -> None:
    text = f"{CONF}{STORES}httpServerKeyStorePassword=file:/secret\nhttpServerTrustStorePath=/ca.p12\n"
    admin = resolve(None, GlobalFlags(conf=write(tmp_path, "bk.conf", text))).config.admin
    assert admin.is_tls_enabled
    assert admin.tls == AdminTlsConfig(
        key_file="/key.p12",
        key_type=StoreType.PKCS12,
        key_password="file:/secret",
        ca_file="/ca.p12",
        ca_type=StoreType.PKCS12,
        ca_java_key="httpServerTrustStorePath",
        key_java_key="httpServerKeyStorePath",
    )


def test_a_password_in_the_file_is_refused_and_not_shown(tmp_path: Path) -> None:
    path = write(tmp_path, "bk.conf", f"{CONF}{STORES}httpServerKeyStorePassword=s3cret\n")
    with pytest.raises(ConfigurationError, match="httpServerKeyStorePassword=file:PATH") as raised:
        resolve(None, GlobalFlags(conf=path))
    assert "s3cret" not in str(raised.value)
