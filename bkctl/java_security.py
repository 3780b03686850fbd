"""TLS and logins of a Java configuration file: which tables of settings its keys fill. Source: wire section 12.

In Java one key switches TLS on, and the others count only then; so they have no place in the descriptions of settings.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from bkctl.java_security_keys import SECURITY_KEYS
from bkctl.runtime.errors import ConfigurationError
from bkctl.runtime.security.secrets import is_reference
from bkctl.runtime.security_config import SHOW_CERTIFICATE, TLS_VERSIONS, StoreType, TlsFiles
from bkctl.setting_readers import FALSE, Given, Givens, Path, truth
from bkctl.storage.words import listed

if TYPE_CHECKING:
    from bkctl.java_conf import JavaConf

_TLS_CLASS: Final = "tlsProviderFactoryClass"
_CLIENT_LOGIN_CLASS: Final = "clientAuthProviderFactoryClass"
_BOOKIE_LOGIN_CLASS: Final = "bookieAuthProviderFactoryClass"
_TLS: Final = "org.apache.bookkeeper.tls.TLSContextFactory"
_ROLES: Final = "org.apache.bookkeeper.tls.BookieAuthZFactory"
_CLIENT_SASL: Final = "org.apache.bookkeeper.sasl.SASLClientProviderFactory"
_BOOKIE_SASL: Final = "org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory"

_TOO_OLD: Final = frozenset({"SSLv2Hello", "SSLv3", "TLSv1", "TLSv1.1"})
"""TLS versions that files still name, and OpenSSL no longer has."""
_PEM: Final = Given("PEM", "", "")
_PROTOCOLS: Final = "tlsEnabledProtocols"
_SUITES: Final = "tlsEnabledCipherSuites"
_SUITE: Final = re.compile(
    r"TLS_(?P<exchange>(?:ECDHE_|DHE_)?(?:RSA|ECDSA))_WITH_(?:AES_(?P<bits>128|256)_(?P<mode>GCM|CBC)|CHACHA20_POLY1305)"
    r"_(?P<hash>SHA[0-9]*)"
)
_SUITE_OF_TLS_1_3: Final = re.compile(r"TLS_(AES_[0-9]+_\w+|CHACHA20_POLY1305)_SHA[0-9]+")
_FILE_KEY: Final = re.compile(
    r"\b(?:(?:client|tls)(?:Trust|Key)Store|tlsCertificatePath|httpServer(?:Trust|Key)StorePath)(?=\)?$)"
)
_OF_TLS: Final = frozenset(
    key
    for key in SECURITY_KEYS
    if key.startswith(("client", "tls")) and not key.endswith(("Class", "PasswordPath", "Type"))
)
"""The keys that need another one, which switches TLS on; without those that only belong to a store."""
_KEYS: Final = {"ca": "tlsTrustStore", "certificate": "tlsCertificatePath", "key": "tlsKeyStore"}
"""What a Java bookie and client need for TLS, by our names of the files."""

_JUDGED_LATER: Final = {
    "ciphers": _SUITES,
    "allowed_ids": "saslJaasClientAllowedIds",
    "permitted_startup_users": "permittedStartupUsers",
}
"""Keys of settings whose values are judged when they are used."""

_CLIENT: Final = ("bookie_client",)
_BOOKIE: Final = ("bookie",)


def client_security(conf: JavaConf) -> Givens:
    """[bookie_client] as the file asks for it; ConfigurationError for a class that bkctl does not have."""
    givens: Givens = {}
    if _has_tls(conf):
        givens |= _tls_table(conf, (*_CLIENT, "tls"), ("client", "tls"))
        # Without the key Java does not verify names.
        is_checked = _is_on(conf, "tlsHostnameVerificationEnabled")
        givens[*_CLIENT, "tls", "is_hostname_checked"] = _given(conf, "tlsHostnameVerificationEnabled", is_checked)
        if not _is_on(conf, "tlsClientAuthentication"):
            has_key = (*_CLIENT, "tls", "key_file") in givens
            for name in ("key_file", "key_type", "key_password", "certificate_file"):
                givens.pop((*_CLIENT, "tls", name), None)
            if has_key:  # then only this is missing
                missing = Given(SHOW_CERTIFICATE, "", "")
                givens |= {(*_CLIENT, "tls", f"{name}_java_key"): missing for name in ("key", "certificate")}
    else:
        givens[*_CLIENT, "tls_java_key"] = Given(_TLS_CLASS, "", "")
    if _class_of(conf, _CLIENT_LOGIN_CLASS, _CLIENT_SASL) is None:
        givens[*_CLIENT, "sasl_java_key"] = Given(_CLIENT_LOGIN_CLASS, "", "")
    else:
        givens |= _sasl_table(
            conf,
            _CLIENT,
            _CLIENT_LOGIN_CLASS,
            saslJaasClientSectionName="jaas_section",
            saslJaasAuditorSectionName="jaas_daemon_section",
        )
    return givens


def clear_text_warnings(conf: JavaConf | None, tls: TlsFiles | None) -> tuple[str, ...]:
    """A sentence about keys of TLS in a file that does not switch it on, unless another source did: ``tls``."""
    if conf is None or tls is not None or conf.text(_TLS_CLASS) is not None:
        return ()
    given = [key for key, value, _ in conf.settings() if key in _OF_TLS and (value or "no").lower() not in FALSE]
    if not given:
        return ()
    return (
        f"{conf.origin}: {listed(given)} {'has' if len(given) == 1 else 'have'} no effect without {_TLS_CLASS}={_TLS}: "
        "connections are in clear text",
    )


def bookie_security(conf: JavaConf) -> Givens:
    """[bookie.tls] and [bookie.sasl] as the file asks for them; ConfigurationError."""
    givens: Givens = {}
    has_tls = _has_tls(conf)
    if has_tls:
        givens |= _tls_table(conf, (*_BOOKIE, "tls"), ("tls",))
        if conf.text("tlsClientAuthentication") is not None:
            is_required = _is_on(conf, "tlsClientAuthentication")
            given = _given(conf, "tlsClientAuthentication", is_required)
            givens[*_BOOKIE, "tls", "is_client_certificate_required"] = given
    login = _class_of(conf, _BOOKIE_LOGIN_CLASS, _BOOKIE_SASL, _ROLES)
    roles = conf.texts("authorizedRoles")
    if login == _ROLES:
        if not has_tls:
            raise ConfigurationError(f"{conf.source(_BOOKIE_LOGIN_CLASS)}: roles need TLS: set {_TLS_CLASS}={_TLS}")
        if not roles:
            raise ConfigurationError(f"{conf.source(_BOOKIE_LOGIN_CLASS)} needs the roles: set authorizedRoles")
        givens[*_BOOKIE, "tls", "authorized_roles"] = _given(conf, "authorizedRoles", list(roles))
    elif roles:
        raise ConfigurationError(f"{conf.source('authorizedRoles')} needs {_BOOKIE_LOGIN_CLASS}={_ROLES}")
    if login == _BOOKIE_SASL:
        givens |= _sasl_table(
            conf,
            _BOOKIE,
            _BOOKIE_LOGIN_CLASS,
            saslJaasBookieSectionName="jaas_section",
            saslJaasClientAllowedIds="allowed_ids",
        )
    return givens


def with_file_keys(values: Givens) -> Givens:
    """Values of all sources, with the key of each file that a Java file gives: errors about it name this key.

    Also the place of a value that is judged later, and, in a table that a Java file asks for, the key of each file that
    is missing.
    """
    keys: Givens = {}
    given_names = {(*path[:-1], path[-1].removesuffix("_file")) for path in values}  # of files and tables
    values = {
        path: given
        for path, given in values.items()
        if not path[-1].endswith("_java_key") or (*path[:-1], path[-1].removesuffix("_java_key")) not in given_names
    }
    for path, given in values.items():
        if path[-1].endswith("_file") and (found := _FILE_KEY.search(given.origin)) is not None:
            keys[*path[:-1], path[-1].replace("_file", "_java_key")] = given._replace(value=found[0])
        elif (key := _JUDGED_LATER.get(path[-1])) is not None and key in given.origin:
            keys[*path[:-1], f"{path[-1]}_java_key"] = given._replace(value=given.origin)
        elif path[-1] == "tls" and _TLS_CLASS in given.origin:
            missing = {name: key for name, key in _KEYS.items() if (*path, f"{name}_file") not in values}
            keys |= {(*path, f"{name}_java_key"): given._replace(value=key) for name, key in missing.items()}
    return keys | values


def with_admin_stores(values: Givens, section: str) -> Givens:
    """Values of Java's keys, with the form of an admin port's stores; ConfigurationError for a password itself."""
    types: Givens = {}
    for side, key in (("key", "httpServerKeyStorePassword"), ("ca", "httpServerTrustStorePassword")):
        file, password, form = ((section, "admin", "tls", f"{side}_{name}") for name in ("file", "password", "type"))
        if password in values and not is_reference(str(values[password].value)):
            raise ConfigurationError(
                f"{values[password].origin}: it contains the password itself: write that to a file that only the "
                f"bookie's user can read, and set {key}=file:PATH"
            )
        if file in values:
            types[form] = values[file]._replace(value=StoreType.PKCS12)
    return values | types


def _has_tls(conf: JavaConf) -> bool:
    return _class_of(conf, _TLS_CLASS, _TLS) is not None


def _class_of(conf: JavaConf, key: str, *known: str) -> str | None:
    name = conf.text(key)
    if name is None or name.lower() in FALSE:
        return None
    if name not in known:
        raise ConfigurationError(f"{conf.written(key)}: bkctl has only {' and '.join(known)}")
    return name


def _tls_table(conf: JavaConf, path: Path, prefixes: tuple[str, ...]) -> Givens:
    """Files, versions and suites. Of each kind of store, the keys of the first prefix that names one count."""
    givens: Givens = {path: _given(conf, _TLS_CLASS, {})}
    for store, name in (("TrustStore", "ca"), ("KeyStore", "key")):
        prefix = next((each for each in prefixes if conf.text(each + store) is not None), None)
        if prefix is None:
            continue
        key = prefix + store
        givens[*path, f"{name}_file"] = _given(conf, key, conf.text(key))
        type_key = f"{key}Type"
        # Java's default is JKS. Whether the file is one is seen when it is read, and refused then.
        store_type = "PEM" if (conf.text(type_key) or "JKS").upper() == "PEM" else "PKCS12"
        givens[*path, f"{name}_type"] = _given(conf, type_key, store_type)
        password_key = f"{key}PasswordPath"
        if (password_path := conf.text(password_key)) is not None:
            givens[*path, f"{name}_password"] = _given(conf, password_key, f"file:{password_path}")
    if conf.text("tlsCertificatePath") is not None and givens.get((*path, "key_type"), _PEM).value == "PEM":
        givens[*path, "certificate_file"] = _given(conf, "tlsCertificatePath", conf.text("tlsCertificatePath"))
    return givens | _versions_and_suites(conf, path)


def _versions_and_suites(conf: JavaConf, path: Path) -> Givens:
    """Both have lists in the file; OpenSSL cannot restrict the suites of TLS 1.3."""
    givens: Givens = {}
    suites = [suite for suite in conf.texts(_SUITES) if _SUITE_OF_TLS_1_3.fullmatch(suite) is None]
    if suites:
        givens[*path, "ciphers"] = _given(conf, _SUITES, [_openssl_name(suite) for suite in suites])
    elif conf.texts(_SUITES):
        givens[*path, "protocols"] = _given(conf, _SUITES, ["TLSv1.3"])
    versions = [version for version in conf.texts(_PROTOCOLS) if version in TLS_VERSIONS]
    others = [version for version in conf.texts(_PROTOCOLS) if version not in TLS_VERSIONS]
    if versions:
        others = [version for version in others if version not in _TOO_OLD]
        givens[*path, "protocols"] = _given(conf, _PROTOCOLS, versions)
    if others:
        raise ConfigurationError(_not_supported(conf, others))
    return givens


def old_version_warnings(conf: JavaConf) -> list[str]:
    """A sentence about TLS versions that a file names next to those that are used."""
    old = [version for version in conf.texts(_PROTOCOLS) if version in _TOO_OLD]
    return [_not_supported(conf, old, " and left out")] if old and _has_tls(conf) else []


def _not_supported(conf: JavaConf, versions: list[str], more: str = "") -> str:
    are = "is" if len(versions) == 1 else "are"
    return f"{conf.source(_PROTOCOLS)}: {listed(versions)} {are} not supported{more} (use {', '.join(TLS_VERSIONS)})"


def _openssl_name(suite: str) -> str:
    """OpenSSL's name of a suite; those without a known one stay, and are refused by name when they are used."""
    match = _SUITE.fullmatch(suite)
    if match is None:
        return suite
    exchange = "" if match["exchange"] == "RSA" else match["exchange"].replace("_", "-") + "-"
    if match["bits"] is None:
        return f"{exchange}CHACHA20-POLY1305"
    return f"{exchange}AES{match['bits']}{'-GCM' if match['mode'] == 'GCM' else ''}-{match['hash']}"


def _sasl_table(conf: JavaConf, section: Path, class_key: str, **names: str) -> Givens:
    """The login that a class asks for. ``names``: the settings of the keys that only this side has."""
    givens: Givens = {(*section, "sasl"): _given(conf, class_key, {})}
    for key, name in {**names, "bookkeeper.sasl.servicename": "service"}.items():
        if (text := conf.text(key)) is not None:
            givens[*section, "sasl", name] = _given(conf, key, text)
    return givens


def _is_on(conf: JavaConf, key: str) -> bool:
    return truth(conf.text(key) or "false", conf.written(key), is_java=True)


def _given(conf: JavaConf, key: str, value: object) -> Given:
    return Given(value, conf.source(key), conf.written(key))
