#!/usr/bin/env python3
"""What looking for a mesh costs where there is a switch: NCCL_MESH_RELAY=auto beside off.

usage: looking.py [--hosts N] [--rounds N] [--tool FILE]

Hosts of a lab with two switched rails connect each to each and exchange 8 bytes, by turns with and
without.  Prints for each the seconds from the start of the ranks to their end and the packets that
all hosts sent over their rails, as medians, and the ratio of the pairs with the standard error of its
median.
"""
import argparse
import math
import pathlib
import re
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
RANK = r"""
begin=$(date +%s%N)
nccl-ha perf alltoall -b 8 -e 8 -w 0 -I 1 || exit
end=$(date +%s%N)
cat /sys/class/net/rail*/statistics/tx_packets | paste -sd+ | sed "s/^/looked $((end - begin)) /"
"""


def run(tool, hosts, how):
    done = subprocess.run(
        [tool, "lab", "run", f"rails-{hosts}x2", "-q", "--timeout", "120", "--env",
         f"NCCL_MESH_RELAY={how}", "--env", "HA_NCCL_FABRIC=datagram", "--", "bash", "-c", RANK],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    found = re.findall(r"looked (\d+) (\d+)\+(\d+)", done.stdout)
    if done.returncode != 0 or len(found) != hosts:
        sys.exit(f"a run with {how} ended with {done.returncode}:\n{done.stdout}")
    seconds = max(int(one) for one, _, _ in found) / 1e9
    return seconds, sum(int(one) + int(other) for _, one, other in found)


def ratio(pairs):
    ratios = [with_it / without for with_it, without in pairs]
    error = 1.25 * statistics.stdev(ratios) / math.sqrt(len(ratios)) if len(ratios) > 1 else math.nan
    return f"{statistics.median(ratios):.3f} +-{error:.3f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--tool", type=pathlib.Path, default=ROOT / "build/release/bin/nccl-ha")
    options = parser.parse_args()
    rounds = []
    for number in range(options.rounds):
        order = ("auto", "off") if number % 2 == 0 else ("off", "auto")
        rounds.append({how: run(options.tool, options.hosts, how) for how in order})
    for what, name in enumerate(("seconds", "packets")):
        pairs = [(one["auto"][what], one["off"][what]) for one in rounds]
        print(f"{name}: auto {statistics.median(one for one, _ in pairs):.6g}, "
              f"off {statistics.median(other for _, other in pairs):.6g}, ratio {ratio(pairs)}")


if __name__ == "__main__":
    main()
