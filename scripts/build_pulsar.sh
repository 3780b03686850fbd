#!/usr/bin/env bash
# Collects the jars of a Pulsar broker (some 230 MB) and compiles the program that drives its clients in the tests.
# Does nothing while target/classpath-pulsar.txt is newer than the sources.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/build_interop.sh
cd tests/interop

last_file=target/classpath-pulsar.txt
if [ -e "$last_file" ] && [ -z "$(find pulsar ../../scripts/build_pulsar.sh -type f -newer "$last_file")" ]; then
    exit 0
fi
echo "make pulsar: getting Pulsar with Maven (minutes the first time)"
mvn --batch-mode --quiet --file pulsar/pom.xml dependency:build-classpath -Dmdep.outputFile="$PWD/target/classpath.part" |
    sed $'s/\x1b\[[0-9;]*m//g'
classes=$PWD/target/pulsar-classes
class_path=$classes:$PWD/target/classes:$(cat target/classpath.part)
mkdir -p "$classes"
javac -nowarn -d "$classes" -cp "$class_path" pulsar/src/*.java
echo "$class_path" >"$last_file"
