"""A process that has imported all of bkctl and forks itself for each command: none of them pays for the imports again.

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
import signal
import socket
import sys
import threading
import time
import traceback

from bkctl import early_stop
from bkctl.main import main

_PACKAGES = ("bkctl", "commands", "runtime", "storage")


def serve(requests: socket.socket) -> None:
    """Fork for each request until the tests end.

    A request is four descriptors: the command's stdout, stderr and working directory, and the socket for its answer.
    """
    while True:
        _, descriptors, _, _ = socket.recv_fds(requests, 1, 4)
        _reap()
        if not descriptors:
            return
        if os.fork() == 0:
            requests.close()
            _run_command(*descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def _run_command(stdout: int, stderr: int, directory: int, answers: int) -> None:
    """Do what ``python -P -m bkctl`` does. Answers with the process id, then the exit code."""
    exit_code = 1
    connection = socket.socket(fileno=answers)
    connection.sendall(b"%d\n" % os.getpid())
    with connection.makefile("rb") as stream:
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
    connection.sendall(b"%d\n" % exit_code)
    os._exit(exit_code)


def _import_all() -> None:
    for package in _PACKAGES:
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            if not module.name.endswith(".__main__"):
                importlib.import_module(module.name)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the tests, and they end this process
    _import_all()
    gc.collect()
    gc.freeze()
    serve(socket.socket(fileno=int(sys.argv[1])))
