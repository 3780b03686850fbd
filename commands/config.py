"""Settings of the commands, resolved from all sources."""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec

from bkctl.runtime.config import ClientConfig, ZooKeeperConfig
from bkctl.runtime.replication.config import ReplicationConfig
from bkctl.storage.setting import Java, Setting


class OutputForm(enum.StrEnum):
    """Output formats for results (``--output``)."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"
    NAME = "name"
    JSONL = "jsonl"


class ColorMode(enum.StrEnum):
    """When to colour (``--color``)."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


# fmt: off
class GeneralConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of every command: at the top of the TOML file, or only in variables and options."""

    metadata_uri: Annotated[str | None, Setting("Cluster: zk+LAYOUT://HOST:PORT;HOST:PORT/ROOT",
        java=Java("metadataServiceUri"), flag="--metadata-uri")] = None
    context: Annotated[str | None, Setting("Cluster by its name in [contexts]", flag="--context")] = None
    output: Annotated[OutputForm, Setting("Form of results", flag="--output")] = OutputForm.TABLE
    color: Annotated[ColorMode, Setting("When to use colors", flag="--color")] = ColorMode.AUTO
    timeout: Annotated[str, Setting("Longest wait for ZooKeeper: a number with ms, s, m or h",
        flag="--timeout")] = "10s"
    trash_retention_days: Annotated[int, Setting("How long deleted metadata is kept for undo", unit="days", low=0)] = 30
    admin_token_hosts: Annotated[str | None, Setting(
        "HOST or HOST:PORT, with commas, of admin ports that get the token of any bookie, even in clear text",
        unset="over HTTPS, if the certificate names the host of the bookie's ID")] = None
    yes: Annotated[bool, Setting("Answer yes to confirmations", flag="--yes", toml="")] = False
    read_only: Annotated[bool, Setting("Refuse commands that change something", toml="")] = False
    no_progress: Annotated[bool, Setting("Show no progress bars", flag="--no-progress", toml="")] = False
    log: Annotated[str, Setting("debug: write debug logs to stderr", flag="--debug", toml="")] = "none"
    state_dir: Annotated[str | None, Setting("Directory of backups, trash and the audit trail", toml="",
        unset="$XDG_STATE_HOME/bkctl, else ~/.local/state/bkctl")] = None
    config: Annotated[str | None, Setting("The TOML file; /dev/null: none", flag="--config", toml="",
        unset="$XDG_CONFIG_HOME/bkctl/config.toml, else ~/.config/bkctl/config.toml")] = None
    conf: Annotated[str | None, Setting("A Java bk_server.conf; also read from BOOKIE_CONF", flag="--conf",
        toml="")] = None
    ledger_password: Annotated[str | None, Setting("Password of the ledgers that a command opens", is_secret=True,
        toml="")] = None
# fmt: on


class GlobalFlags(msgspec.Struct, frozen=True, kw_only=True):
    """Options that are valid before and after the command's name; None: not given."""

    output: OutputForm | None = None
    metadata_uri: str | None = None
    conf: str | None = None
    config: str | None = None
    cluster: str | None = None
    timeout: str | None = None
    metadata_rate: float | None = None
    sort: str | None = None
    limit: int | None = None
    no_headers: bool | None = None
    yes: bool | None = None
    confirm: str | None = None
    dry_run: bool | None = None
    plan_out: str | None = None
    apply: str | None = None
    quiet: bool | None = None
    debug: bool | None = None
    color: ColorMode | None = None
    no_progress: bool | None = None

    def over(self, weaker: GlobalFlags) -> GlobalFlags:
        """These flags, with ``weaker`` for those not given: flags after the command's name win."""
        given = {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}
        return msgspec.structs.replace(weaker, **given)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Resolved settings of one invocation.

    ``metadata_uri`` is None when no source specifies a cluster; ``metadata_uri_origin`` describes its source.
    ``timeout_s`` limits how long to wait for the first answer of the metadata store. ``confirmed_name`` is the value of
    --confirm, in place of a typed answer; ``plan_out_path`` and ``apply_path`` are plan files. ``state_directory`` is
    for backups, trash and the audit trail; empty: there is no home directory. ``context_name`` and
    ``pinned_instance_id`` are those of the selected context, ``command_line`` is for the audit trail.
    """

    metadata_uri: str | None = None
    metadata_uri_origin: str = ""
    output: OutputForm = OutputForm.TABLE
    sort: str | None = None
    limit: int | None = None
    has_headers: bool = True
    timeout_s: float = 10.0
    assume_yes: bool = False
    confirmed_name: str | None = None
    is_dry_run: bool = False
    plan_out_path: str | None = None
    apply_path: str | None = None
    is_read_only_by_environment: bool = False
    is_context_read_only: bool = False
    context_name: str | None = None
    pinned_instance_id: str | None = None
    state_directory: str = ""
    trash_retention_days: int = 30
    admin_token_hosts: frozenset[str] = frozenset()
    command_line: tuple[str, ...] = ()
    is_quiet: bool = False
    is_debug: bool = False
    color: ColorMode = ColorMode.AUTO
    has_progress: bool = True
    zookeeper: ZooKeeperConfig = ZooKeeperConfig()
    client: ClientConfig = ClientConfig()
    replication: ReplicationConfig = ReplicationConfig()

    @property
    def is_rehearsal(self) -> bool:
        """Whether the plan is only shown or saved, without changes."""
        return self.is_dry_run or self.plan_out_path is not None

    @property
    def is_read_only(self) -> bool:
        """Whether changes of the cluster are refused."""
        return self.is_read_only_by_environment or self.is_context_read_only
