#!/usr/bin/env bash
# The slower suites: every fuzz target for a minute, collectives under injected loss at many sizes,
# and the benchmarks. Part of `tools/test --long`; also runs alone after a release build.
#
# usage: tests/long.sh [-j N] [--seconds N]     (--seconds: time for each fuzz target, default 60)
# Everything runs even after a failure; what could not run here is named at the end. Exit status 1 if
# anything failed.
set -uo pipefail
cd "$(dirname "$0")/.."

jobs=$(nproc)
seconds=60
while [ $# -gt 0 ]; do
  case "$1" in
    -j) jobs=${2:?-j needs a number}; shift ;;
    --seconds) seconds=${2:?--seconds needs a number}; shift ;;
    *) sed -n '5s/^# //p' "$0"; exit 2 ;;
  esac
  shift
done

failed=()
not_run=()
passed=0
# step NAME COMMAND...
step() { step_unless none "$@"; }
# step_unless STATUS NAME COMMAND...: with that status it says that it cannot run here, and why.
step_unless() {
  local cannot=$1 name=$2 status=0
  shift 2
  printf '\n--- %s\n' "$name"
  "$@" || status=$?
  case $status in
    0) passed=$((passed + 1)) ;;
    "$cannot") not_run+=("$name"); echo "NOT RUN HERE: $name" ;;
    *) failed+=("$name"); echo "FAILED: $name (status $status)" ;;
  esac
}

step "line coverage of the product by the short suites" tests/coverage -j "$jobs"

# New inputs go to build/, so that a run leaves the stored corpus as it is.
fuzz() {
  local program=$1 name found
  name=$(basename "$program" _fuzz)
  found="build/fuzz/corpus/$name"
  mkdir -p "$found"
  "$program" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=4096 \
    -print_final_stats=1 -artifact_prefix="build/fuzz/$name-" "$found" "tests/fuzz/corpus/$name"
}

if cmake --preset fuzz --log-level=NOTICE >/dev/null && cmake --build --preset fuzz -j "$jobs"; then
  for program in build/fuzz/bin/*_fuzz; do
    step "fuzz $(basename "$program")" fuzz "$program"
  done
else
  failed+=("build of preset fuzz")
fi

tool=build/release/bin/nccl-ha
sim=build/release/bin/nha-sim
plugin=build/release/lib/libnccl-net-ha.so
if [ ! -x "$tool" ] || [ ! -x "$sim" ] || [ ! -f "$plugin" ]; then
  cmake --preset release --log-level=NOTICE >/dev/null && cmake --build --preset release -j "$jobs" ||
    failed+=("build of preset release")
fi

# With what tools/test leaves out.
whole() {
  cmake --preset "$1" --log-level=NOTICE >/dev/null && cmake --build --preset "$1" -j "$jobs" &&
    ctest --preset "$1-whole" -j "$jobs" --output-on-failure
}
step "everything under the address sanitizer" whole asan
step "everything under the thread sanitizer" whole tsan

step "clang-tidy over the tools" tools/dev/run_clang_tidy --tools -j "$jobs"

# Mistakes planted into the product, guests, models, bounds in milliseconds.
slow_suites() {
  cmake --build --preset release -j "$jobs" --target slow_suites && ctest --preset long --output-on-failure
}
step "the suites that a build leaves out unless they are asked for" slow_suites

step_unless 77 "a cross-build for arm64: packages, and suites under emulation" tests/arm64 -j "$jobs"
step_unless 77 "the same bytes from two folders" tests/reproducible -j "$jobs"

# Two processes with seeds of their own, one of them with fewer false verdicts and more real faults.
simulate() {
  local status=0
  "$sim" --seeds 50000 --first 1 &
  "$sim" --seeds 50000 --first 1000000 --false-verdicts 0.25 || status=$?
  wait $! || status=$?
  return $status
}
step "100,000 simulated runs with failovers" simulate

step "1,000 simulated meshes that change" "$sim" --mesh --seeds 1000

# On two namespaces, or in two guests; status 2: it could not be measured.
step_unless 2 "100 cuts under all_reduce, with defaults and with a heartbeat of 10 ms" \
  python3 tests/bench/cuts.py
step_unless 2 "40 cuts under all_reduce between two RoCE guests" python3 tests/bench/cuts.py --guests
step_unless 2 "50 cuts and 50 killed relay nodes in a ring, a line that is cut" \
  python3 tests/bench/mesh_cuts.py

step "no path is given up beside ten busy processes" \
  python3 tests/bench/busy.py --minutes "${NHA_BUSY_MINUTES:-60}"

# Bit-exact under loss, whatever the operation: nccl-ha checks every byte and says so by its status.
for rate in 0.01 0.05; do
  for operation in all_reduce all_gather reduce_scatter broadcast alltoall sendrecv; do
    for inline in 0 1; do
      step "$operation, $rate of packets lost, doubled and reordered, progress thread $((1 - inline))" \
        env HA_NCCL_DGRAM_FAULTS="drop=$rate,dup=$rate,reorder=$rate,ack_loss=$rate,seed=$RANDOM" \
        HA_NCCL_USE_PROGRESS_THREAD=$((1 - inline)) NCCL_SOCKET_IFNAME=lo \
        timeout 300 "$tool" perf "$operation" --ranks 3 -b 1 -e 4M -f 8 --plugin "$plugin"
    done
  done
done

for bench in build/release/bin/*_bench; do
  if [ -x "$bench" ]; then
    step "bench $(basename "$bench")" timeout 600 "$bench" "$plugin"
  fi
done
step_unless 2 "latency and bandwidth over relay nodes" timeout 1800 python3 tests/bench/relay_hops.py
step "what failover costs while nothing fails" timeout 1200 python3 tests/bench/peace.py
# status 77: no source of NCCL, or no headers of CUDA; it says which.
step_unless 77 "NCCL's own host code over the plugin, without a GPU: all cases" \
  tests/nccl/run_emulated --long -j "$jobs"
# status 77: nothing was built by the step before.
step_unless 77 "NCCL's own host code on a ring of four without a switch" tests/nccl/ring_of_four
# The short list once more over the plugin with a sanitizer in it.
sanitized() {
  cmake --preset "$1" --log-level=NOTICE >/dev/null &&
    cmake --build --preset "$1" -j "$jobs" --target nccl-net-ha || return 1
  tests/nccl/run_emulated --sanitizer "$1" -j "$jobs"
}
for preset in asan tsan; do
  step_unless 77 "NCCL's own host code over the plugin, without a GPU: $preset" sanitized "$preset"
done
# status 77: nothing was built by the step before.
step_unless 77 "NCCL's own host code in two guests, over the plugin and over its own net_ib" \
  tests/nccl/run_in_guests
# Against NCCL's own transports, where an NCCL is installed (status 2: it could not be measured).
for peer in socket ib; do
  step_unless 2 "against NCCL's own transport $peer" \
    timeout 1200 python3 "tests/bench/against_$peer.py"
done

printf '\n'
[ ${#not_run[@]} -eq 0 ] || printf 'long suites, not run here: %s\n' "${not_run[@]}"
[ ${#failed[@]} -eq 0 ] || printf 'long suites, failed: %s\n' "${failed[@]}"
printf 'long suites: %d passed, %d failed, %d not run here\n' "$passed" ${#failed[@]} ${#not_run[@]}
[ ${#failed[@]} -eq 0 ] && [ "$passed" -gt 0 ]
