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

_FLAGS = "flags"


def _bookie_options(
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65535, metavar="PORT", help="Its TCP port; 3181 if not given.")
    ] = None,
    bookie_id: Annotated[
        str | None, typer.Option("--bookie-id", metavar="ID", help="Its permanent identity; else ADDRESS:PORT.")
    ] = None,
    advertised_address: Annotated[
        str | None, typer.Option("--advertised-address", metavar="HOST", help="What clients connect to.")
    ] = None,
    journal_directories: Annotated[
        list[str] | None, typer.Option("--journal-dir", metavar="DIR", help="Journal folder; may be repeated.")
    ] = None,
    ledger_directories: Annotated[
        list[str] | None, typer.Option("--ledger-dir", metavar="DIR", help="Ledger folder; may be repeated.")
    ] = None,
    index_directories: Annotated[
        list[str] | None, typer.Option("--index-dir", metavar="DIR", help="Index folder, one per ledger folder.")
    ] = None,
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
