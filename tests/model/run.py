#!/usr/bin/env python3
"""Checks the model of fence, ledger, replay, rebuild and failback (failover.pml) exhaustively with spin.

usage: run.py [--large] [--trail]
  --large   sizes that take minutes and gigabytes as well
  --trail   prints the steps that lead to a violation
The protocol must hold for every size, and each planted mistake must be found. Needs spin and gcc.
Exit status: 0 when all is as it must be, 1 when not.
"""
import argparse
import pathlib
import re
import subprocess
import sys
import tempfile
import time

MODEL = pathlib.Path(__file__).resolve().parent / "failover.pml"

# Of FAILBACK in the model.
ANY, BACK, LATE = 0, 1, 2
POLICIES = {ANY: "any path", BACK: "back to the primary", LATE: "back only if it must"}

# transfers, chunks of each, cables that fail, false alarms, which path traffic takes
SIZES = [(1, 2, 1, 1, ANY), (2, 1, 1, 0, ANY), (2, 1, 0, 1, ANY),
         (1, 1, 1, 1, BACK), (1, 1, 1, 1, LATE), (1, 2, 1, 0, BACK), (2, 1, 0, 1, BACK), (2, 1, 0, 1, LATE)]
LARGE_SIZES = [(2, 1, 1, 1, ANY), (1, 2, 2, 0, ANY), (1, 2, 1, 1, BACK), (1, 2, 1, 1, LATE),
               (1, 1, 2, 1, BACK), (2, 1, 1, 0, BACK)]

# What is planted, and the size that shows it.
MISTAKES = {
    "the receiver reports before it is fenced": (1, (1, 2, 1, 1, ANY)),
    "completion by a counter instead of a bitmap": (2, (2, 2, 0, 0, ANY)),
    "everything without an acknowledgement is sent again unasked": (3, (1, 2, 1, 1, ANY)),
    "packets of an old queue pair are taken by the new one": (4, (1, 2, 1, 1, ANY)),
    "the receiver reports before it has looked at what arrived": (5, (1, 2, 1, 1, ANY)),
    "clear-to-sends are not written again": (6, (1, 2, 1, 0, ANY)),
    "the report says nothing of what arrived": (7, (1, 2, 1, 1, ANY)),
    "the sender goes on posting to a path it gave up": (8, (1, 2, 1, 1, ANY)),
    "the receiver uses a rebuilt path before the sender is there": (9, (1, 2, 1, 0, ANY)),
    "traffic goes back within a chunk": (10, (1, 1, 0, 1, BACK)),
    "what the shadow has under way goes again when traffic goes back": (11, (1, 1, 0, 1, BACK)),
    "a key of the shadow's old queue pair is used for its new one": (12, (1, 1, 0, 2, BACK)),
    "the sender waits for a key of the shadow although the primary works": (13, (1, 1, 0, 1, LATE)),
    "none, but traffic goes back while the shadow still has some": (14, (1, 1, 0, 1, BACK)),
}


def check(size, mistake, folder, trail):
    """True when spin finds nothing; what it found or how much it looked at; seconds."""
    names = ("TRANSFERS", "CHUNKS", "FAULTS", "ALARMS", "FAILBACK")
    flags = [f"-D{name}={value}" for name, value in zip(names, size)] + [f"-DMISTAKE={mistake}"]
    begin = time.monotonic()
    subprocess.run(["spin", "-a", *flags, str(MODEL)], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["gcc", "-O2", "-w", "-DSAFETY", "-DCOLLAPSE", "-DVECTORSZ=2048", "-DMEMLIM=12000", "-o", "pan",
                    "pan.c"], cwd=folder, check=True)
    said = subprocess.run(["./pan", "-m1000000", "-n"], cwd=folder, check=False, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True).stdout
    seconds = time.monotonic() - begin
    errors = re.search(r"errors: (\d+)", said)
    states = re.search(r"(\S+) states, stored", said)
    complete = "Search not completed" not in said and "max search depth too small" not in said
    if errors is None or states is None or (errors[1] == "0" and not complete):
        sys.exit(f"spin did not finish with {' '.join(flags)}:\n{said}")
    if errors[1] == "0":
        return True, f"{float(states[1]):,.0f} states", seconds
    if trail:
        subprocess.run(["spin", "-k", "failover.pml.trail", "-t", "-p", "-g", *flags, str(MODEL)], cwd=folder,
                       check=False)
    found = re.search(r"pan:1: (.*) \(at depth (\d+)\)", said)
    return False, f"{found[1]}, {found[2]} steps" if found else "a violation", seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--trail", action="store_true")
    options = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="nccl-ha-model-") as folder:
        for size in SIZES + (LARGE_SIZES if options.large else []):
            holds, what, seconds = check(size, 0, folder, options.trail)
            wrong += not holds
            print(f"{'holds' if holds else 'VIOLATED':<9} {size[0]} transfers of {size[1]} chunks, {size[2]} failures, "
                  f"{size[3]} false alarms, {POLICIES[size[4]]}: {what}, {seconds:.0f} s", flush=True)
        for name, (mistake, size) in MISTAKES.items():
            holds, what, _ = check(size, mistake, folder, False)
            wrong += holds
            print(f"{'MISSED' if holds else 'found':<9} {name}: {what}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
