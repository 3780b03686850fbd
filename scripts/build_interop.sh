#!/usr/bin/env bash
# Compiles the Java program of the interoperability tests and collects the jars of Apache BookKeeper.
# Does nothing while target/ is newer than the sources.
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
# The class path is written last and then renamed, so that an interrupted build does not look finished.
mvn --batch-mode --quiet clean compile dependency:build-classpath -Dmdep.outputFile=target/classpath.part \
    | sed $'s/\x1b\\[[0-9;]*m//g' # no option of Maven disables these colour codes
echo "$PWD/target/classes:$(cat target/classpath.part)" >"$class_path"
