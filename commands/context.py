"""What a command declares and receives: its effect; settings, the console, and loaders of other settings."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any, Protocol

import msgspec

from bkctl.commands.config import GlobalFlags, Settings
from bkctl.commands.console import Console
from bkctl.commands.errors import InvalidArgumentError
from bkctl.commands.parse import parse_bookie_id
from bkctl.runtime.autorecovery.config import DaemonConfig
from bkctl.runtime.config import BookieConfig
from bkctl.runtime.log_level import LogLevel
from bkctl.runtime.replication.config import PlacementMode, VerifyMode
from bkctl.runtime.security.secrets import is_descriptor, is_reference
from bkctl.storage.setting import Java, Setting, described, setting_values

_REHEARSED = frozenset({"dry_run", "yes"})
_PLANNED = _REHEARSED | {"plan_out", "apply"}


class Effect(enum.Enum):
    """What a command may do to a cluster, to a bookie's files or to the servers of this machine.

    It determines the options of the command, and what the gate (``bkctl.commands.safety.gate``) requires before a
    change. A ``Plan`` and the audit trail record its tier.
    """

    LOOKS = "looks"
    """Changes nothing."""
    REVERSIBLE = "reversible"
    """One command undoes it. Does not ask."""
    HARMFUL = "harmful"
    """Disrupts a service, or takes long to undo. Asks for y, or ``--yes``, which every change accepts."""
    DESTROYS = "destroys"
    """Cannot be undone, or only from the trash. The name of the subject must be typed, or given by ``--confirm``."""
    SERVES = "serves"
    """Starts or stops servers on this machine. Does not ask; has no saved plan."""

    @property
    def tier(self) -> int:
        """The number in plans and in the audit trail; 0 where there is no plan."""
        return {Effect.REVERSIBLE: 1, Effect.HARMFUL: 2, Effect.DESTROYS: 3}.get(self, 0)

    @property
    def is_change(self) -> bool:
        """Whether read-only mode stops it."""
        return self is not Effect.LOOKS

    @property
    def options(self) -> frozenset[str]:
        """The global options that a command of this effect supports."""
        return {
            Effect.LOOKS: frozenset[str](),
            Effect.REVERSIBLE: _PLANNED,
            Effect.HARMFUL: _PLANNED,
            Effect.DESTROYS: _PLANNED | {"confirm"},
            Effect.SERVES: _REHEARSED,
        }[self]


class LogFormat(StrEnum):
    """Form of a server's log lines."""

    TEXT = "text"
    JSON = "json"


# fmt: off
class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where a server logs, from which level on, and in which form."""

    log_file: Annotated[str | None, Setting("Log file; SIGHUP opens it again", java=Java("logFile"),
        flag="--log-file", variable="BKCTL_LOG_FILE", unset="stderr")] = None
    log_level: Annotated[LogLevel, Setting("Lowest level that is logged", java=Java("logLevel"), is_live=True)
        ] = LogLevel.INFO
    log_format: Annotated[LogFormat, Setting("Form of the log lines: text or json",
        java=Java("logFormat"), flag="--log-format", variable="BKCTL_LOG_FORMAT")] = LogFormat.TEXT
# fmt: on


class BookieFlags(msgspec.Struct, frozen=True, kw_only=True):
    """Options of ``bookie start``; None or empty: not given. ``overrides`` are KEY=VALUE in the Java spelling."""

    port: int | None = None
    bookie_id: str | None = None
    advertised_address: str | None = None
    journal_directories: tuple[str, ...] = ()
    ledger_directories: tuple[str, ...] = ()
    index_directories: tuple[str, ...] = ()
    is_read_only: bool | None = None
    is_autorecovery_enabled: bool | None = None
    log_file: str | None = None
    log_format: str | None = None
    overrides: tuple[str, ...] = ()


class DaemonFlags(msgspec.Struct, frozen=True, kw_only=True):
    """Options of ``autorecovery start``; None: not given."""

    role: str | None = None
    own_bookie: str | None = None
    admin_socket: str | None = None
    log_file: str | None = None
    log_format: str | None = None


class CopyFlags(msgspec.Struct, frozen=True, kw_only=True):
    """Options of commands that move ledgers; None: not given."""

    outage_max: str | None = None
    placement: PlacementMode | None = None
    verify: VerifyMode | None = None
    copy_rate: str | None = None
    copy_rate_per_bookie: str | None = None
    resume: str | None = None


class JavaComparison(msgspec.Struct, frozen=True, kw_only=True):
    """What a Java bookie with the same bk_server.conf does otherwise."""

    missing: tuple[str, ...] = ()
    """Features that it has, and what depends on them."""
    admin: tuple[str, ...] = ()
    """How open its admin port is."""
    ignored: Mapping[str, tuple[str, ...]] = {}
    """Keys that have no effect here, by the reason."""
    clear_text: tuple[str, ...] = ()
    """What it does not protect either."""


class BookieSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A bookie's settings from all sources.

    ``data_directory`` is set when nothing is configured: the bookie then starts its own ZooKeeper, whose data is there,
    and ``config.metadata_uri`` is empty.
    """

    config: BookieConfig
    data_directory: str | None
    warnings: tuple[str, ...]
    comparison: JavaComparison = JavaComparison()
    log: LogSettings = LogSettings()
    autorecovery: DaemonConfig | None = None
    """The autorecovery daemon of the bookie, if it has one; its bookie and its cluster are those of the bookie."""


class DaemonSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of an autorecovery daemon from all sources. ``config.metadata_uri`` may be empty."""

    config: DaemonConfig
    warnings: tuple[str, ...] = ()
    log: LogSettings = LogSettings()


class LoadDaemonSettings(Protocol):
    """Loads the settings of an autorecovery daemon; implemented in ``bkctl``, which reads all sources."""

    def __call__(self, flags: DaemonFlags) -> DaemonSettings:
        """Merge flags, environment, files and defaults; ConfigurationError."""


class LoadBookieSettings(Protocol):
    """Loads the settings of a bookie; implemented in ``bkctl``, which reads all sources."""

    def __call__(self, flags: BookieFlags) -> BookieSettings:
        """Merge flags, environment, files and defaults; ConfigurationError."""


class SettingInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A setting for display: its description, its value and the value's source."""

    name: str
    help: str
    value: object
    origin: str
    default: object
    unit: str
    range: str
    java_key: str | None
    older_java_key: str | None
    java_range: str | None
    variable: str
    option: str | None
    is_live: bool


def shown_secret(value: object) -> object:
    """The value of a secret setting for display: where the secret is, but not one that is written out."""
    return value if value is None or is_reference(str(value)) else "(hidden)"


def shown_config(config: msgspec.Struct) -> dict[str, Any]:
    """A configuration for display, without secrets that are written out."""
    body: dict[str, Any] = setting_values(config)
    for path, table in _tables_with_secrets(config, body):
        table[path[-1]] = shown_secret(table[path[-1]])
    return body


def secrets_from_descriptors(config: msgspec.Struct) -> list[str]:
    """Names of the secrets that this process reads from a file descriptor, for example ``sasl.password``."""
    found = _tables_with_secrets(config, msgspec.to_builtins(config))
    return [".".join(path) for path, table in found if is_descriptor(table[path[-1]])]


def _tables_with_secrets(
    config: msgspec.Struct, body: dict[str, Any]
) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """The path of each secret setting, and the part of ``body`` that has it."""
    for path in (each.path for each in described(type(config)) if each.setting.is_secret):
        table: Any = body
        for name in path[:-1]:
            table = (table or {}).get(name)
        if table:
            yield path, table


class SettingsOverview(msgspec.Struct, frozen=True):
    """All settings, and the keys of bk_server.conf that set none, each with the reason."""

    settings: tuple[SettingInfo, ...]
    other_java_keys: Mapping[str, str]


class ContextInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster with a name, from the TOML file."""

    name: str
    metadata_uri: str
    read_only: bool
    instance_id: str | None


class Contexts(msgspec.Struct, frozen=True, kw_only=True):
    """The contexts of the TOML file, by name. ``path`` is empty if there is no file.

    ``stored`` is the context that the file makes the current one, ``current`` the one that is in use now;
    ``overriding`` is the variable that decides instead of the file, or empty.
    """

    path: str
    contexts: tuple[ContextInfo, ...]
    stored: str | None
    current: str | None
    overriding: str


class CommandContext:
    """Everything a command may use in addition to its own arguments.

    ``command`` is its name ("cookie delete") and ``effects`` those that its plans may have; ``command()`` sets both.
    """

    command = ""
    effects: tuple[Effect, ...] = (Effect.LOOKS,)

    def __init__(
        self,
        settings: Settings,
        console: Console,
        load_bookie_settings: LoadBookieSettings,
        load_overview: Callable[[], SettingsOverview] | None = None,
        load_daemon_settings: LoadDaemonSettings | None = None,
        load_contexts: Callable[[], Contexts] | None = None,
    ) -> None:
        self.settings = settings
        self.console = console
        self.load_bookie_settings = load_bookie_settings
        self.load_overview = load_overview
        self._load_daemon_settings = load_daemon_settings
        self._load_contexts = load_contexts

    def load_contexts(self) -> Contexts:
        """The clusters that have a name."""
        assert self._load_contexts is not None
        return self._load_contexts()

    def load_daemon_settings(self, flags: DaemonFlags) -> DaemonSettings:
        """Settings of an autorecovery daemon; ConfigurationError."""
        assert self._load_daemon_settings is not None
        return self._load_daemon_settings(flags)

    def with_settings(self, **changes: Any) -> CommandContext:
        """A context for the same command with some settings replaced."""
        settings = msgspec.structs.replace(self.settings, **changes)
        context = CommandContext(
            settings,
            self.console,
            self.load_bookie_settings,
            self.load_overview,
            self._load_daemon_settings,
            self._load_contexts,
        )
        context.command, context.effects = self.command, self.effects
        return context


class Invocation(Protocol):
    """One run of bkctl, as ``bkctl`` implements it; it is the Typer context object."""

    def set_root_flags(self, flags: GlobalFlags) -> None:
        """Store the options given before the command's name."""

    @property
    def root_flags(self) -> GlobalFlags:
        """Options that were given before the command's name."""

    def enter(self, command_path: str, flags: GlobalFlags) -> CommandContext:
        """Resolve all settings for the command that is about to run; ConfigurationError, InvalidArgumentError.

        ``flags`` include those that were given before the command's name.
        """


def load_config(context: CommandContext, flags: BookieFlags, bookie_id: str | None = None) -> BookieConfig:
    """Settings of the bookie; ``bookie_id`` overrides the configured one.

    ConfigurationError, InvalidArgumentError.
    """
    config = load_settings(context, flags).config
    return config if bookie_id is None else msgspec.structs.replace(config, bookie_id=parse_bookie_id(bookie_id))


def load_settings(context: CommandContext, flags: BookieFlags) -> BookieSettings:
    """Settings of the bookie, and of what runs with it; ConfigurationError, InvalidArgumentError."""
    settings = context.load_bookie_settings(flags)
    for warning in settings.warnings:
        context.console.warn(warning)
    return settings


def id_by_settings(config: BookieConfig) -> str:
    """Id that ``bookie start`` would use; ConfigurationError, InvalidArgumentError."""
    from bkctl.runtime.bookie.identity import resolve_identity
    from bkctl.runtime.net.host import OsHost

    if config.bookie_id is None and config.port == 0:
        raise InvalidArgumentError("the port is not known before the bookie starts: use --bookie-id or --port")
    return resolve_identity(config, OsHost()).bookie_id(config.port)
