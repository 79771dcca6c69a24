#!/usr/bin/env bash
# Measures the cost of the plug-ins: the containers per second that a ResourceManager allocates, alternately without and
# with them. Prints both medians and their ratio with an interval. Nothing is asserted, because rates depend on the
# machine.
#
#   bench.sh [ROUNDS=12] [NODES=100]
#
# Each round measures both, each in a new ResourceManager, in one process. Nodes and ApplicationMasters are simulated.
# CPU time is that of the whole process; it depends less on other load. Takes two minutes on an idle machine.
set -euo pipefail
cd "$(dirname "$0")"
if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    sed -n '2,/^set /s/^# \{0,1\}//p' "${0##*/}"
    exit
fi
rounds=${1:-12} nodes=${2:-100}
if ! [[ $rounds =~ ^[0-9]+$ && $nodes =~ ^[0-9]+$ ]] || ((rounds < 10 || nodes < 1 || nodes > 250)); then
    echo "bench.sh: ROUNDS must be at least 10, NODES from 1 to 250" >&2
    exit 2
fi
mvn -B -q -pl rm test-compile dependency:build-classpath \
    -Dmdep.outputFile=target/bench.classpath -Dmdep.includeScope=test
# Packages that Hadoop accesses by reflection on Java 17.
opens=$(sed -n 's#.*<hadoop.opens>\(.*\)</hadoop.opens>.*#\1#p' pom.xml)
# shellcheck disable=SC2086 # several arguments
exec java -Xmx1g $opens -Dtest.log=FATAL \
    -cp "rm/target/test-classes:rm/target/classes:$(cat rm/target/bench.classpath)" \
    io.trainmaster.yarn.AllocationBench "$rounds" "$nodes"
