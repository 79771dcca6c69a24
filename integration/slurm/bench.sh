#!/usr/bin/env bash
# Measures the cost of Trainmaster in a real slurmctld. Submits 1,000 training jobs of 4 GPUs each, on 64 nodes with 4
# (fake) GPUs, alternately to plain Slurm and to Slurm with Trainmaster. Prints slurmctld's own cycle times for both,
# and the agent's times.
#
#   bench.sh [ROUNDS=2] [JOBS=1000] [NODES=64]
#
# Needs root, as cluster/start does. Each round takes about two minutes.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(realpath "$here/../..")
rounds=${1:-2} jobs=${2:-1000} nodes=${3:-64}
seconds=40 # duration of each measurement
folder=$(mktemp -d /tmp/trainmaster-slurm-bench.XXXX)
chmod a+rx "$folder" # the user munge needs access to its socket
plugins=${PLUGINS:-$root/target/slurm}
client=${CLIENT:-$root/target/release/trainmaster}

"$here/../../scripts/install" slurm
[ -n "${PLUGINS:-}" ] || make -s -C "$here"
[ -x "$client" ] || (cd "$root" && cargo build --locked --release -p trainmaster)

# Prints sdiag's cycle times since the last reset, as lines like "main Max 1300".
cycles() {
    sdiag | awk '
        /^Main schedule/ { of = "main" } /^Backfilling stats/ { of = "backfill" } /^Latency for/ { of = "" }
        of != "" && /(Last|Max|Mean) cycle:/ { value[of, $1] = $3 }
        END { for (key in value) { split(key, part, SUBSEP); print part[1], part[2], value[key] } }'
}

play() { # name, lines of slurm.conf
    local lab=$folder/$1 begun
    mkdir -p "$lab/etc"
    printf '%s\n' 'poll = "500ms"' '[feed]' "listen = \"127.0.0.1:${FEED_PORT:-17072}\"" '[scheduler]' \
        'engine = "optimus"' 'stability = "off"' '[scheduler.parameters]' 'interval = "5s"' >"$lab/etc/trainmaster.toml"
    EXTRA=$2 PLUGINS=$plugins "$here/cluster/start" "$lab" "$nodes" 4 >&2
    trap '"$here/cluster/stop" "$lab"' EXIT
    . "$lab/env"
    cat >"$lab/job.sh" <<'END'
#!/bin/bash
#SBATCH -N 1 -n 4 --gpus-per-node=4 -o /dev/null
#TRAINMASTER mode = allreduce
#TRAINMASTER worker.max = 8
sleep 3600
END
    begun=$(date +%s%N)
    for ((n = 0; n < jobs; n++)); do sbatch --parsable "$lab/job.sh" >/dev/null; done
    echo "submit mean $((($(date +%s%N) - begun) / jobs / 1000))" >"$lab/times"
    sleep 10
    sdiag --reset >/dev/null
    for ((n = 0; n < seconds; n++)); do
        sleep 1
        [ -z "$2" ] || "$client" slurm status --json | tr -d ' ",' | awk -F: '
            /^(decisions|decision_ms|slowest_decision_ms|load_ms|order_ms|orders):/ { printf "%s ", $0 }
            END { print "" }' >>"$lab/status"
        [ ! -t 2 ] || printf '\r%s: %d s ' "$1" $((seconds - n)) >&2
    done
    cycles >>"$lab/times"
    "$here/cluster/stop" "$lab"
    trap - EXIT
}

for ((round = 1; round <= rounds; round++)); do
    play "plain$round" ''
    play "trainmaster$round" $'SlurmctldPlugstack=trainmaster\nJobSubmitPlugins=trainmaster'
done

echo "$jobs training jobs on $nodes nodes, $rounds alternating rounds; milliseconds"
printf '\n| | plain Slurm | with Trainmaster |\n|---|---|---|\n'
mean() { # series, cycle, statistic
    awk -v of="$2" -v what="$3" '
        $1 == of && tolower($2) ~ "^" what { n++; s += $3 }
        END { if (n && s) printf "%.2f", s / n / 1000; else printf "none ran" }' "$folder/$1"*/times
}
for row in 'submit mean sbatch' 'main mean main_scheduler,_mean_cycle' 'main max main_scheduler,_longest_cycle' \
    'backfill mean backfill,_mean_cycle' 'backfill max backfill,_longest_cycle'; do
    read -r of what words <<<"$row"
    printf '| %s | %s | %s |\n' "${words//_/ }" "$(mean plain "$of" "$what")" "$(mean trainmaster "$of" "$what")"
done
cat "$folder"/trainmaster*/status | awk -v backfill="$(mean plain backfill mean)" '
    { for (i = 1; i <= NF; i++) { split($i, pair, ":"); value[pair[1]] = pair[2] }
      if (value["decisions"] != before) { n++; sum += value["decision_ms"]; before = value["decisions"] }
      if (value["slowest_decision_ms"] > slowest) slowest = value["slowest_decision_ms"]
      load += value["load_ms"]; rounds++ }
    END {
        printf "\n| the agent | ms |\n|---|---|\n"
        printf "| a decision, mean of %d | %.2f |\n", n, sum / n
        printf "| the slowest decision, with all jobs new | %.2f |\n", slowest
        printf "| loading the state of Slurm, mean | %.2f |\n", load / rounds
        printf "| an order, mean of %d | %.2f |\n", value["orders"], value["order_ms"]
        printf "\nA decision takes %.2f %% of a backfill cycle of plain Slurm.\n", 100 * sum / n / backfill }'
rm -rf "$folder"
