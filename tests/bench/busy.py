#!/usr/bin/env python3
"""Whether paths are given up although nothing is wrong but the processor.

usage: busy.py [--minutes N] [--busy N] [--tool FILE]      (default 60 minutes beside 10 processes)

Reduces over datagrams in turn on loopback (one path) and on two hosts with two rails (a shadow as
well), with and without a progress thread, beside processes that do nothing but use the processor.
Every byte is checked.  Exit status 0 if no path was given up, 1 if one was or a run failed, 2 if it
could not be measured.
"""
import argparse
import pathlib
import re
import subprocess
import sys
import time

TOOL = pathlib.Path(__file__).resolve().parents[2] / "build/release/bin/nccl-ha"
DOWN = re.compile(r"path \d+ of the connection to \S+ .*is down: .*")
PERF = ["perf", "all_reduce", "-b", "256K", "-e", "256K", "-w", "0", "-I", "500", "--conns", "2",
        "--timeout", "280"]
SETTINGS = ["HA_NCCL_FABRIC=datagram"]


def command(tool, turn):
    settings = SETTINGS + [f"HA_NCCL_USE_PROGRESS_THREAD={turn // 2 % 2}"]
    if turn % 2 == 0:
        return "one path", ["env", *settings, "HA_NCCL_IFNAME=lo", str(tool), *PERF, "--ranks", "2",
                            "--plugin", str(tool.parents[1] / "lib/libnccl-net-ha.so")]
    named = [part for one in settings for part in ("--env", one)]
    return "two rails", [str(tool), "lab", "run", "pair", "-q", "--timeout", "300", *named, "--",
                         "nccl-ha", *PERF]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--busy", type=int, default=10)
    parser.add_argument("--tool", type=pathlib.Path, default=TOOL)
    chosen = parser.parse_args()
    if not chosen.tool.exists():
        print(f"busy.py: build the preset release first: {chosen.tool} is missing")
        return 2
    spin = [sys.executable, "-c", "while True: pass"]
    busy = [subprocess.Popen(spin) for _ in range(chosen.busy)]
    given_up = []
    failed = 0
    runs = {"one path": 0, "two rails": 0}
    begin = time.monotonic()
    try:
        turn = 0
        while time.monotonic() - begin < 60 * chosen.minutes or turn < 2:
            kind, what = command(chosen.tool, turn)
            done = subprocess.run(what, capture_output=True, text=True)
            said = done.stdout + done.stderr
            found = [f"{kind}: {line}" for line in DOWN.findall(said)]
            given_up += found
            for line in found:
                print(line, flush=True)
            if done.returncode != 0:
                failed += 1
                print(f"{kind}: failed\n{said[-2000:]}")
            runs[kind] += 1
            turn += 1
    finally:
        for one in busy:
            one.kill()
            one.wait()
    minutes = (time.monotonic() - begin) / 60
    print(f"{minutes:.1f} minutes beside {chosen.busy} busy processes, {runs['one path']} runs on one "
          f"path and {runs['two rails']} on two rails: {len(given_up)} paths given up (goal: 0), "
          f"{failed} runs failed")
    return 1 if given_up or failed else 0


if __name__ == "__main__":
    sys.exit(main())
