#!/usr/bin/env bash
# Compiles the Java program of the interoperation tests and collects the jars of Apache BookKeeper beside it.
# Nothing is done while target/ is newer than the sources.
set -euo pipefail
cd "$(dirname "$0")/../tests/interop"

class_path=target/classpath.txt
if [ -e "$class_path" ] && [ -z "$(find pom.xml src -type f -newer "$class_path")" ]; then
    exit 0
fi
if ! command -v mvn >/dev/null || ! command -v javac >/dev/null; then
    echo "make interop: missing: Maven and a JDK 17 or newer. On Debian: sudo apt-get install maven default-jdk-headless" >&2
    exit 1
fi
echo "make interop: building the Java side with Maven (a minute the first time)"
# The class path is written last and under its own name, so that an interrupted build is not taken for a finished one.
mvn --batch-mode --quiet clean compile dependency:build-classpath -Dmdep.outputFile=target/classpath.part \
    | sed $'s/\x1b\\[[0-9;]*m//g' # colour codes that no option of Maven's switches off
echo "$PWD/target/classes:$(cat target/classpath.part)" >"$class_path"
