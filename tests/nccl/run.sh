#!/usr/bin/env bash
# Real NCCL through the plugin on a machine with a GPU: builds the plugin and the test, runs two ranks
# on one GPU, and checks that the results are right and that NCCL really used the plugin.
#
# usage: tests/nccl/run.sh [--faults]
# CUDA_HOME: the CUDA toolkit; found through nvcc when unset. NCCL_HOME: where nccl.h and libnccl.so
# are, if not in the toolkit. Exit status: 0 right, 77 no GPU or no toolkit here, else failed.
set -uo pipefail
cd "$(dirname "$0")/../.."

cuda=${CUDA_HOME:-}
if [ -z "$cuda" ] && command -v nvcc >/dev/null; then
  cuda=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")
fi
if [ -z "$cuda" ] || [ ! -f "$cuda/include/cuda_runtime.h" ]; then
  echo "no CUDA toolkit found: set CUDA_HOME" >&2
  exit 77
fi
nccl=${NCCL_HOME:-$cuda}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

plugin=$PWD/build/release/lib/libnccl-net-ha.so
if [ ! -f "$plugin" ]; then
  tools/setup build && cmake --preset release --log-level=NOTICE &&
    cmake --build --preset release --target nccl-net-ha || exit 1
fi
libs=()
for directory in "$nccl/lib" "$nccl/lib64" "$cuda/lib64" "$cuda/lib"; do
  [ -d "$directory" ] && libs+=("-L$directory" "-Wl,-rpath,$directory")
done
g++ -std=c++20 -O2 -Wall -Wextra -isystem "$cuda/include" -isystem "$nccl/include" \
  tests/nccl/collectives.cpp -o "$work/collectives" "${libs[@]}" -lnccl -lcudart || exit 1

if [ "${1:-}" = --faults ]; then
  export HA_NCCL_DGRAM_FAULTS="drop=0.01,dup=0.01,reorder=0.01,seed=1"
fi
# One communicator per process is all there is, so NCCL's habit of forgetting the plugin's name once
# the last one is gone does no harm here.
export NCCL_NET_PLUGIN=$plugin NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET
export NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-lo}
mkfifo "$work/id1"
for rank in 0 1; do
  NCCL_HOSTID="nccl-ha-test-$rank" timeout 300 "$work/collectives" $rank 2 "$work/id" \
    >"$work/log$rank" 2>&1 &
  pids[rank]=$!
done
status=0
for rank in 0 1; do
  wait "${pids[rank]}" || status=$?
done
if [ $status -eq 77 ]; then
  grep -h 'no GPU' "$work"/log* >&2
  exit 77
fi
if [ $status -ne 0 ]; then
  tail -n 40 "$work"/log* >&2
  exit 1
fi
for rank in 0 1; do
  # NCCL's own words that it took the plugin, a channel that goes through it, and the plugin's own
  # line about the connection it made.
  for proof in 'Using network HA' 'via NET/HA' 'NET/HA : .*over datagram'; do
    if ! grep -q "$proof" "$work/log$rank"; then
      echo "rank $rank: nothing says '$proof': NCCL did not use the plugin" >&2
      exit 1
    fi
  done
  grep -h 'every element right' "$work/log$rank"
done
grep -h -m1 'NCCL version' "$work/log0"
echo "NCCL used the plugin, and every element was right"
