"""Why a bookie cannot open its port, and how to fix it."""

from __future__ import annotations

import errno
import os

from bkctl.runtime.bookie.cookies.directories import read_directory
from bkctl.runtime.config import BookieConfig
from bkctl.runtime.errors import ConfigurationError, PortInUseError
from bkctl.runtime.ports import Host
from bkctl.storage.ports import FileSystem


def port_error(error: OSError, config: BookieConfig, file_system: FileSystem, host: Host) -> ConfigurationError:
    """The error to raise. Only a new bookie may use another port: the cookie of an existing one contains its port."""
    if error.errno != errno.EADDRINUSE:
        return ConfigurationError(f"cannot open port {config.port}: {os.strerror(error.errno or 0)}")
    problem = f"port {config.port} is in use by {host.describe_owner(config.port)}: stop that process"
    if _is_new(config, file_system):
        return PortInUseError(f"{problem}, or choose another port with --port")
    return PortInUseError(f"{problem} and start the bookie again; an existing bookie keeps its port")


def _is_new(config: BookieConfig, file_system: FileSystem) -> bool:
    """Whether all directories are empty; an unreadable file may be a cookie."""
    for path in config.storage.all_directories:
        directory = read_directory(file_system, path)
        if directory.cookie is not None or directory.damage or directory.trouble or directory.has_files:
            return False
    return True
