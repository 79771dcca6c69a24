#!/usr/bin/env bash
# Runs eight training jobs and twenty ordinary ones on a real Slurm of 6 nodes with 4 (fake) GPUs each: first on plain
# Slurm in the sizes that their owners request, then with Trainmaster. Prints the times of both, and the changes by
# Trainmaster.
#
#   demo.sh [FOLDER]      keeps the logs in FOLDER (default: a new one under /tmp)
#
# Needs root, as cluster/start does. Jobs, arrivals and sizes are fixed below. Devices are emulated: training takes as
# long as on real ones, but hardly any CPU time.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(realpath "$here/../..")
folder=$(realpath -m "${1:-$(mktemp -d /tmp/trainmaster-slurm-demo.XXXX)}")
chmod a+rx "$folder" 2>/dev/null || true # the user munge needs access to its socket
profile=${PROFILE:-release}
programs=$root/target/$([ "$profile" = dev ] && echo debug || echo "$profile")

# name, second of arrival, requested workers and parameter servers, maximum of epochs
jobs='alpha 0 2 1 60
beta 2 1 1 40
gamma 4 4 2 60
delta 8 2 2 50
epsilon 12 1 1 30
zeta 16 4 2 50
eta 20 2 1 40
theta 24 1 1 30'
ordinary=20 # one every 3 seconds: a GPU for 4 to 12 seconds

"$here/../../scripts/install" slurm
(cd "$root" && cargo build --locked --profile "$profile" -p trainmaster-trainer)
make -s -C "$here" PROFILE="$profile"

script() { # name workers servers epochs
    cat <<END
#!/bin/bash
#SBATCH --job-name=$1 -N 1 -n $(($2 + $3)) --gpus-per-node=$2 -o out-$1 --open-mode=append
#TRAINMASTER mode = sync
#TRAINMASTER batch = 240
#TRAINMASTER worker.requested = $2
#TRAINMASTER worker.max = 12
#TRAINMASTER worker.gpu = 1
#TRAINMASTER worker.cpu = 1
#TRAINMASTER server.requested = $3
#TRAINMASTER server.max = 6
#TRAINMASTER server.cpu = 1
#TRAINMASTER convergence.delta = 0
#TRAINMASTER convergence.max_epochs = $4
export TRAINMASTER_WORKERS=$2 TRAINMASTER_SERVERS=$3 TRAINMASTER_BATCH=240 TRAINMASTER_DELTA=0 TRAINMASTER_MAX_EPOCHS=$4
cat > run-\$SLURM_JOB_ID <<'INNER'
echo "$1 \$TRAINMASTER_INCARNATION \$TRAINMASTER_ROLE \$TRAINMASTER_INDEX" \\
    "\$SLURMD_NODENAME \${CUDA_VISIBLE_DEVICES:--}" >> devices
exec trainmaster-trainer --device-example-ms 1 --device-step-ms 20 --device-update-ms 10
INNER
trainmaster-step -- bash run-\$SLURM_JOB_ID
END
}

# Submits all jobs at their times, waits until they end, and writes "name submit end state restarts" to jobs.txt.
play() {
    local begun=$SECONDS name at w p epochs n=0 left
    while [ $n -lt $ordinary ] || [ -n "$todo" ]; do
        while [ -n "$todo" ]; do
            read -r name at w p epochs <<<"$todo"
            [ $((SECONDS - begun)) -ge "$at" ] || break
            script "$name" "$w" "$p" "$epochs" >"$name.sh"
            echo "$(sbatch --parsable "$name.sh") $(date +%s)" >>submitted
            todo=$(tail -n +2 <<<"$todo")
        done
        if [ $n -lt $ordinary ] && [ $((SECONDS - begun)) -ge $((n * 3)) ]; then
            sbatch --parsable -J "ordinary$n" -n 1 --gpus-per-node=1 -o /dev/null --wrap "sleep $((4 + n * 7 % 9))" |
                sed "s/$/ $(date +%s)/" >>submitted
            n=$((n + 1))
        fi
        sleep 0.5
    done
    while left=$(squeue -h | wc -l) && [ "$left" -gt 0 ]; do
        [ -t 2 ] && printf '\r%s jobs left ' "$left" >&2
        if [ $((SECONDS - begun)) -ge 600 ]; then
            echo "some jobs have not ended within ten minutes:" >&2
            squeue >&2
            return 1
        fi
        sleep 1
    done
    # Slurm's SubmitTime is the time of the last restart, so that `submitted` has its own.
    scontrol --oneliner show job | awk '{
        for (i = 1; i <= NF; i++) { at = index($i, "="); value[substr($i, 1, at - 1)] = substr($i, at + 1) }
        print value["JobId"], value["JobName"], value["EndTime"], value["JobState"], value["Restarts"] }' |
        while read -r id name to state restarts; do
            echo "$name $(awk -v id="$id" '$1 == id { print $2 }' submitted) $(date -d "$to" +%s) $state $restarts"
        done >jobs.txt
}

run() { # name, lines of slurm.conf
    local lab=$folder/$1 todo=$jobs
    mkdir -p "$lab/etc"
    cat >"$lab/etc/trainmaster.toml" <<END
poll = "500ms"
[feed]
listen = "127.0.0.1:${FEED_PORT:-17071}"
[slurm]
feed = "http://127.0.0.1:${FEED_PORT:-17071}"
[scheduler]
engine = "optimus"
stability = { min_run = "5s", rescales_per_hour = 60, payback = 1.0 }
[scheduler.parameters]
interval = "10s"
END
    EXTRA=$2 PLUGINS=$root/target/slurm "$here/cluster/start" "$lab" 6 4 >&2
    trap '"$here/cluster/stop" "$lab"' EXIT
    (
        set +u
        . "$lab/env"
        export PATH=$programs:$here:$PATH
        cd "$lab"
        play
    )
    "$here/cluster/stop" "$lab"
    trap - EXIT
}

echo "plain Slurm, then Trainmaster; logs in $folder" >&2
run plain ''
run trainmaster $'SlurmctldPlugstack=trainmaster\nJobSubmitPlugins=trainmaster'

table() {
    awk '
        FILENAME ~ /plain/ { plain[$1] = $3 - $2; if ($4 != "COMPLETED") bad = bad " plain:" $1 ":" $4; next }
        { ours[$1] = $3 - $2; restarts[$1] = $5; if ($4 != "COMPLETED") bad = bad " " $1 ":" $4 }
        END {
            printf "%-10s %14s %14s %9s\n", "job", "plain Slurm, s", "Trainmaster, s", "restarts"
            for (name in plain) {
                if (name ~ /^ordinary/) { po += plain[name]; oo += ours[name]; os++; continue }
                printf "%-10s %14d %14d %9d\n", name, plain[name], ours[name], restarts[name] | "sort"
                p += plain[name]; o += ours[name]; n++
            }
            close("sort")
            printf "%-10s %14.1f %14.1f %9s  (%.2f times)\n", "mean", p / n, o / n, "", p / o
            printf "%-10s %14.1f %14.1f\n", "ordinary", po / os, oo / os
            if (bad != "") { print "not completed:" bad; exit 1 }
        }' "$folder/plain/jobs.txt" "$folder/trainmaster/jobs.txt"
}
table

cd "$folder/trainmaster"
echo
echo "shapes of the jobs (number of workers per incarnation, in order):"
awk '$3 == "worker" { n[$1 " " $2]++ } END { for (key in n) print key, n[key] }' devices | sort -k1,1 -k2,2n |
    awk '{ line[$1] = line[$1] " " $3 "w" } END { for (name in line) print "  " name ":" line[name] }' | sort
# Each worker sees one GPU, which no other worker on its node has in that incarnation. Parameter servers see none.
awk '
    $3 == "worker" && $6 !~ /^[0-9]+$/ { print "sees other than one GPU: " $0; bad = 1 }
    $3 == "worker" && seen[$1, $2, $5, $6]++ { print "shares its GPU: " $0; bad = 1 }
    $3 == "server" && $6 != "-" { print "sees a GPU: " $0; bad = 1 }
    END { if (!bad) print "every worker saw exactly one GPU of its own"; exit bad }' devices
# No epoch is trained twice: a restart continues from its checkpoint's step.
while read -r name _ _ _ epochs; do
    last=$(sed -n 's/.*epoch \([0-9]*\),.*/\1/p' "out-$name" | tail -n 1)
    [ "${last:-0}" -ge $((epochs - 1)) ] || { echo "$name ended at epoch ${last:-0} of $epochs"; exit 1; }
done <<<"$jobs"
resumed=$(cat out-* | grep -c 'resuming from a checkpoint' || true)
echo "every job trained all its epochs; processes that resumed from a checkpoint: $resumed"
restarts=$(awk '$1 !~ /^ordinary/ { n += $5 } END { print n + 0 }' jobs.txt)
[ "$restarts" -gt 0 ] || { echo "no job was restarted"; exit 1; }
