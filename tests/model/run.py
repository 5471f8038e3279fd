#!/usr/bin/env python3
"""Checks the models of the failover protocol exhaustively with spin.

usage: run.py [--large] [--trail]
  --large   sizes that take minutes and gigabytes as well
  --trail   prints the steps that lead to a violation
failover.pml: fence, ledger, replay, rebuild and failback. control.pml: control messages over ways that are lost
and made anew, and the end of a connection. The protocol must hold for every size, and each planted mistake must
be found. Needs spin and gcc. Exit status: 0 when all is as it must be, 1 when not.
"""
import argparse
import dataclasses
import pathlib
import re
import subprocess
import sys
import tempfile
import time

FOLDER = pathlib.Path(__file__).resolve().parent

# Of FAILBACK in failover.pml.
ANY, BACK, LATE = 0, 1, 2
POLICIES = {ANY: "any path", BACK: "back to the primary", LATE: "back only if it must"}


@dataclasses.dataclass
class Model:
    """A file, what its sizes set, how a size reads, and what must hold and be found."""
    file: str
    names: tuple
    text: object
    sizes: list
    large_sizes: list
    mistakes: dict  # what is planted: its number, and the size that shows it


FAILOVER = Model(
    "failover.pml", ("TRANSFERS", "CHUNKS", "FAULTS", "ALARMS", "FAILBACK", "PATHS"),
    lambda size: (f"{size[0]} transfers of {size[1]} chunks, {size[2]} failures, {size[3]} false alarms, "
                  f"{POLICIES[size[4]]}{', one path' if size[5] == 1 else ''}"),
    [(1, 2, 1, 1, ANY, 2), (2, 1, 1, 0, ANY, 2), (2, 1, 0, 1, ANY, 2),
     (1, 2, 1, 1, ANY, 1), (2, 1, 1, 1, ANY, 1), (1, 2, 2, 0, ANY, 1),
     (1, 1, 1, 1, BACK, 2), (1, 1, 1, 1, LATE, 2), (1, 2, 1, 0, BACK, 2), (2, 1, 0, 1, BACK, 2),
     (2, 1, 0, 1, LATE, 2)],
    [(2, 1, 1, 1, ANY, 2), (1, 2, 2, 0, ANY, 2), (1, 2, 1, 1, BACK, 2), (1, 2, 1, 1, LATE, 2),
     (1, 1, 2, 1, BACK, 2), (2, 1, 1, 0, BACK, 2), (2, 2, 1, 1, ANY, 1), (2, 1, 2, 1, ANY, 1)],
    {
        "the receiver reports before it is fenced": (1, (1, 2, 1, 1, ANY, 2)),
        "the same with one path": (1, (1, 2, 1, 1, ANY, 1)),
        "completion by a counter instead of a bitmap": (2, (2, 2, 0, 0, ANY, 2)),
        "everything without an acknowledgement is sent again unasked": (3, (1, 2, 1, 1, ANY, 2)),
        "packets of an old queue pair are taken by the new one": (4, (1, 2, 1, 1, ANY, 2)),
        "the same with one path, whose old packets meet the new one": (4, (1, 2, 1, 1, ANY, 1)),
        "the receiver reports before it has looked at what arrived": (5, (1, 2, 1, 1, ANY, 2)),
        "clear-to-sends are not written again": (6, (1, 2, 1, 0, ANY, 2)),
        "clear-to-sends are not written again on the only path": (6, (1, 1, 1, 0, ANY, 1)),
        "the report says nothing of what arrived": (7, (1, 2, 1, 1, ANY, 2)),
        "the sender goes on posting to a path it gave up": (8, (1, 2, 1, 1, ANY, 2)),
        "the receiver uses a rebuilt path before the sender is there": (9, (1, 2, 1, 0, ANY, 2)),
        "traffic goes back within a chunk": (10, (1, 1, 0, 1, BACK, 2)),
        "what the shadow has under way goes again when traffic goes back": (11, (1, 1, 0, 1, BACK, 2)),
        "a key of the shadow's old queue pair is used for its new one": (12, (1, 1, 0, 2, BACK, 2)),
        "the sender waits for a key of the shadow although the primary works": (13, (1, 1, 0, 1, LATE, 2)),
        "none, but traffic goes back while the shadow still has some": (14, (1, 1, 0, 1, BACK, 2)),
    })

CONTROL = Model(
    "control.pml", ("MESSAGES", "LOSSES"),
    lambda size: f"{size[0]} messages of each side before its close, {size[1]} ways lost",
    [(1, 2)], [(0, 3), (2, 2), (1, 3)],
    {
        "paths are failed as soon as the close is queued": (1, (0, 1)),
        "control messages that come two ways are taken twice": (2, (1, 1)),
        "a stream made anew carries only what is said from then on": (3, (1, 1)),
        "the same of a path that comes back": (4, (1, 1)),
        "a control message is confirmed before it was taken": (5, (1, 1)),
        "who is told that the peer closes is gone at once": (6, (0, 1)),
    })


def check(model, size, mistake, folder, trail):
    """True when spin finds nothing; what it found or how much it looked at; seconds."""
    path = FOLDER / model.file
    flags = [f"-D{name}={value}" for name, value in zip(model.names, size)] + [f"-DMISTAKE={mistake}"]
    begin = time.monotonic()
    subprocess.run(["spin", "-a", *flags, str(path)], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    # A mistake is found long before the search has paid for a better compilation.
    optimize = "-O0" if mistake else "-O2"
    subprocess.run(["gcc", optimize, "-w", "-DSAFETY", "-DCOLLAPSE", "-DVECTORSZ=2048", "-DMEMLIM=12000", "-o", "pan",
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
        subprocess.run(["spin", "-k", f"{model.file}.trail", "-t", "-p", "-g", *flags, str(path)], cwd=folder,
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
        for model in (FAILOVER, CONTROL):
            for size in model.sizes + (model.large_sizes if options.large else []):
                holds, what, seconds = check(model, size, 0, folder, options.trail)
                wrong += not holds
                print(f"{'holds' if holds else 'VIOLATED':<9} {model.text(size)}: {what}, {seconds:.0f} s", flush=True)
            for name, (mistake, size) in model.mistakes.items():
                holds, what, _ = check(model, size, mistake, folder, False)
                wrong += holds
                print(f"{'MISSED' if holds else 'found':<9} {name}: {what}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
