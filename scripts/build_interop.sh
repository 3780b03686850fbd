#!/usr/bin/env bash
# Compiles the Java program of the interoperability tests and collects the jars of three releases of Apache BookKeeper.
# Does nothing while target/ is newer than the sources.
set -euo pipefail
cd "$(dirname "$0")/../tests/interop"

releases=(4.14.7 4.17.2 4.18.0) # the newest last: the program is compiled with it
newest=${releases[-1]}
last_file=target/classpath-${newest%.*}.txt
if [ -e "$last_file" ] && [ -z "$(find pom.xml src ../../scripts/build_interop.sh -type f -newer "$last_file")" ]; then
    exit 0
fi
if ! command -v mvn >/dev/null || ! command -v javac >/dev/null; then
    echo "make interop: missing: Maven and a JDK 17 or newer. On Debian: sudo apt-get install maven default-jdk-headless" >&2
    exit 1
fi
echo "make interop: building the Java side with Maven (a minute the first time)"
quiet_maven() {
    mvn --batch-mode --quiet "$@" | sed $'s/\x1b\[[0-9;]*m//g' # no option of Maven disables these colour codes
}
quiet_maven -Dbookkeeper.version="$newest" clean compile
jar --create --file target/interop.jar -C target/classes . # archives of classes take jars alone
# The file of the newest release comes last: it shows that the build is complete.
for release in "${releases[@]}"; do
    quiet_maven -Dbookkeeper.version="$release" dependency:build-classpath -Dmdep.outputFile=target/classpath.part
    echo "$PWD/target/interop.jar:$(cat target/classpath.part)" >"target/classpath-${release%.*}.txt"
done
