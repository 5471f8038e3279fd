#!/usr/bin/env python3
"""Measures libnccl-net-ha.so against NCCL's own IB transport over Soft-RoCE, in one emulated guest.

usage: against_ib.py [--build DIR] [--guests N]

nha-guests (tests/rig/guests) makes the guest; both plugins run in turn within one run, two processes, the same RDMA
device, the same queue pair timeout. A turn of 50 ms differs from the next by a twentieth, so that there are 40 of
those; where code and data happen to lie changes a ratio by a hundredth from one start to the next, so that each line is
the median of several guests, one after the other. Beside the ratio stands the standard error of that median, as
far as guests differ by chance (1.25 deviations by the root of their number). Emulation makes everything ten to twenty times slower than hardware, and processor time counts for
more than on hardware: ratios mean something, figures do not. Needs an installed libnccl.so.2.
Exit status: 0 when all goals hold, 1 when one does not, 2 when something could not be measured.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

# NCCL's default timeout for both: with 14, Soft-RoCE repeats what merely waits in a slow machine.
ENVIRONMENT = ["NCCL_IB_HCA=rxe0", "NCCL_IB_GID_INDEX=1", "NCCL_SOCKET_IFNAME=lo", "NCCL_IB_TIMEOUT=20"]
# With how many turns of each side.
SIZES = {"64K": 40, "256K": 12, "1M": 5}
# Bandwidth as ib_write_bw and NCCL's own tests take it: iterations back to back.
BANDWIDTH = ["-c", "0", "-I", "60"]
# One message at a time, some milliseconds after the one before, each byte compared: how long the way of one is
# where nothing is in the caches.
SINGLE = ["-I", "20"]
LATENCY = ["latency", "-b", "8", "-e", "8", "-I", "300", "-w", "50", "--rounds", "5"]


def bandwidth(size, arguments):
    return ["pt2pt", "-b", size, "-e", size, "--reuse", *arguments, "--rounds", str(SIZES[size])]


def medians(options, arguments, thread, value):
    """A dictionary: medians over the guests, of the ratio and of both sides' values.

    With a progress thread there is no goal, and a fifth of the guests is enough."""
    guests = options.guests if thread == 0 else max(1, options.guests // 5)
    rows = [run(options, arguments, thread)["results"][0] for _ in range(guests)]
    ratios = [row["ratio"] for row in rows]
    error = 1.25 * statistics.stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else 0
    return {"bytes": rows[0]["bytes"],
            "ratio": statistics.median(ratios),
            "error": error,
            "plugins": [{key: statistics.median(row["plugins"][side][key] for row in rows)
                         for key in (value, "cpu_s_per_gb") if key in rows[0]["plugins"][side]}
                        for side in (0, 1)]}


def run(options, arguments, thread):
    """The JSON report of one run in a guest; ends the program when it failed."""
    command = [str(options.build / "bin" / "nha-guests"), "--guests", "1", "--cpus", "2",
               "--no-check", "--quiet", "--timeout", "280"]
    for setting in [*ENVIRONMENT, f"HA_NCCL_USE_PROGRESS_THREAD={thread}"]:
        command += ["--env", setting]
    command += ["--", "nha-peers", "perf", *arguments, "--ranks", "2", "--against", "ib", "--json", "-"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    lines = [line[len("[h1] "):] for line in done.stdout.splitlines() if line.startswith("[h1] ")]
    if done.returncode != 0:
        print(f"failed with status {done.returncode}: {' '.join(command)}", file=sys.stderr)
        sys.exit(2)
    return json.loads("\n".join(lines))


def line(title, ours, theirs, unit, row, goal, holds, cpu=None):
    verdict = "" if goal is None else f"{goal}  {'holds' if holds else 'MISSED'}"
    seconds = "" if cpu is None else f"cpu {cpu[0]:6.1f} {cpu[1]:6.1f} s/GB"
    print(f"{title:<44} {ours:>9.3f} {theirs:>9.3f} {unit:<4} {row['ratio']:>7.3f} +-{row['error']:.3f}  "
          f"{verdict:<16} {seconds}",
          flush=True)


def main():
    root = pathlib.Path(__file__).resolve().parent.parent.parent
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=root / "build" / "release")
    parser.add_argument("--guests", type=int, default=7, help="guests to take the median of")
    options = parser.parse_args()
    missed = 0
    print(f"{'':<44} {'ours':>9} {'IB':>9} {'':<4} {'ratio':>7} {'':>7}  goal")
    for thread in (0, 1):
        row = medians(options, LATENCY, thread, "p50_us")
        ours, theirs = row["plugins"]
        holds = row["ratio"] <= 1.05
        missed += thread == 0 and not holds
        line(f"8 B half round trip p50, progress thread {thread}", ours["p50_us"], theirs["p50_us"], "us",
             row, "<= 1.05" if thread == 0 else None, holds)
        for arguments in (BANDWIDTH, SINGLE) if thread == 0 else (BANDWIDTH,):
            goal = ">= 1.0" if thread == 0 else None
            for size in SIZES:
                row = medians(options, bandwidth(size, arguments), thread, "busbw_gigabytes_per_s")
                ours, theirs = row["plugins"]
                holds = row["ratio"] >= 1.0
                missed += goal is not None and not holds
                line(f"{row['bytes'] >> 10} KiB{'' if arguments is BANDWIDTH else ' one by one'}, "
                     f"progress thread {thread}", ours["busbw_gigabytes_per_s"], theirs["busbw_gigabytes_per_s"], "GB/s", row,
                     goal, holds, (ours["cpu_s_per_gb"], theirs["cpu_s_per_gb"]))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
