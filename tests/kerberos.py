"""A Kerberos realm with a real KDC (MIT's krb5kdc) on a free loopback port: packages krb5-kdc and krb5-user."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Self

import pytest

from bkctl.runtime.optional_packages import has_package
from tests.processes import LOOPBACK, free_port
from tests.until import wait_until

REALM = "BKCTL.TEST"
_PROGRAMS = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit")
_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])


def require_kerberos() -> None:
    """Skip the test if a realm, or bkctl's login, lacks something."""
    if missing := [name for name in _PROGRAMS if shutil.which(name, path=_PATH) is None]:
        pytest.skip(f"not installed: {', '.join(missing)} (Debian: krb5-kdc krb5-admin-server krb5-user)")
    if not has_package("gssapi"):
        pytest.skip("not installed: gssapi (pip install 'bkctl[kerberos]')")


class Realm:
    """A realm with a bookie's keytab and a client's, and a ticket of the client. Use as a context manager."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.configuration = directory / "krb5.conf"
        self.bookie_keytab, self.client_keytab = directory / "bookie.keytab", directory / "client.keytab"
        self.bookie_principal = f"bookkeeper/{LOOPBACK}@{REALM}"
        self.client_principal = f"bookkeeper-operator@{REALM}"
        self.variables = {
            "KRB5_CONFIG": str(self.configuration),
            "KRB5_KDC_PROFILE": str(directory / "kdc.conf"),
            "KRB5CCNAME": f"FILE:{directory}/tickets",
        }
        self._port = free_port()
        self._kdc: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._configure()
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", "master-of-a-test")
        keytabs = (
            (self.bookie_keytab, self.bookie_principal),
            (self.client_keytab, self.client_principal),
        )
        for keytab, principal in keytabs:
            self.add(principal, keytab)
        with open(self.directory / "kdc.log", "ab") as log:
            self._kdc = subprocess.Popen(
                [self._program("krb5kdc"), "-n", "-r", REALM],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | self.variables,
            )
        try:
            wait_until(self._listens, f"the KDC listens: see {self.directory}/kdc.log")
            self.get_ticket()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._kdc is not None:
            self._kdc.kill()
            self._kdc.wait()

    def add(self, principal: str, keytab: Path) -> None:
        """A principal with a random key, which goes to a keytab."""
        self._run("kadmin.local", "-r", REALM, "-q", f"addprinc -randkey {principal}")
        self._run("kadmin.local", "-r", REALM, "-q", f"ktadd -k {keytab} {principal}")

    def drop_ticket(self) -> None:
        """As if kinit had never run."""
        (self.directory / "tickets").unlink()

    def get_ticket(self) -> None:
        """The client's ticket, in the cache that ``variables`` name."""
        self._run("kinit", "-k", "-t", str(self.client_keytab), self.client_principal)

    def _configure(self) -> None:
        self.configuration.write_text(
            f"[libdefaults]\n default_realm = {REALM}\n dns_lookup_kdc = false\n dns_lookup_realm = false\n"
            " udp_preference_limit = 1\n rdns = false\n"  # an address stays what it is in a principal
            f"[realms]\n {REALM} = {{\n  kdc = {LOOPBACK}:{self._port}\n }}\n"
            f"[domain_realm]\n localhost = {REALM}\n {LOOPBACK} = {REALM}\n"
        )
        (self.directory / "kdc.conf").write_text(
            f"[kdcdefaults]\n kdc_listen = {LOOPBACK}:{self._port}\n kdc_tcp_listen = {LOOPBACK}:{self._port}\n"
            f"[realms]\n {REALM} = {{\n  database_name = {self.directory}/principal\n"
            f"  key_stash_file = {self.directory}/stash\n  acl_file = {self.directory}/kadm5.acl\n"
            "  max_life = 1d\n }\n"
            f"[logging]\n kdc = FILE:{self.directory}/kdc.log\n"
        )

    def _listens(self) -> bool:
        assert self._kdc is not None
        assert self._kdc.poll() is None, (self.directory / "kdc.log").read_text()
        with socket.socket() as probe:
            return probe.connect_ex((LOOPBACK, self._port)) == 0

    def _run(self, program: str, *arguments: str) -> None:
        finished = subprocess.run(
            [self._program(program), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=os.environ | self.variables,
            check=False,
        )
        assert finished.returncode == 0, f"{program} {arguments}: {finished.stdout}{finished.stderr}"

    @staticmethod
    def _program(name: str) -> str:
        found = shutil.which(name, path=_PATH)
        assert found is not None, f"{name} is not installed: apt-get install krb5-kdc krb5-admin-server krb5-user"
        return found
