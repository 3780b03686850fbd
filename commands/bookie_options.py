"""Options that name a bookie on this machine: one set for ``bookie start`` and for all that look after its folders."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import typer

from commands.command import CommandFunction, declarations
from commands.context import BookieFlags
from commands.setting_options import setting_option
from runtime.config import BookieConfig
from storage.config import StorageConfig

_FLAGS = "flags"


def _bookie_options(
    port: Annotated[int | None, setting_option(BookieConfig, "port", "PORT")] = None,
    bookie_id: Annotated[str | None, setting_option(BookieConfig, "bookie_id", "ID")] = None,
    advertised_address: Annotated[str | None, setting_option(BookieConfig, "advertised_address", "HOST")] = None,
    journal_directories: Annotated[
        list[str] | None, setting_option(StorageConfig, "journal_directories", "DIR")
    ] = None,
    ledger_directories: Annotated[list[str] | None, setting_option(StorageConfig, "ledger_directories", "DIR")] = None,
    index_directories: Annotated[list[str] | None, setting_option(StorageConfig, "index_directories", "DIR")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key of bk_server.conf.")
    ] = None,
) -> None:
    """Only its parameters matter: they are put behind those of a command, and are fields of ``BookieFlags``."""


_PARAMETERS = tuple(inspect.signature(_bookie_options, eval_str=True).parameters.values())
BOOKIE_OPTIONS = frozenset(spelling for parameter in _PARAMETERS for spelling in declarations(parameter))


def takes_bookie_options(function: Callable[..., Any]) -> CommandFunction:
    """Let a command function that wants ``flags`` have them from these options."""
    signature = inspect.signature(function, eval_str=True)
    own = [parameter for parameter in signature.parameters.values() if parameter.name != _FLAGS]
    assert len(own) < len(signature.parameters), f"{function.__name__} has no parameter {_FLAGS}"

    @functools.wraps(function)
    def run(*arguments: Any, **options: Any) -> Any:
        given = {parameter.name: options.pop(parameter.name) for parameter in _PARAMETERS}
        flags = msgspec.convert({name: value for name, value in given.items() if value is not None}, BookieFlags)
        return function(*arguments, **options, flags=flags)

    run.__signature__ = signature.replace(parameters=[*own, *_PARAMETERS])  # type: ignore[attr-defined]
    return run
