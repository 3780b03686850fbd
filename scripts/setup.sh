#!/usr/bin/env bash
# Builds .venv from requirements.txt (with hashes) and installs bkctl into it, editable.
# First checks the system packages, and reports missing ones in one line before any change.
# A stamp in .venv has the fingerprint of its sources; with the same fingerprint the script does nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

python="${PYTHON:-python3}"
stamp=.venv/.bkctl-setup
missing=()
packages=()

need() { # need "what is missing" package...
    missing+=("$1")
    shift
    packages+=("$@")
}

python_is_at_least() {
    "$python" -c "import sys; sys.exit(sys.version_info < ($1, $2))" 2>/dev/null
}

check_python() {
    if ! python_is_at_least 3 11; then
        need "Python 3.11 or newer as '$python' (found: $("$python" --version 2>/dev/null || echo none); \
select another one with PYTHON=python3.12)" python3 python3-venv
    elif ! "$python" -c "import venv, ensurepip" 2>/dev/null; then
        need "the venv and ensurepip modules of $python" python3-venv
    fi
}

check_java() {
    local java="${JAVA_HOME:+$JAVA_HOME/bin/}java" major
    # First line: openjdk version "17.0.15" ...; before Java 9: "1.8.0".
    major=$("$java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1) || true
    if [ -z "$major" ] || [ "$major" -lt 17 ]; then
        need "a Java runtime 17 or newer (found: ${major:-none})" default-jre-headless
    fi
}

check_leveldb() { # plyvel has no wheels for Python 3.13 and newer, and is compiled
    python_is_at_least 3 13 || return 0
    [ -e .venv/bin/python ] && .venv/bin/python -c "import plyvel" 2>/dev/null && return 0
    if ! command -v g++ >/dev/null \
        || ! echo '#include <leveldb/db.h>' | g++ -E -x c++ - >/dev/null 2>&1 \
        || ! [ -e "$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ]; then
        need "a C++ compiler and the headers of LevelDB and Python" g++ libleveldb-dev python3-dev
    fi
}

check_python
check_java
[ "${#missing[@]}" -gt 0 ] || check_leveldb
if [ "${#missing[@]}" -gt 0 ]; then
    text=$(printf '%s; ' "${missing[@]}")
    echo "make setup: missing: ${text%; }. On Debian: sudo apt-get install ${packages[*]}" >&2
    exit 1
fi

# A virtual environment depends on its path and interpreter, so both are part of the fingerprint.
fingerprint=$({
    pwd
    "$python" -c 'import sys; print(sys.version, sys.executable)'
    cat requirements.txt pyproject.toml
} | sha256sum | cut -d ' ' -f 1)
if [ -e "$stamp" ] && [ "$(cat "$stamp")" = "$fingerprint" ]; then
    exit 0
fi

echo "make setup: building .venv (a few minutes the first time)"
if [ ! -x .venv/bin/python ] || [ "$(cat .venv/.bkctl-python 2>/dev/null)" != "$(pwd) $("$python" -VV | tr '\n' ' ')" ]; then
    "$python" -m venv --clear .venv
    echo "$(pwd) $("$python" -VV | tr '\n' ' ')" >.venv/.bkctl-python
fi
rm -f "$stamp"
pip=(.venv/bin/python -m pip --disable-pip-version-check install --quiet)
# pyspark is a source archive; --use-pep517 builds it the same way with every version of pip.
"${pip[@]}" --use-pep517 --require-hashes -r requirements.txt
# setuptools warns that the directories of an editable install can be shadowed; child processes use -P against that.
PYTHONWARNINGS=ignore "${pip[@]}" --no-deps --no-build-isolation -e .
echo "$fingerprint" >"$stamp"
echo "make setup: done; bkctl is .venv/bin/bkctl"
