"""How a cluster protects its bookies, as each side is configured for it: Java's bookies and clients, bkctl's."""

from __future__ import annotations

import enum
import socket
from pathlib import Path
from typing import NamedTuple

from tests.interop.security_files import TestAuthority
from tests.kerberos import Realm
from tests.processes import LOOPBACK

USER, PASSWORD = "bookkeeper", "login-password-91bc"
"""Java's default for ``saslJaasClientAllowedIds`` admits ids with "bookkeeper" in them."""
BOOKIE_ROLE, OPERATOR_ROLE = "bookie", "operator"

_DIGEST = "org.apache.zookeeper.server.auth.DigestLoginModule required"
_KERBEROS = "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true useTicketCache=false"
_TLS_FACTORY = {"tlsProvider": "JDK", "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory"}
_BOOKIE_SASL = {"bookieAuthProviderFactoryClass": "org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory"}
_CLIENT_SASL = {"clientAuthProviderFactoryClass": "org.apache.bookkeeper.sasl.SASLClientProviderFactory"}


class Mode(enum.StrEnum):
    """Names in the table."""

    PLAIN = "plain"
    TLS = "TLS"
    MUTUAL_TLS = "mTLS"
    ROLE = "mTLS + role"
    DIGEST = "SASL DIGEST-MD5"
    KERBEROS = "SASL GSSAPI"
    TLS_AND_LOGIN = "TLS + SASL"


_WITH_TLS = frozenset({Mode.TLS, Mode.MUTUAL_TLS, Mode.ROLE, Mode.TLS_AND_LOGIN})
_MUTUAL = frozenset({Mode.MUTUAL_TLS, Mode.ROLE})
_WITH_PASSWORD = frozenset({Mode.DIGEST, Mode.TLS_AND_LOGIN})


class Sides(NamedTuple):
    """Settings of all who take part in a cluster of one mode."""

    java_bookie: dict[str, str]
    java_client: dict[str, str]
    jvm_flags: tuple[str, ...]
    client_flags: tuple[str, ...]
    """JVM flags of Java's client."""
    variables: dict[str, str]
    """Environment of bkctl: commands, daemons and bookies."""
    attempts: int
    """Of Java's client to connect. With TLS and a login it sends START_TLS and AUTH from two threads: a Java bookie
    that reads them apart logs "NotSslRecordException: not an SSL/TLS record" and resets the connection."""


def sides_of(
    mode: Mode, directory: Path, realm: Realm | None = None, *, authority: TestAuthority | None = None
) -> Sides:
    """Make the files of a mode in ``directory``. mTLS uses PKCS12 files, the other modes PEM files.

    ``realm`` is needed for Kerberos alone. Without ``authority`` the certificates are those of a new one.
    """
    directory.mkdir(parents=True, exist_ok=True)
    authority = authority or TestAuthority(directory / "tls")
    authority.issue("bookie", units=f"0:{BOOKIE_ROLE};1:cluster")
    authority.issue("client", units=f"0:{OPERATOR_ROLE};1:cluster")
    java_bookie, java_client, tables = dict[str, str](), dict[str, str](), list[str]()
    flags, client_flags, variables = ["-Dzookeeper.sasl.client=false"], list[str](), dict[str, str]()
    if mode in _WITH_TLS:
        java_bookie |= _java_files(authority, "bookie", mode)
        java_client |= _java_files(authority, "client", mode)
        tables += _tls_tables(authority, mode)
    if mode is Mode.ROLE:
        java_bookie |= {
            "bookieAuthProviderFactoryClass": "org.apache.bookkeeper.tls.BookieAuthZFactory",
            "authorizedRoles": f"{BOOKIE_ROLE},{OPERATOR_ROLE}",
        }
    if mode in _WITH_PASSWORD or mode is Mode.KERBEROS:
        # Bookies connect to bookies too: as auditor and worker.
        java_bookie |= _BOOKIE_SASL | _CLIENT_SASL
        java_client |= _CLIENT_SASL
        (directory / "jaas.conf").write_text(_jaas(realm if mode is Mode.KERBEROS else None))
        flags.append(f"-Djava.security.auth.login.config={directory}/jaas.conf")
    if mode in _WITH_PASSWORD:
        (directory / "login").write_text(PASSWORD)
        (directory / "login").chmod(0o600)
        login = (f'username = "{USER}"', f'password = "file:{directory}/login"')
        tables += _login_tables(directory, *login)
    if mode is Mode.KERBEROS:
        assert realm is not None
        # Java's client asks for a ticket by the name that it finds for the address.
        lines = [f"{LOOPBACK} {name}\n" for name in (LOOPBACK, "localhost", socket.gethostname())]
        (directory / "hosts").write_text("".join(lines))
        client_flags.append(f"-Djdk.net.hosts.file={directory}/hosts")
        flags.append(f"-Djava.security.krb5.conf={realm.configuration}")
        variables |= realm.variables
        tables += _login_tables(directory, 'mechanism = "GSSAPI"')
    # A login that begins before Java's client has noted its connection asks for a ticket of this machine's own name.
    attempts = 4 if mode in {Mode.TLS_AND_LOGIN, Mode.KERBEROS} else 1
    (directory / "bkctl.toml").write_text("\n".join(tables) + "\n")
    variables["BKCTL_CONFIG"] = str(directory / "bkctl.toml")
    return Sides(java_bookie, java_client, tuple(flags), (*flags, *client_flags), variables, attempts)


def _java_files(authority: TestAuthority, name: str, mode: Mode) -> dict[str, str]:
    """The same keys serve a bookie and a client. Java writes the type of a store in capitals."""
    settings = _TLS_FACTORY | {"tlsClientAuthentication": str(mode in _MUTUAL).lower()}
    settings["tlsCertFilesRefreshDurationSeconds"] = "1"
    if mode is Mode.MUTUAL_TLS:
        return settings | {
            "tlsKeyStoreType": "PKCS12",
            "tlsKeyStore": str(authority.file(f"{name}.p12")),
            "tlsKeyStorePasswordPath": str(authority.file("password")),
            "tlsTrustStoreType": "PKCS12",
            "tlsTrustStore": str(authority.file("ca.p12")),
            "tlsTrustStorePasswordPath": str(authority.file("password")),
        }
    return settings | {
        "tlsKeyStoreType": "PEM",
        "tlsKeyStore": str(authority.file(f"{name}.key")),
        "tlsCertificatePath": str(authority.file(f"{name}.pem")),
        "tlsTrustStoreType": "PEM",
        "tlsTrustStore": str(authority.file("ca.pem")),
    }


def _tls_tables(authority: TestAuthority, mode: Mode) -> list[str]:
    is_mutual = mode in _MUTUAL
    bookie = ["[bookie.tls]", *_files(authority, "bookie", mode)]
    if mode is not Mode.TLS:  # it is the mode in which plain clients are served next to the others, as in Java
        bookie.append("is_required = true")
    if is_mutual:
        bookie.append("is_client_certificate_required = true")
    if mode is Mode.ROLE:
        bookie.append(f'authorized_roles = ["{BOOKIE_ROLE}", "{OPERATOR_ROLE}"]')
    return [
        *bookie,
        *("[bookie_client.tls]", *_files(authority, "client", mode, has_key=is_mutual)),
    ]


def _files(authority: TestAuthority, name: str, mode: Mode, *, has_key: bool = True) -> list[str]:
    if mode is Mode.MUTUAL_TLS:
        return [
            f'ca_file = "{authority.file("ca.p12")}"',
            'ca_type = "PKCS12"',
            f'ca_password = "file:{authority.file("password")}"',
            f'key_file = "{authority.file(f"{name}.p12")}"',
            'key_type = "PKCS12"',
            f'key_password = "file:{authority.file("password")}"',
        ]
    lines = [f'ca_file = "{authority.file("ca.pem")}"']
    if has_key:
        lines += [
            f'certificate_file = "{authority.file(f"{name}.pem")}"',
            f'key_file = "{authority.file(f"{name}.key")}"',
        ]
    return lines


def _login_tables(directory: Path, *login: str) -> list[str]:
    return [
        *("[bookie.sasl]", f'jaas_file = "{directory}/jaas.conf"'),
        *("[bookie_client.sasl]", *login),
    ]


def _jaas(realm: Realm | None) -> str:
    """Sections of a bookie, of a client, and of the auditor that a bookie may start."""
    if realm is None:
        bookie = f'{_DIGEST} user_{USER}="{PASSWORD}"'
        client = f'{_DIGEST} username="{USER}" password="{PASSWORD}"'
    else:
        bookie = f'{_KERBEROS} keyTab="{realm.bookie_keytab}" principal="{realm.bookie_principal}"'
        client = f'{_KERBEROS} keyTab="{realm.client_keytab}" principal="{realm.client_principal}"'
    sections = {"Bookie": bookie, "BookKeeper": client, "Auditor": client}
    return "".join(f"{name} {{\n  {module};\n}};\n" for name, module in sections.items())
