"""The settings that use certificates: for bkctl's TOML file, and for Java's configuration."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

import msgspec

from bkctl.commands.tls.authority_files import CA, CERTIFICATE, KEY, WantedCertificate

_OF_JAVA: Final = {
    "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
    "tlsClientAuthentication": "true",
    "tlsHostnameVerificationEnabled": "true",
    "tlsCertFilesRefreshDurationSeconds": "60",
    "tlsKeyStoreType": "PEM",
    "tlsTrustStoreType": "PEM",
}
_ROLE_PLUGIN: Final = "org.apache.bookkeeper.tls.BookieAuthZFactory"


def toml_lines(wanted: WantedCertificate) -> str:
    """Tables of the TOML file for a bookie, which connects to other bookies too, or for a client."""
    files = _files(wanted)
    tables = {"bookie_client.tls": _toml(files)}
    if wanted.request.hosts:
        own = {**_toml(files), "is_client_certificate_required": "true"}
        if wanted.request.role is not None:
            own["authorized_roles"] = f"[{_quoted(wanted.request.role)}]"
        tables = {"bookie.tls": own, **tables}
    return "\n".join(f"[{name}]\n{_pairs(values, ' = ')}" for name, values in tables.items())


def java_lines(wanted: WantedCertificate) -> str:
    """Lines of bk_server.conf for a Java bookie, or of a Java client's configuration."""
    key, certificate, authority = _files(wanted)
    values = {**_OF_JAVA, "tlsKeyStore": key, "tlsCertificatePath": certificate, "tlsTrustStore": authority}
    if wanted.request.hosts and wanted.request.role is not None:
        values |= {"bookieAuthProviderFactoryClass": _ROLE_PLUGIN, "authorizedRoles": wanted.request.role}
    return _pairs(values, "=")


def _files(wanted: WantedCertificate) -> tuple[str, str, str]:
    key, certificate, authority = (os.path.join(wanted.directory, name) for name in (KEY, CERTIFICATE, CA))
    return key, certificate, authority


def _toml(files: tuple[str, str, str]) -> dict[str, str]:
    names = ("key_file", "certificate_file", "ca_file")
    return {name: _quoted(path) for name, path in zip(names, files, strict=True)}


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()  # a TOML string, too


def _pairs(values: Mapping[str, str], between: str) -> str:
    return "".join(f"{name}{between}{value}\n" for name, value in values.items())
