#!/usr/bin/env python3
"""Collectives between the hosts of a lab, against NCCL's own Socket transport.

usage: labs.py [--build DIR] [--rounds N]

all_reduce between two hosts and alltoall between four, each host a network namespace with one
interface, 8 B to 16 MiB, with progress threads and without, in turn with Socket within one run.
Behind a ratio (time of Socket / ours) its standard error, of the median of the turns; the last
column is processor seconds for each GB, ours / Socket's.
Needs an installed libnccl.so.2 (tests/rig/peers), and the right to make labs.
Exit status: 0 when all goals hold within their error, 1 when one does not, 2 when something could
not be measured.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

from against_socket import THREAD
from untuned import median

GOAL = 1.0


def measure(options, topology, operation, thread):
    """The rows of one table."""
    with tempfile.TemporaryDirectory(prefix="nha-labs-") as folder:
        report = pathlib.Path(folder, "report.json")
        tool = str(options.build / "bin" / "nha-peers")
        command = [tool, "lab", "run", topology, "--quiet", "--timeout", "900", "--", tool, "perf",
                   operation, "-b", "8", "-e", "16M", "-f", "8", "-c", "0", "-I", "50", "-w", "20",
                   "--rounds", str(options.rounds), "--plugin",
                   str(options.build / "lib" / "libnccl-net-ha.so"), "--against", "socket",
                   "--env", f"{THREAD}={thread}", "--timeout", "800", "--json", str(report)]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
        if done.returncode != 0 or not report.exists():
            print(f"failed with status {done.returncode}: {' '.join(command)}", file=sys.stderr)
            sys.exit(2)
        return json.loads(report.read_text(encoding="utf-8"))["results"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("--build", type=pathlib.Path, default=root / "build" / "release")
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args()
    missed = 0
    print(f"{'':<36} {'size':>9} {'ours us':>10} {'Socket us':>10} {'ratio':>6}")
    for topology, operation in (("rails-2x1", "all_reduce"), ("rails-4x1", "alltoall")):
        for thread in ("1", "0"):
            for row in measure(options, topology, operation, thread):
                if row["bytes"] == 0:  # less than an element for each rank
                    continue
                ours, theirs = row["plugins"]
                ratio, error = median([b["time_us"] / a["time_us"] for a, b in
                                       zip(ours["rounds"], theirs["rounds"])])
                holds = ratio + error >= GOAL
                missed += not holds
                cost = ours["cpu_s_per_gb"] / theirs["cpu_s_per_gb"]
                print(f"{operation + ' ' + topology + ', threads ' + thread:<36} {row['bytes']:>9} "
                      f"{ours['time_us']:>10.1f} {theirs['time_us']:>10.1f} {ratio:>6.2f} "
                      f"+-{error:<5.2f} {'holds ' if holds else 'MISSED'} {cost:>6.2f}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
