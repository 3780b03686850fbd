"""A process that has imported all of bkctl and forks itself for each command.

No command pays again for the imports, the command tree and the types of the settings.

``tests/processes.py`` starts one for each test run and asks it. Run as a script: its argument is the number of the
socket that requests come from. It ends when the other end of that socket is closed.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import sys
import threading
import time
import traceback
from typing import Any, NoReturn

import bkctl
from bkctl import early_stop
from bkctl.app import build_app
from bkctl.main import main


def serve(requests: socket.socket) -> None:
    """Fork for each request until the tests end.

    A request is four descriptors: the command's stdout, stderr and working directory, and a socket. The command reads
    its arguments and environment from the socket; the answers there are its process id and, once it has ended, its
    exit code.
    """
    running: dict[int, tuple[int, socket.socket]] = {}
    events = select.poll()
    events.register(requests, select.POLLIN)
    while True:
        for ready, _ in events.poll():
            if ready in running:
                pid, answers = running.pop(ready)
                events.unregister(ready)
                os.close(ready)
                _answer(answers, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                answers.close()
                continue
            _, descriptors, _, _ = socket.recv_fds(requests, 1, 4)
            if not descriptors:
                return
            answers = socket.socket(fileno=descriptors.pop())
            if (pid := os.fork()) == 0:
                requests.close()
                _run_command(answers, *descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            process = os.pidfd_open(pid)
            running[process] = (pid, answers)
            events.register(process, select.POLLIN)
            _answer(answers, pid)


def _answer(answers: socket.socket, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # the test no longer waits
        answers.sendall(b"%d\n" % number)


def _run_command(requests: socket.socket, stdout: int, stderr: int, directory: int) -> NoReturn:
    """Do what ``python -P -m bkctl`` does."""
    exit_code = 1
    with requests, requests.makefile("rb") as stream:
        request = json.loads(stream.readline())
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, descriptor in ((1, stdout), (2, stderr)):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.fchdir(directory)
    os.close(directory)
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    sys.argv[1:] = request["arguments"]
    early_stop.stop_cleanly(sys.argv)
    try:
        exit_code = main()
        threading._shutdown()  # type: ignore[attr-defined]  # as the interpreter does at its end
        atexit._run_exitfuncs()
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    os._exit(exit_code)


_LEFT_OUT = (
    "bkctl.spark_reports.",
    "bkctl.__main__",
    "bkctl.runtime.security.kerberos",
    "bkctl.runtime.metadata.zookeeper.kerberos_login",
)
"""Modules that need optional packages, and the one that runs bkctl."""


def _import_all() -> None:
    for module in pkgutil.walk_packages(bkctl.__path__, "bkctl."):
        if not module.name.startswith(_LEFT_OUT):
            importlib.import_module(module.name)


def _make_commands(group: Any) -> None:
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        if hasattr(command, "list_commands"):
            _make_commands(command)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the tests, and they end this process
    _import_all()
    "".encode("idna")  # imports modules, which every connection needs
    _make_commands(build_app())
    main(["config", "show"])  # so that msgspec knows the settings
    gc.collect()
    gc.freeze()
    serve(socket.socket(fileno=int(sys.argv[1])))
