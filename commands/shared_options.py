"""Options that many commands share. ``bkctl options`` explains them; other help pages only list their names."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_args

import msgspec
import typer

from bkctl.commands.config import ColorMode, OutputForm
from bkctl.commands.context import BookieFlags, CopyFlags
from bkctl.commands.help_page import BOOKIE, CHANGE, CLUSTER, COPYING, GENERAL, LISTING, STORAGE
from bkctl.runtime.config import BookieConfig
from bkctl.runtime.replication.config import PlacementMode, ReplicationConfig, VerifyMode
from bkctl.storage.config import StorageConfig
from bkctl.storage.setting import described


def setting_option(
    struct: type[msgspec.Struct], name: str, metavar: str | None = None, group: str | None = None
) -> Any:
    """The option for the field ``name`` of a setting, for an annotation. It has no default: other sources count."""
    each = next(each for each in described(struct) if each.path[-1] == name)
    setting = each.setting
    assert setting.flag is not None, name
    low, high = (setting.low, setting.high) if each.type is int else (None, None)
    text = f"{setting.help}{'; repeatable' if each.type == tuple[str, ...] else ''}"
    return typer.Option(setting.flag, metavar=metavar, help=text, min=low, max=high, rich_help_panel=group)


def option(group: str, name: str, kind: Any, *spellings: str, help: str, **more: Any) -> inspect.Parameter:  # noqa: A002
    """The parameter ``name`` of a command, with its option in a group of the help page; None: not given."""
    return _parameter(name, kind, typer.Option(*spellings, help=help, rich_help_panel=group, **more))


def _of_bookie(name: str, kind: Any, metavar: str) -> inspect.Parameter:
    return _parameter(name, kind, setting_option(BookieConfig, name, metavar, BOOKIE))


def _of_copying(name: str, kind: Any, setting: str, metavar: str) -> inspect.Parameter:
    return _parameter(name, kind, setting_option(ReplicationConfig, setting, metavar, COPYING))


def _of_storage(name: str) -> inspect.Parameter:
    return _parameter(name, list[str], setting_option(StorageConfig, name, "DIR", STORAGE))


def _parameter(name: str, kind: Any, option: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


def declarations(parameter: inspect.Parameter) -> tuple[str, ...]:
    """Spellings of an option."""
    option = get_args(parameter.annotation)[1]
    first = (option.default,) if isinstance(option.default, str) else ()  # Annotated has the first spelling here
    return (*first, *(option.param_decls or ()))


# fmt: off
GLOBAL_PARAMETERS = (
    option(GENERAL, "output", OutputForm, "--output", "-o", metavar="FORMAT",
        help="table, wide, json, yaml, csv, name or jsonl (default: table)"),
    option(GENERAL, "no_headers", bool, "--no-headers", help="Omit headings in tables and CSV"),
    option(GENERAL, "quiet", bool, "--quiet", "-q", help="Suppress informational messages"),
    option(GENERAL, "debug", bool, "--debug", help="Write debug logs and tracebacks to stderr"),
    option(GENERAL, "color", ColorMode, "--color", metavar="WHEN", help="auto, always or never (default: auto)"),
    option(GENERAL, "no_progress", bool, "--no-progress", help="Show no progress bars"),
    option(GENERAL, "config", str, "--config", metavar="FILE",
        help="TOML file (default: ~/.config/bkctl/config.toml)"),
    option(CLUSTER, "metadata_uri", str, "--metadata-uri", "-u", metavar="URI",
        help="Like zk+hierarchical://zk1:2181;zk2:2181/ledgers"),
    option(CLUSTER, "cluster", str, "--context", metavar="NAME", help="The cluster: [contexts.NAME] of the TOML file"),
    option(CLUSTER, "conf", str, "--conf", "-c", metavar="FILE",
        help="A Java bk_server.conf: cluster, bookie settings"),
    option(CLUSTER, "timeout", str, "--timeout", metavar="DURATION",
        help="How long to wait for ZooKeeper (default: 10s)"),
    option(CLUSTER, "metadata_rate", float, "--zk-rate", metavar="N", min=0,
        help="Requests/second (default: 5000; 0: no limit)"),
    option(LISTING, "sort", str, "--sort", metavar="FIELD[:desc]", help="Sort by a field; FIELD:desc: largest first"),
    option(LISTING, "limit", int, "--limit", metavar="N", min=0, help="List at most N items"),
    option(CHANGE, "dry_run", bool, "--dry-run", "-n", help="Show the plan and change nothing"),
    option(CHANGE, "plan_out", str, "--plan-out", metavar="FILE", help="Save the plan and change nothing"),
    option(CHANGE, "apply", str, "--apply", metavar="FILE",
        help="Carry out a saved plan; repeat all other arguments"),
    option(CHANGE, "yes", bool, "--yes", "-y", help="Answer yes to the confirmation"),
    option(CHANGE, "confirm", str, "--confirm", metavar="NAME",
        help="The name that a destructive command asks for"),
)
"""Parameters of every command; the fields of ``GlobalFlags``."""

STORAGE_PARAMETERS = (
    _of_storage("journal_directories"),
    _of_storage("ledger_directories"),
    _of_storage("index_directories"),
    option(STORAGE, "overrides", list[str], "--set", metavar="KEY=VALUE",
        help="Override a key of bk_server.conf; repeatable"),
)
"""Parameters of commands for a bookie's files; fields of ``BookieFlags``."""

BOOKIE_PARAMETERS = (
    _of_bookie("port", int, "PORT"),
    _of_bookie("bookie_id", str, "ID"),
    _of_bookie("advertised_address", str, "HOST"),
    *STORAGE_PARAMETERS,
)
"""Parameters of commands for the bookie of this machine; fields of ``BookieFlags``."""

COPY_PARAMETERS = (
    _of_copying("outage_max", str, "metadata_outage_max_s", "DURATION"),
    _of_copying("placement", PlacementMode, "placement", "MODE"),
    _of_copying("verify", VerifyMode, "verify", "MODE"),
    option(COPYING, "copy_rate", str, "--copy-rate", metavar="RATE",
        help="Copy at most this much, like 200MiB/s, or none"),
    option(COPYING, "copy_rate_per_bookie", str, "--copy-rate-per-bookie", metavar="RATE",
        help="The same for each bookie"),
    option(COPYING, "resume", str, "--resume", metavar="FILE", help="Continue the job of this job file"),
)
"""Parameters of commands that move ledgers; the fields of ``CopyFlags``."""
# fmt: on

GLOBAL_NAMES = frozenset(parameter.name for parameter in GLOBAL_PARAMETERS)
BOOKIE_OPTIONS = frozenset(spelling for parameter in BOOKIE_PARAMETERS for spelling in declarations(parameter))
STORAGE_OPTIONS = frozenset(spelling for parameter in STORAGE_PARAMETERS for spelling in declarations(parameter))


def takes_bookie_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Pass ``flags`` to a command function, from the options that describe the bookie of this machine."""
    return takes_options(function, BOOKIE_PARAMETERS, BookieFlags)


def takes_storage_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Pass ``flags`` to a command function, from the options that describe a bookie's directories."""
    return takes_options(function, STORAGE_PARAMETERS, BookieFlags)


def takes_copy_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Pass ``flags`` to a command function, from the options of commands that move ledgers."""
    return takes_options(function, COPY_PARAMETERS, CopyFlags)


def takes_options(
    function: Callable[..., Any], parameters: tuple[inspect.Parameter, ...], kind: type[msgspec.Struct]
) -> Callable[..., Any]:
    """Pass ``flags`` to a command function: a struct of this kind, with a field for each of the parameters."""
    signature = inspect.signature(function, eval_str=True)
    own = [parameter for parameter in signature.parameters.values() if parameter.name != "flags"]
    assert len(own) < len(signature.parameters), f"{function.__name__} has no parameter flags"

    @functools.wraps(function)
    def run(*arguments: Any, **options: Any) -> Any:
        given = {parameter.name: options.pop(parameter.name) for parameter in parameters}
        flags = msgspec.convert({name: value for name, value in given.items() if value is not None}, kind)
        return function(*arguments, **options, flags=flags)

    run.__signature__ = signature.replace(parameters=[*own, *parameters])  # type: ignore[attr-defined]
    return run
