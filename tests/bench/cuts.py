#!/usr/bin/env python3
"""What a dead rail costs: many cuts at random moments under all_reduce, on two hosts with two rails.

usage: cuts.py [--cuts N]      (default 100; in turn one rail and the other, half of them silent)

Prints the stall's percentiles with default settings and with a heartbeat of 10 ms. Exit status 0 if
every byte was right and the goals hold (p99 under 250 ms and under 50 ms), 1 if not, 2 if it could
not be measured.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

TOOL = pathlib.Path(__file__).resolve().parents[2] / "build/release/bin/nccl-ha"
# A rail that was pulled is back when its interface has found its carrier, which the kernel looks for
# once a second: until then there is no other one to go to.
PLAN = ("cut rail0 --silent --for 300ms@2s..2.4s, cut rail1 --silent --for 300ms@3s..3.4s, "
        "cut rail0 --for 300ms@4s..4.4s, cut rail1 --for 300ms@7s..7.4s")
GOALS_MS = {200: 250.0, 10: 50.0}


def percentile(values, share):
    ordered = sorted(values)
    return ordered[max(0, -(-int(share * 100) * len(ordered) // 100) - 1)]


def measure(heartbeat_ms, rounds):
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        command = [str(TOOL), "lab", "run", "pair", "-q", "--timeout", "900",
                   "--env", "HA_NCCL_FABRIC=datagram", "--env", f"HA_NCCL_HEARTBEAT_MS={heartbeat_ms}",
                   "--", "bash", "-c",
                   f"exec nccl-ha perf all_reduce -b 1M -e 1M -w 0 -I 10 --timeout 880 "
                   f"--fault '{PLAN}' --fault-rounds {rounds} $([ $RANK = 0 ] && echo --json {report.name})"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            print(done.stdout[-3000:], done.stderr[-1000:])
            return None
        found = json.load(open(report.name))
    faults = [fault["stall_ms"] for row in found["results"] for plugin in row["plugins"]
              for one in plugin["rounds"] for fault in one.get("faults", [])]
    said = done.stdout + done.stderr
    moves = said.count(" moved to the shadow") + said.count(" moved back to path")
    return faults, moves


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cuts", type=int, default=100)
    cuts = parser.parse_args().cuts
    if not TOOL.exists():
        print(f"cuts.py: build the preset release first: {TOOL} is missing")
        return 2
    met = True
    for heartbeat_ms, goal in GOALS_MS.items():
        measured = measure(heartbeat_ms, max(1, cuts // 4))
        if measured is None:
            print(f"heartbeat {heartbeat_ms} ms: FAILED")
            return 1
        faults, moves = measured
        p50, p99 = percentile(faults, 0.5), percentile(faults, 0.99)
        good = p99 <= goal and moves >= len(faults) // 2
        met = met and good
        print(f"heartbeat {heartbeat_ms} ms: {len(faults)} cuts, {moves} moves of traffic, every byte "
              f"right; stall p50 {p50:.1f} ms, p99 {p99:.1f} ms, max {max(faults):.1f} ms "
              f"(goal: p99 {goal:.0f} ms){'' if good else '  MISSED'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
