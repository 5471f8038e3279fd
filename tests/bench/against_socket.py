#!/usr/bin/env python3
"""Measures libnccl-net-ha.so against NCCL's own Socket transport on this machine.

usage: against_socket.py [--build DIR] [--rounds N] [--quick]

Everything runs in turn within one run (ours, theirs, ours, theirs ...), two processes on the
loopback interface; the table shows medians and, in brackets, the range of the single turns' ratios.
Needs an installed libnccl.so.2 (tests/rig/peers).
Exit status: 0 when all goals hold, 1 when one does not, 2 when something could not be measured.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys

# NCCL's pattern: steps of 512 KiB, 8 in flight, the same 4 MiB of buffers over and over.
BANDWIDTH = ["pt2pt", "-b", "64M", "-e", "64M", "--step", "512K", "--depth", "8", "--reuse",
             "-c", "0", "-w", "2"]
LATENCY = ["latency", "-b", "8", "-e", "8"]
THREAD = "HA_NCCL_USE_PROGRESS_THREAD"
LOSS = "HA_NCCL_DGRAM_FAULTS=drop=0.01,seed=1"


class Bench:
    def __init__(self, options):
        self.tool = options.build / "bin" / "nha-peers"
        self.plugin = str(options.build / "lib" / "libnccl-net-ha.so")
        self.rounds = options.rounds
        self.quick = options.quick
        self.failed = 0

    def run(self, arguments, rounds=None):
        """The JSON report of one run of the tool; ends the program when it failed."""
        command = [str(self.tool), "perf", *arguments, "--plugin", self.plugin, "--timeout", "240",
                   "--json", "-"]
        if rounds:
            command += ["--rounds", str(rounds)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            print(f"failed with status {done.returncode}: {' '.join(command)}", file=sys.stderr)
            sys.exit(2)
        return json.loads(done.stdout)

    def compare(self, title, arguments, goal, at_most, unit):
        """One line of the table; at_most: the ratio may not exceed the goal."""
        row = self.run(arguments, self.rounds)["results"][0]
        ours, theirs = row["plugins"]
        if unit == "us":
            values = ours["p50_us"], theirs["p50_us"]
            single = [a["p50_us"] / b["p50_us"] for a, b in zip(ours["rounds"], theirs["rounds"])]
        else:
            values = ours["busbw_gigabytes_per_s"], theirs["busbw_gigabytes_per_s"]
            single = [b["time_us"] / a["time_us"] for a, b in zip(ours["rounds"], theirs["rounds"])]
        ratio = row["ratio"]
        verdict = ""
        if goal is not None:
            holds = ratio <= goal if at_most else ratio >= goal
            self.failed += not holds
            verdict = f"{'<=' if at_most else '>='} {goal:.1f}  {'holds' if holds else 'MISSED'}"
        span = f"({min(single):.2f}..{max(single):.2f})"
        print(f"{title:<46} {values[0]:>8.2f} {values[1]:>8.2f} {unit:<4} {ratio:>6.2f} "
              f"{span:<14} {verdict}", flush=True)

    def measure(self):
        iterations = ["-I", "4" if self.quick else "12"]
        bounces = ["-I", "2000" if self.quick else "10000"]
        print(f"{'':<46} {'ours':>8} {'other':>8} {'':<4} {'ratio':>6} {'turns':<14} goal")
        for thread, goal in (("1", 1.0), ("0", None)):
            env = ["--env", f"{THREAD}={thread}"]
            self.compare(f"bandwidth 512 KiB x 8, progress thread {thread}",
                         [*BANDWIDTH, *iterations, *env, "--against", "socket"], goal, False,
                         "GB/s")
        for thread, goal in (("0", 1.0), ("1", 2.0)):
            env = ["--env", f"{THREAD}={thread}"]
            self.compare(f"8 B half round trip p50, progress thread {thread}",
                         [*LATENCY, *bounces, *env, "--against", "socket"], goal, True, "us")
        self.compare("bandwidth with 1% loss against our own without",
                     [*BANDWIDTH, *iterations, "--env", LOSS, "--against", self.plugin], 0.7,
                     False, "GB/s")
        # The measured runs above are not checked, so that checking costs no time; this one is.
        checked = self.run(["pt2pt", "-b", "64M", "-e", "64M", "--reuse", "-I", "3"])
        print(f"every byte checked in a run of the same pattern: {checked['wrong']} wrong")


def main():
    root = pathlib.Path(__file__).resolve().parent.parent.parent
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=root / "build" / "release",
                        help="build folder with bin/nha-peers and lib/libnccl-net-ha.so")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each side per line")
    parser.add_argument("--quick", action="store_true", help="fewer iterations")
    options = parser.parse_args()
    bench = Bench(options)
    if not bench.tool.exists() or not pathlib.Path(bench.plugin).exists():
        print(f"{bench.tool} or {bench.plugin} is missing: build preset release first, or pass "
              "--build", file=sys.stderr)
        return 2
    print(f"# {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}, "
          f"{options.rounds} turns each")
    bench.measure()
    return 1 if bench.failed else 0


if __name__ == "__main__":
    sys.exit(main())
