#!/usr/bin/env bash
# What the plug-ins cost YARN: containers that a ResourceManager allocates in a second, without them and with them, in turn.
# Prints the median of each, and their ratio with an interval. Nothing is asserted: rates are a machine's.
#
#   bench.sh [ROUNDS=12] [NODES=100]
#
# A round is both, each in a ResourceManager of its own, in one process; nodes and ApplicationMasters are played. CPU time, of
# the whole process, suffers less from what else runs. Two minutes, on a machine with nothing else to do.
set -euo pipefail
cd "$(dirname "$0")"
if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    sed -n '2,/^set /s/^# \{0,1\}//p' "${0##*/}"
    exit
fi
rounds=${1:-12} nodes=${2:-100}
if ! [[ $rounds =~ ^[0-9]+$ && $nodes =~ ^[0-9]+$ ]] || ((rounds < 10 || nodes < 1 || nodes > 250)); then
    echo "bench.sh: ROUNDS are 10 or more, NODES 1 to 250" >&2
    exit 2
fi
mvn -B -q -pl rm test-compile dependency:build-classpath -Dmdep.outputFile=target/bench.classpath -Dmdep.includeScope=test
# What Hadoop reaches into on Java 17.
opens=$(sed -n 's#.*<hadoop.opens>\(.*\)</hadoop.opens>.*#\1#p' pom.xml)
# shellcheck disable=SC2086 # they are several
exec java -Xmx1g $opens -Dtest.log=FATAL -cp "rm/target/test-classes:rm/target/classes:$(cat rm/target/bench.classpath)" \
    io.trainmaster.yarn.AllocationBench "$rounds" "$nodes"
