#!/usr/bin/env python3
"""What a dead rail costs: many cuts at random moments under all_reduce, on two hosts with two rails.

usage: cuts.py [--cuts N] [--guests] [--tool FILE]     (default 100; 40 with --guests)

Namespaces: in turn one rail and the other, half of the cuts silent, with default settings and with a
heartbeat of 10 ms (goals: p99 under 250 ms and under 50 ms).  --guests: two emulated machines with
Soft-RoCE, in turn pulled, silent and silent in one direction, at defaults (goals: p99 under 300 ms
when pulled, under 500 ms when silent), and how the broken queue pairs ended.

Prints the stall's percentiles. Exit status 0 if every byte was right and the goals hold, 1 if not, 2
if it could not be measured.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

TOOL = pathlib.Path(__file__).resolve().parents[2] / "build/release/bin/nccl-ha"
# A rail that was pulled is back when its interface has found its carrier, which the kernel looks for
# once a second: until then there is no other one to go to.
PLAN = ("cut rail0 --silent --for 300ms@2s..2.4s, cut rail1 --silent --for 300ms@3s..3.4s, "
        "cut rail0 --for 300ms@4s..4.4s, cut rail1 --for 300ms@7s..7.4s")
GOALS_MS = {200: 250.0, 10: 50.0}
# Each is long enough that nothing goes on before the other rail is taken; the path is back when the
# next one comes.
GUEST_PLAN = ("cut rail0 --for 1s@6s..7s, cut rail1 --for 1s@14s..15s, "
              "cut rail0 --silent --for 1s@22s..23s, cut rail1 --silent --for 1s@30s..31s, "
              "cut rail0 --silent --from h1 --for 1s@38s..39s, "
              "cut rail1 --silent --from h2 --for 1s@46s..47s, heal@52s")
GUEST_GOALS_MS = {"pulled": 300.0, "silent": 500.0, "one direction": 500.0}


def percentile(values, share):
    ordered = sorted(values)
    return ordered[max(0, -(-int(share * 100) * len(ordered) // 100) - 1)]


def run(tool, lab, perf, plan, rounds, seconds):
    """The faults of the report, and everything that was said; None when a byte was wrong."""
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.json"
        guests = lab[0] == "--guests"
        program = [str(tool.parent / "nha-guests")] if guests else [str(tool), "lab"]
        command = [*program, *lab, "-q", "--timeout", str(seconds), "--", "bash", "-c",
                   f"exec nccl-ha perf all_reduce {perf} -w 0 -I 10 --timeout {seconds - 20} "
                   f"--fault '{plan}' --fault-rounds {rounds} "
                   f"$([ $RANK = 0 ] && echo --json {report})"]
        if guests:
            command[command.index("-q"):command.index("-q")] = ["--share", folder]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            print(done.stdout[-3000:], done.stderr[-1000:])
            return None
        found = json.loads(report.read_text())
    faults = [fault for row in found["results"] for plugin in row["plugins"]
              for one in plugin["rounds"] for fault in one.get("faults", [])]
    return faults, done.stdout + done.stderr


def moves_in(said):
    return said.count(" moved to the shadow") + said.count(" moved back to path")


def stalls_text(stalls, goal):
    p50, p99 = percentile(stalls, 0.5), percentile(stalls, 0.99)
    return (f"stall p50 {p50:.1f} ms, p99 {p99:.1f} ms, max {max(stalls):.1f} ms "
            f"(goal: p99 {goal:.0f} ms){'' if p99 <= goal else '  MISSED'}")


def measure_namespaces(tool, cuts):
    met = True
    for heartbeat_ms, goal in GOALS_MS.items():
        measured = run(tool, ["run", "pair", "--env", "HA_NCCL_FABRIC=datagram",
                              "--env", f"HA_NCCL_HEARTBEAT_MS={heartbeat_ms}"],
                       "-b 1M -e 1M", PLAN, max(1, cuts // 4), 900)
        if measured is None:
            print(f"heartbeat {heartbeat_ms} ms: FAILED")
            return False
        stalls = [fault["stall_ms"] for fault in measured[0]]
        moves = moves_in(measured[1])
        met = met and percentile(stalls, 0.99) <= goal and moves >= len(stalls) // 2
        print(f"heartbeat {heartbeat_ms} ms: {len(stalls)} cuts, {moves} moves of traffic, every byte "
              f"right; {stalls_text(stalls, goal)}")
    return met


def kind_of(what):
    return "one direction" if "--from" in what else "silent" if "--silent" in what else "pulled"


def measure_guests(tool, cuts):
    per_round = GUEST_PLAN.count("cut ")
    rounds = -(-cuts // per_round)
    measured = run(tool, ["--guests", "2", "--rails", "2", "--no-check"],
                   "-v -b 256K -e 256K", GUEST_PLAN, rounds, 300 + 60 * rounds)
    if measured is None:
        print("guests: FAILED")
        return False
    faults, said = measured
    moves = moves_in(said)
    met = moves >= len(faults) // 2
    for kind, goal in GUEST_GOALS_MS.items():
        stalls = [fault["stall_ms"] for fault in faults if kind_of(fault["what"]) == kind]
        met = met and percentile(stalls, 0.99) <= goal
        print(f"guests, {kind}: {len(stalls)} cuts, every byte right; {stalls_text(stalls, goal)}")
    fences = re.findall(r"is fenced after ([0-9.]+) ms, in ([0-9.]+) of which this process did not run: "
                        r"(all work came back|the queue pair was destroyed)", said)
    times = [float(ms) for ms, _, _ in fences]
    ran = [float(ms) - float(lost) for ms, lost, _ in fences]
    flushed = sum(proof == "all work came back" for _, _, proof in fences)
    soon = sum(ms <= 20 for ms in times)
    print(f"guests: {moves} moves of traffic; {len(fences)} queue pairs ended, {flushed} when all "
          f"their work was back, {len(fences) - flushed} by destroying them, after p50 "
          f"{percentile(times, 0.5):.1f} ms, p90 {percentile(times, 0.9):.1f} ms, p99 "
          f"{percentile(times, 0.99):.1f} ms, {soon} within 20 ms (goal: all); without the time in which "
          f"the guest had no processor p50 {percentile(ran, 0.5):.1f} ms, p90 {percentile(ran, 0.9):.1f} ms, "
          f"p99 {percentile(ran, 0.99):.1f} ms")
    return met and len(fences) >= moves


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cuts", type=int)
    parser.add_argument("--guests", action="store_true")
    parser.add_argument("--tool", type=pathlib.Path, default=TOOL)
    options = parser.parse_args()
    if not options.tool.exists():
        print(f"cuts.py: build the preset release first: {options.tool} is missing")
        return 2
    if options.guests:
        return 0 if measure_guests(options.tool, options.cuts or 40) else 1
    return 0 if measure_namespaces(options.tool, options.cuts or 100) else 1


if __name__ == "__main__":
    sys.exit(main())
