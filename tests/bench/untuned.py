#!/usr/bin/env python3
"""Measures libnccl-net-ha.so against NCCL's own Socket transport for callers that nobody tuned for.

usage: untuned.py [--build DIR] [--rounds N] [--quick]

Callers that yield between polls and callers that never do, with and without two busy processes
beside, with progress threads and without; two processes on the loopback interface, in turn within
one run.  Behind a ratio its standard error, of the median of the turns.
Needs an installed libnccl.so.2 (tests/rig/peers).
Exit status: 0 when all goals hold within their error, 1 when one does not, 2 when something could
not be measured.
"""
import argparse
import math
import pathlib
import statistics
import sys

from against_socket import BANDWIDTH, LATENCY, THREAD, Bench

LEAST_TURN = 0.8  # of the peer's bandwidth
TAIL = 2.0        # of the peer's p99


def median(values):
    """With its standard error, as of a normal distribution."""
    error = 1.2533 * statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return statistics.median(values), error


class Table:
    def __init__(self, bench):
        self.bench = bench
        self.missed = 0

    def line(self, title, ours, theirs, ratios, goal, at_most):
        ratio, error = median(ratios)
        holds = ratio - error <= goal if at_most else ratio + error >= goal
        self.missed += not holds
        print(f"{title:<58} {ours:>9.2f} {theirs:>9.2f} {ratio:>6.2f} +-{error:<5.2f} "
              f"{'<=' if at_most else '>='} {goal:.1f}  {'holds' if holds else 'MISSED'}", flush=True)

    def bandwidth(self, title, arguments):
        row = self.bench.run([*BANDWIDTH, *arguments], self.bench.rounds)["results"][0]
        ours, theirs = row["plugins"]
        ratios = [b["time_us"] / a["time_us"] for a, b in zip(ours["rounds"], theirs["rounds"])]
        self.line(f"{title}, GB/s", ours["busbw_gigabytes_per_s"], theirs["busbw_gigabytes_per_s"], ratios, 1.0, False)
        self.line(f"{title}, the worst turn", min(ratios), 1.0, [min(ratios)], LEAST_TURN, False)

    def latency(self, title, arguments, goal):
        row = self.bench.run([*LATENCY, *arguments], self.bench.rounds)["results"][0]
        ours, theirs = row["plugins"]
        for name, most in (("p50_us", goal), ("p99_us", TAIL)):
            ratios = [a[name] / b[name] for a, b in zip(ours["rounds"], theirs["rounds"])]
            self.line(f"{title}, {name[:3]} us", ours[name], theirs[name], ratios, most, True)

    def measure(self):
        quick = self.bench.quick
        print(f"{'':<58} {'ours':>9} {'Socket':>9}  ratio")
        for thread in ("1", "0"):
            for spin in ([], ["--spin"]):
                for neighbours in ("0", "2"):
                    common = [*spin, "--neighbours", neighbours, "--env", f"{THREAD}={thread}",
                              "--against", "socket"]
                    title = (f"threads {thread}, {'spin' if spin else 'yield'}, "
                             f"{neighbours} neighbours")
                    self.bandwidth(f"512 KiB x 8, {title}", ["-I", "4" if quick else "12", *common])
                    self.latency(f"8 B send first, {title}",
                                 ["--send-first", "-I", "1000" if quick else "5000", *common],
                                 1.5 if thread == "1" else 1.0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("--build", type=pathlib.Path, default=root / "build" / "release")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--quick", action="store_true", help="shorter runs")
    table = Table(Bench(parser.parse_args()))
    table.measure()
    print(f"{table.missed} goals missed")
    return 1 if table.missed else 0


if __name__ == "__main__":
    sys.exit(main())
