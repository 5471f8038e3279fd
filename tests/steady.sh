#!/usr/bin/env bash
# Repeats the test command and keeps a list of what failed: a failure that no defect explains is one
# of the product until shown otherwise.
#
# usage: tests/steady.sh [RUNS [FOLDER [tools/test's options...]]]   (20 runs, build/steady)
# FOLDER gets a log for each run and `list`: a line per run, with its seconds, its count, and the
# names of what failed. Exit status 1 if anything did.
set -uo pipefail
cd "$(dirname "$0")/.."

runs=${1:-20}
folder=${2:-build/steady}
if ! [[ $runs =~ ^[1-9][0-9]*$ ]]; then
  sed -n '5s/^# //p' "$0"
  exit 2
fi
mkdir -p "$folder"
status=0
for ((run = 1; run <= runs; ++run)); do
  log=$folder/$run.log
  begin=$SECONDS
  tools/test "${@:3}" >"$log" 2>&1 || status=1
  # What stands between "failed:" and the last line.
  names=$(sed -n '/^failed:$/,/^$/p' "$log" | sed '1d;/^$/d;s/^ *//' | paste -sd ';')
  echo "$run: $((SECONDS - begin)) s, $(tail -n 1 "$log")${names:+: $names}" | tee -a "$folder/list"
done
exit $status
