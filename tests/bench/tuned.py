#!/usr/bin/env python3
"""Is what `nccl-ha tune` recommends on this machine at least as fast as the defaults?

usage: tuned.py [--build DIR] [--rounds N] [--proof-rounds N] [--state FILE] [TUNE OPTION...]

Runs tune, which goes on where a run before was interrupted, and then what it recommends against the defaults in a
run of `nccl-ha perf --against` of its own, round by round in turn; options that are not listed here go to tune. Behind
the ratio of bandwidths the standard error of its mean. Where tune recommends the defaults, they run against
themselves, which tells the noise. Exit status: 0 when the recommendation is at least as fast within twice the error,
1 when it is not, 2 when it could not be measured.
"""
import argparse
import json
import math
import os
import pathlib
import re
import statistics
import subprocess
import sys

LOAD = ["-b", "64K", "-e", "4M"]


def run(command, **more):
    done = subprocess.run(command, text=True, check=False, stdout=subprocess.PIPE, **more)
    if done.returncode != 0:
        print(f"failed with status {done.returncode}: {' '.join(command)}", file=sys.stderr)
        sys.exit(2)
    return done.stdout


def ratios_of(report):
    """Of bandwidths, over all sizes, of each round."""
    logs = []
    for row in report["results"]:
        first, second = row["plugins"]
        for i, (ours, theirs) in enumerate(zip(first["rounds"], second["rounds"])):
            if i == len(logs):
                logs.append([])
            logs[i].append(math.log(theirs["time_us"] / ours["time_us"]))
    return [math.exp(statistics.mean(one)) for one in logs]


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=root / "build" / "release")
    parser.add_argument("--rounds", type=int, default=9, help="of each setting, in tune")
    parser.add_argument("--proof-rounds", type=int, default=31, help="of the run against the defaults")
    parser.add_argument("--iterations", type=int, default=50, help="of a round")
    parser.add_argument("--state", default="nccl-ha-tune.jsonl", help="what tune measured")
    options, more = parser.parse_known_args()
    tool = options.build / "bin" / "nccl-ha"
    plugin = str(options.build / "lib" / "libnccl-net-ha.so")
    if not tool.exists():
        print(f"{tool} is missing: build preset release first, or pass --build", file=sys.stderr)
        return 2
    environment = dict(os.environ, NCCL_SOCKET_IFNAME=os.environ.get("NCCL_SOCKET_IFNAME", "lo"))
    load = [*LOAD, "-I", str(options.iterations), "--plugin", plugin]
    print(f"# {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}", flush=True)
    said = run([str(tool), "tune", *load, "--rounds", str(options.rounds), "--state", options.state, *more],
               env=environment)
    print(said, flush=True)
    settings = re.findall(r"^export (\S+=\S+)$", said, re.MULTILINE)
    command = [str(tool), "perf", "all_reduce", "--ranks", "2", *load, "-f", "8", "-c", "0", "--against", plugin,
               "--rounds", str(options.proof_rounds), "--json", "-"]
    command += [word for setting in settings for word in ("--env", setting)]
    ratios = ratios_of(json.loads(run(command, env=environment)))
    ratio = statistics.mean(ratios)
    error = statistics.stdev(ratios) / math.sqrt(len(ratios))
    holds = ratio + 2 * error >= 1
    print(f"{' '.join(settings) or 'the defaults'}: {ratio:.3f} +-{error:.3f} of the defaults, {len(ratios)} rounds: "
          f"{'holds' if holds else 'MISSED'}")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
