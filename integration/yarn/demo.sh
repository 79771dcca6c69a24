#!/usr/bin/env bash
# Runs six training jobs and ten ordinary applications (YARN's distributed shell) on a real YARN on this machine: first
# under the plain CapacityScheduler in the sizes that their owners request, then with Trainmaster. Prints the times of
# both, the jobs' shapes under Trainmaster, and whether every container was on its planned node.
#
#   demo.sh [FOLDER]      keeps the logs in FOLDER (default: a new one under /tmp)
#
# PROFILE           cargo's profile: release (default) or dev
# TRAINMASTER_BIN   a trainmaster that is already built, with trainmaster-trainer beside it
#
# The cluster, the jobs, their arrivals and sizes are fixed below. Devices are emulated: training takes as long as on
# real ones, but hardly any CPU time. YARN only counts the GPUs.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(realpath "$here/../..")
folder=$(realpath -m "${1:-$(mktemp -d /tmp/trainmaster-yarn-demo.XXXX)}")
profile=${PROFILE:-release}
built=$root/target/$([ "$profile" = dev ] && echo debug || echo "$profile")/trainmaster
trainmaster=$(realpath -m "${TRAINMASTER_BIN:-$built}")

# MEMORY:VCORES:GPUS of each NodeManager; per requested GPU as many GPUs as in Slurm's demo
nodes='16384:24:10 12288:16:6 8192:12:4 4096:8:0'
# name, second of arrival, requested workers and parameter servers, epochs: the first six jobs of Slurm's demo
jobs='alpha 0 2 1 60
beta 2 1 1 40
gamma 4 4 2 60
delta 8 2 2 50
epsilon 12 1 1 30
zeta 16 4 2 50'
ordinary=10 # one every 6 seconds: a container with a GPU for 4 to 12 seconds

"$root/scripts/install" yarn
[ -n "${TRAINMASTER_BIN:-}" ] ||
    (cd "$root" && cargo build --locked --profile "$profile" -p trainmaster -p trainmaster-trainer)
for program in "$trainmaster" "$(dirname "$trainmaster")/trainmaster-trainer"; do
    [ -x "$program" ] || { echo "$program is missing: build it, or unset TRAINMASTER_BIN" >&2; exit 1; }
done
jar=$here/master/target/trainmaster-yarn-master.jar
sources=("$here"/pom.xml "$here"/{rm,master}/{pom.xml,src} "$root"/adapters/yarn/*.proto)
if [ ! -f "$jar" ] || [ -n "$(find "${sources[@]}" -newer "$jar" -print -quit)" ]; then
    echo "building the plug-ins and the ApplicationMaster" >&2
    mvn -q -B -ntp -f "$here/pom.xml" package -DskipTests
    touch "$jar"
fi
# Maven's repository lacks Hadoop 3.5.0's shell. This version runs on 3.5.0, with two classes of Jersey that it refers
# to.
shell=$here/master/target/distributedshell
for artifact in org.apache.hadoop:hadoop-yarn-applications-distributedshell:3.4.2 \
    com.sun.jersey:jersey-client:1.19.4; do
    IFS=: read -r _ name version <<<"$artifact"
    [ -f "$shell/$name-$version.jar" ] || mvn -q -B -ntp org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy \
        -Dartifact="$artifact" -DoutputDirectory="$shell"
done
JAVA_HOME=$(dirname "$(dirname "$(readlink -f "$(command -v java)")")") # for the shell's ApplicationMaster
export JAVA_HOME
small=(-Xmx128m -XX:+UseSerialGC -XX:TieredStopAtLevel=1)

free_port() {
    local port
    for port in $(shuf -i 17000-19999 -n 50); do
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || { echo "$port" && return; }
    done
}

started=() # processes besides the cluster's
lab=""
finish() {
    [ ${#started[@]} = 0 ] || kill "${started[@]}" 2>/dev/null || true
    [ -z "$lab" ] || "$here/cluster/stop" "$lab/yarn"
    [ ${#started[@]} = 0 ] || wait "${started[@]}" 2>/dev/null || true
    started=() lab=""
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

description() { # name workers servers epochs
    cat <<END
name = "$1"
mode = "sync"
batch = 240
convergence = { delta = 0.0, max_epochs = $4 }
worker = { gpu = 1, cpu = 1, memory = "128MiB", max = 12, requested = $2, command = "/bin/sh $lab/slot" }
server = { cpu = 1, memory = "128MiB", max = 6, requested = $3 }
END
}

# Prints lines `name state end submitted ended id` of all applications. Times are in milliseconds, from the
# ResourceManager.
applications() {
    # Hadoop's JSON has no spaces.
    local text='"\([^"]*\)"' number='\([0-9]*\)'
    local app="^{\"id\":$text,\"name\":$text,\"state\":$text,\"finalStatus\":$text,"
    local times="\"startedTime\":$number,.*\"finishedTime\":$number,"
    { curl -fsS -m 10 "$TRAINMASTER_YARN_WEB/ws/v1/cluster/apps?deSelects=resourceRequests" && echo; } |
        sed 's/{"id":"application/\n&/g' |
        sed "s/\"user\":\"[^\"]*\",//; s/\"queue\":\"[^\"]*\",//" |
        sed -n "s/$app.*$times.*/\2 \3 \4 \5 \6 \1/p"
}

# Submits all applications at their times, waits until they end, and writes the lines of `applications` to
# applications.txt.
play() {
    local begun=$SECONDS todo=$jobs name at w p epochs n=0 ended=0 all
    all=$(($(wc -l <<<"$jobs") + ordinary))
    while [ "$ended" -lt "$all" ]; do
        while [ -n "$todo" ]; do
            read -r name at w p epochs <<<"$todo"
            [ $((SECONDS - begun)) -ge "$at" ] || break
            description "$name" "$w" "$p" "$epochs" >"$lab/$name.toml"
            TRAINMASTER_YARN=$lab/yarn.toml "$trainmaster" yarn submit "$lab/$name.toml" >>"$lab/submitted"
            todo=$(tail -n +2 <<<"$todo")
        done
        if [ $n -lt $ordinary ] && [ $((SECONDS - begun)) -ge $((n * 6)) ]; then
            echo "ordinary$n $((4 + n * 7 % 9))" >&"$shells"
            n=$((n + 1))
        fi
        sleep 1
        applications >"$lab/applications.txt"
        ended=$(grep -cE '^[^ ]+ (FINISHED|FAILED|KILLED) ' "$lab/applications.txt" || true)
        [ ! -t 2 ] || printf '\r\e[K%s: %3d s, %d of %d applications have ended' "$1" $((SECONDS - begun)) "$ended" \
            "$all" >&2
        if [ $((SECONDS - begun)) -ge 300 ]; then
            echo "some applications have not ended within five minutes:" >&2
            cat "$lab/applications.txt" >&2
            return 1
        fi
    done
    [ ! -t 2 ] || printf '\r\e[K' >&2
    exec {shells}>&-
}

# Starts a cluster in $folder/NAME, with the plug-ins if the second argument isn't empty.
start() { # name, plug-ins (with or empty), additional lines of yarn.toml
    local adapter
    lab=$folder/$1
    mkdir -p "$lab"/{checkpoints,home}
    adapter=127.0.0.1:$(free_port)
    # The program of all containers. It records its slot, from its environment.
    cat >"$lab/slot" <<END
echo "\$CONTAINER_ID \$TRAINMASTER_INCARNATION \$TRAINMASTER_ROLE \$TRAINMASTER_INDEX" >>"$lab/slots.txt"
exec "$(dirname "$trainmaster")/trainmaster-trainer" --device-example-ms 1 --device-step-ms 20 --device-update-ms 10
END
    : >"$lab/slots.txt"
    # All ApplicationMasters run on this machine. Java's second compiler would cost them more time than it saves.
    NODES=$nodes NM_PROPERTIES="yarn.nodemanager.sleep-delay-before-sigkill.ms=5000
yarn.nodemanager.admin-env=JAVA_TOOL_OPTIONS=-XX:TieredStopAtLevel=1" \
        PROPERTIES="trainmaster.yarn.checkpoints=$lab/checkpoints
trainmaster.yarn.address=$adapter
yarn.application.classpath=$lab/yarn/conf,$shell/*,$here/rm/target/hadoop/*" \
        "$here/cluster/start" "$lab/yarn" ${2:+"$adapter"} >&2
    . "$lab/yarn/env"
    exec {shells}> >(exec java "${small[@]}" -Duser.home="$lab/home" \
        -cp "$HADOOP_CONF_DIR:$shell/*:$TRAINMASTER_YARN_CLASSPATH" "$here/demo/Shells.java" \
        "$shell"/hadoop-yarn-applications-distributedshell-*.jar >"$lab/shells.log" 2>&1)
    started+=($!)
    local token=${2:+"token_file = \"$lab/yarn/plug-ins.token\""}
    cat >"$lab/yarn.toml" <<END
listen = "$adapter"
resourcemanager = "$TRAINMASTER_YARN_WEB"
$token
${3:-}
[master]
classpath = "$jar:$HADOOP_CONF_DIR:$TRAINMASTER_YARN_CLASSPATH"
memory = "256MiB"
END
}

plain() {
    # No daemon runs. After a second without one, an ApplicationMaster runs its job in the requested shape (standalone
    # mode).
    start plain '' 'ttl = "1s"'
    play 'plain CapacityScheduler'
    finish
}

with_trainmaster() {
    local port placements
    start trainmaster with
    cat >"$lab/trainmaster.toml" <<END
[scheduler]
engine = "optimus"
stability = { min_run = "5s", rescales_per_hour = 60, payback = 1.0 }
[scheduler.parameters]
interval = "10s"
END
    port=$(free_port)
    "$trainmaster" serve --config "$lab/trainmaster.toml" --listen "127.0.0.1:$port" --state-dir "$lab/state" \
        --adapter "yarn=$lab/yarn.toml" >"$lab/daemon.log" 2>&1 &
    started+=($!)
    java "${small[@]}" -cp "$TRAINMASTER_YARN_CLASSPATH" "$here/demo/Placements.java" \
        "$trainmaster" "http://127.0.0.1:$port" "$TRAINMASTER_YARN_WEB" "$lab/slots.txt" "$(wc -l <<<"$jobs")" \
        >"$lab/placements.txt" 2>"$lab/placements.log" &
    placements=$!
    started+=($placements)
    play 'with Trainmaster'
    wait "$placements" && placed=0 || placed=$?
    finish
}

table() {
    local name w p
    printf '%-10s %5s %10s %14s  %s\n' job asked 'plain, s' 'Trainmaster, s' '(w,p) it had'
    while read -r name _ w p _; do
        echo "$name ($w,$p) $(sed -n "s/^shapes $name //p" "$folder/trainmaster/placements.txt")"
    done <<<"$jobs" | cat - "$folder/plain/applications.txt" "$folder/trainmaster/applications.txt" | awk '
        NF > 1 && $2 ~ /^\(/ { asked[$1] = $2; names[++n] = $1; $1 = $2 = ""; shapes[names[n]] = substr($0, 3); next }
        { if ($3 != "SUCCEEDED") bad = bad " " $1 ":" $3; seconds = ($5 - $4) / 1000 }
        $1 in seen { ours[$1] = seconds; if ($1 ~ /^ordinary/) { po += plain[$1]; oo += ours[$1]; os++ } next }
        { seen[$1]; plain[$1] = seconds }
        END {
            for (i = 1; i <= n; i++) {
                name = names[i]
                printf "%-10s %5s %10.1f %14.1f  %s\n", name, asked[name], plain[name], ours[name], shapes[name]
                p += plain[name]; o += ours[name]
            }
            printf "%-10s %5s %10.1f %14.1f  %.2f times\n", "mean", "", p / n, o / n, p / o
            printf "%-10s %5s %10.1f %14.1f  mean of %d distributed shells\n", "ordinary", "", po / os, oo / os, os
            if (bad != "") { print "not succeeded:" bad; exit 1 }
        }'
}

# Prints the accuracies that a job's processes logged for the last epoch but one: they end after the last epoch.
reached() { # name, half, epochs
    local id
    id=$(awk -v name="$1" '$1 == name { print $6 }' "$folder/$2/applications.txt")
    cat "$folder/$2"/yarn/nm*/logs/"$id"/*/stderr | grep -o "epoch $(($3 - 1)): accuracy .*" | sort -u
}

for half in plain trainmaster; do
    [ ! -e "$folder/$half" ] || { echo "$folder/$half exists; choose another folder" >&2 && exit 1; }
done
mkdir -p "$folder"
echo "plain CapacityScheduler, then Trainmaster; logs in $folder" >&2
plain
with_trainmaster
echo '(w,p): workers and parameter servers; ~ changed in place, ! restarted from a checkpoint'
status=0
table || status=1
echo
grep -v '^shapes' "$folder/trainmaster/placements.txt"
cat "$folder/trainmaster/placements.log"
[ "$placed" = 0 ] || { echo "a container was on another node than planned, or no job changed its shape" && status=1; }
while read -r name _ _ _ epochs; do
    ours=$(reached "$name" trainmaster "$epochs") theirs=$(reached "$name" plain "$epochs")
    [ -n "$ours" ] && [ "$ours" = "$theirs" ] ||
        { echo "$name: '$theirs' under plain CapacityScheduler, '$ours' with Trainmaster" && status=1; }
done <<<"$jobs"
[ $status = 1 ] || echo "every job trained all its epochs, to the same accuracy in both runs"
exit $status
