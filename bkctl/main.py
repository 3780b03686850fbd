"""Entry point: runs one command and turns errors into one sentence and an exit code."""

from __future__ import annotations

import os
import sys

from bkctl import early_stop  # before the imports that take long

# isort: split
import atexit
import contextlib
import errno
import gc
import itertools
import resource
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import typer

from bkctl import exit_codes
from bkctl.app import build_app
from bkctl.carried_options import carrying
from bkctl.commands.config import ColorMode, GlobalFlags, Settings
from bkctl.commands.console import Console, standard_console
from bkctl.commands.context import (
    BookieFlags,
    BookieSettings,
    CommandContext,
    DaemonFlags,
    DaemonSettings,
    SettingsOverview,
)
from bkctl.commands.errors import ChangeCutOffError, ReaderGoneError, StoppedBySignalError
from bkctl.commands.rendering import is_color_wanted
from bkctl.java_security import clear_text_warnings
from bkctl.log_setup import configure_logging
from bkctl.runtime.errors import MetadataLoginError, MetadataOutageError, MetadataUnavailableError
from bkctl.settings import Sources, contexts_of, read_sources, resolve_settings, variable_warnings, without_context
from bkctl.storage.errors import BkctlError

_GROUPS_WITH_DATA = frozenset({"autorecovery", "bookie", "dev", "storage"})
"""Groups of commands that write directories of bookies and servers."""
_CONTEXT_COMMANDS = frozenset({"bkctl config contexts", "bkctl config use-context"})
"""They work with the contexts, also when the current one does not exist."""


class CommandLineInvocation:
    """One run of bkctl: gathers options, then resolves settings once the command is known."""

    def __init__(
        self, command_line: Sequence[str], environment: Mapping[str, str], at_end: contextlib.ExitStack
    ) -> None:
        self._command_line = tuple(command_line)
        self._environment = environment
        self._at_end = at_end
        self.root_flags = self._flags = GlobalFlags()
        self.settings = Settings(
            is_debug=environment.get("BKCTL_LOG", "").lower() == "debug", color=_early_color(command_line, environment)
        )
        self.command_path = ""
        self._console: Console | None = None

    @property
    def console(self) -> Console:
        """Console of the command; until it is known, one of the settings known so far."""
        return self._console or standard_console(self.settings, self._environment, carrying(self._flags))

    def set_root_flags(self, flags: GlobalFlags) -> None:
        """Store the options given before the command's name."""
        self.root_flags = self._flags = flags

    def enter(self, command_path: str, flags: GlobalFlags) -> CommandContext:
        """Resolve all settings for the command that is about to run."""
        self.command_path, self._flags = command_path, flags
        if command_path.split(" ")[1] in _GROUPS_WITH_DATA:
            # Libraries and child processes choose no modes: LevelDB, Java.
            self._at_end.callback(os.umask, os.umask(0o077))
        self.settings = Settings(  # so that a failure to resolve the rest is already reported in the requested format
            is_debug=bool(flags.debug) or self.settings.is_debug, color=flags.color or self.settings.color
        )
        sources = read_sources(flags, self._environment)
        contexts = partial(contexts_of, sources)
        if command_path in _CONTEXT_COMMANDS:
            sources = without_context(sources)
        self.settings = msgspec.structs.replace(resolve_settings(sources), command_line=self._command_line)
        self._console = standard_console(self.settings, self._environment, carrying(flags))
        for warning in variable_warnings(sources):
            self.console.warn(warning)
        is_server = exit_codes.is_logging_command(command_path)
        if not is_server:  # it logs them
            for warning in clear_text_warnings(sources.conf, self.settings.client.security.tls):
                self.console.warn(warning)
        stream = sys.stderr if is_server else self._console.log_stream
        self._at_end.callback(configure_logging(self.settings, stream, is_server=is_server))
        loader = _BookieSettingsLoader(sources, lambda: read_sources(flags, self._environment))
        overview, daemon = partial(_overview, sources), _DaemonSettingsLoader(sources, loader.read_again)
        early_stop.begin_command()
        return CommandContext(self.settings, self.console, loader, overview, daemon, contexts)


def _early_color(command_line: Sequence[str], environment: Mapping[str, str]) -> ColorMode:
    """``--color`` for help pages and errors of the parser, which come before the options are known."""
    words = [*itertools.takewhile(lambda word: word != "--", command_line)]
    given = [following for word, following in itertools.pairwise(words) if word == "--color"]
    given += [word.partition("=")[2] for word in words if word.startswith("--color=")]
    mode = given[-1] if given else environment.get("BKCTL_COLOR", "")
    return ColorMode(mode) if mode in set(ColorMode) else ColorMode.AUTO


def _overview(sources: Sources) -> SettingsOverview:
    from bkctl.overview import settings_overview

    return settings_overview(sources)


class _SettingsLoader:
    """Reads the files again for each further call: a server reloads its settings."""

    def __init__(self, sources: Sources, read_again: Callable[[], Sources]) -> None:
        self._next: Sources | None = sources
        self.read_again = read_again

    def _sources(self) -> Sources:
        sources, self._next = self._next or self.read_again(), None
        return sources


class _DaemonSettingsLoader(_SettingsLoader):
    def __call__(self, flags: DaemonFlags) -> DaemonSettings:
        from bkctl.server_settings import resolve_daemon_settings

        return resolve_daemon_settings(self._sources(), flags)


class _BookieSettingsLoader(_SettingsLoader):
    def __call__(self, flags: BookieFlags) -> BookieSettings:
        from bkctl.server_settings import resolve_bookie_settings

        return resolve_bookie_settings(self._sources(), flags)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run bkctl with these arguments (default: the process's own) and return the exit code."""
    reopen_closed()
    raise_open_files_limit()
    atexit.register(gc.freeze)  # the interpreter's last searches for reference cycles would take 30 ms
    with contextlib.ExitStack() as at_end:
        command_line = list(sys.argv[1:] if arguments is None else arguments)
        return _run(command_line, CommandLineInvocation(command_line, os.environ, at_end))


def _run(command_line: Sequence[str], invocation: CommandLineInvocation) -> int:
    try:
        is_colored = is_color_wanted(invocation.settings.color, os.environ)  # of help pages
        result = build_app().main(
            command_line, prog_name="bkctl", standalone_mode=False, obj=invocation, color=is_colored
        )
        sys.stdout.flush()
    except typer.TyperException as error:
        return _report_usage(error, invocation)
    except (ReaderGoneError, BrokenPipeError):
        # Exit code as in a shell. Nothing may be written at interpreter exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exit_codes.ExitCode.BROKEN_PIPE
    except (Exception, KeyboardInterrupt) as error:
        return _report(error, invocation)
    if result == exit_codes.ExitCode.INTERRUPTED:
        invocation.console.error("interrupted")
    # Without standalone mode Typer returns the code of an Exit (130 after SIGINT) or the command's return value.
    return result if isinstance(result, int) else exit_codes.exit_code_of_outcome(result)


def describe(error: BaseException, settings: Settings) -> str:
    """One sentence that says what happened, with the fix if it follows from the settings."""
    # Once a job has begun, another cluster does not help.
    is_amid_work = isinstance(error, (ChangeCutOffError, MetadataOutageError))
    is_at_start = isinstance(error, MetadataUnavailableError) and not is_amid_work
    is_at_start = is_at_start and not isinstance(error, MetadataLoginError)  # ZooKeeper runs there
    if is_at_start and settings.metadata_uri is not None:
        return (
            f"{error}; check that ZooKeeper runs there, or name another cluster with --metadata-uri "
            f"(now {settings.metadata_uri} from {settings.metadata_uri_origin})"
        )
    if isinstance(error, BkctlError):
        return str(error)
    if isinstance(error, OSError) and error.errno == errno.EMFILE:
        files_max = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return f"{error.strerror}: bkctl may have only {files_max} open, raise the limit (ulimit -n)"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return f"internal error, {type(error).__name__}: {error} (run it again with --debug for the traceback)"


def _report(error: BaseException, invocation: CommandLineInvocation) -> int:
    shown = error if invocation.settings.is_debug and not isinstance(error, KeyboardInterrupt) else None
    is_interrupted = isinstance(error, (KeyboardInterrupt, StoppedBySignalError))
    sentence = "interrupted" if is_interrupted else describe(error, invocation.settings)
    invocation.console.error(sentence, traceback_of=shown)
    return exit_codes.exit_code_of_error(error, invocation.command_path)


def _report_usage(error: typer.TyperException, invocation: CommandLineInvocation) -> int:
    """Report an error of the parser; a group without arguments shows its help page."""
    context: Any = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "bkctl"
    sentence = error.format_message().replace("\n\t", " ")  # before each of the values that an argument may have
    if type(error).__name__ == "NoArgsIsHelpError":
        if sentence:
            is_colored = is_color_wanted(invocation.settings.color, os.environ)
            typer.echo(sentence, err=True, color=is_colored)  # a help page
    else:
        invocation.console.error(f"{sentence.rstrip('.')} (see {path} --help)")
    return exit_codes.exit_code_of_usage(path)


def reopen_closed() -> None:
    """Open the null device for every closed standard stream.

    Otherwise the first files and sockets would get their numbers: messages would be written to them, and the event
    loop aborts the process if one of its own is below 3.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if not _is_open(number):
            descriptor = os.open(os.devnull, os.O_RDWR)  # gets this number, the lowest free one: those below are open
            assert descriptor == number
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def raise_open_files_limit() -> None:
    """Let this process and its children have as many files open as they are allowed to.

    Shells and service managers often set a lower limit first, 1,024, for programs that cannot handle more.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(OSError, ValueError):  # some systems refuse a soft limit above another one of theirs
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
