#!/usr/bin/env python3
"""NCCL over this plugin and over its own net_ib, under the same faults, side by side.

usage: against_nccl_failover.py [--repeats N] [--faults NAME,...] [--variants NAME,...] [--json FILE]
                                [--nccl FOLDER] [--plugin FILE] [--tool FILE] [--seed N] [--table]
  --repeats   of each fault with each variant (default 20)
  --faults    default: all; --list names them
  --variants  ours, failover (NCCL's own, with failover and port recovery on), defaults (NCCL's own)
  --json      where results are kept, one line each (default: tests/nccl/failover/results-VERSION.jsonl, of
              NCCL's version); what is in there is not measured again
  --nccl      what run_emulated built from NCCL's source (default: the newest below build/nccl)
  --seed      of the random moments (default: drawn, and printed)
  --table     only prints the table of what --json holds

Two emulated machines with two Soft-RoCE rails (nha-guests), NCCL's own host code over fake GPUs
(tests/nccl/README.md), a loop of all_reduce of 256 KiB; every element is compared.  A stall is the
longest operation after a fault; of faults during ncclCommInitRank, that call.

Prints a Markdown table, and a line "known gap" wherever NCCL's own is better.  Exit status 0: all was
measured; 1: a job over this plugin ended or gave wrong bytes; 2: it could not be measured.
"""
import argparse
import collections
import datetime
import hashlib
import json
import pathlib
import random
import re
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE / "failover"))
import faults  # pylint: disable=wrong-import-position

BUILT = ROOT / "build" / "nccl"
LAB_LIMIT_S = 100000
FAILED_LABS = 5  # in a row, without any result


def numbers_in(version):
    return [int(part) for part in re.findall(r"\d+", version)]


def newest_nccl():
    found = [path.parent for path in BUILT.glob("*/loop")]
    return max(found, key=lambda path: numbers_in(path.name), default=None)


class Results:
    """A line for each repeat; a run that is cut off keeps what it has."""

    def __init__(self, path):
        self.path = path
        self.all = []
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    self.all.append(json.loads(line))
                except json.JSONDecodeError:
                    print(f"{path}: a line that was cut off is left out", file=sys.stderr)

    def add(self, result):
        self.all.append(result)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a", encoding="utf-8") as out:
            out.write(json.dumps(result) + "\n")

    def missing(self, fault, variant, repeats):
        there = {result["repeat"] for result in self.all
                 if (result["fault"], result["variant"]) == (fault.name, variant.name)}
        return [repeat for repeat in range(repeats) if repeat not in there]

    def of(self, fault, variant):
        return [result for result in self.all
                if (result["fault"], result["variant"]) == (fault.name, variant.name)]


class Clocks:
    """Whether time passes in the guests as it does here.  Those of an emulated machine that
    measures its counter's rate itself are far off when it gets no processor meanwhile."""

    def __init__(self):
        self.first = None
        self.wrong = None

    def told(self, guests):
        now = [time.monotonic(), *guests]
        self.first = self.first or now
        here, *there = (late - early for late, early in zip(now, self.first))
        for passed in there if here > 10 else []:
            if abs(passed / here - 1) > 0.05:
                self.wrong = passed / here


def to_do(results, options):
    return [[fault.name, variant.name, missing]
            for fault in options.faults for variant in options.variants
            for missing in [results.missing(fault, variant, options.repeats)] if missing]


def measure(results, options, todo):
    """One lab, as long as it lasts; how many results came, and what ended it."""
    logs = BUILT / "failover" / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    plan = logs / "plan.json"
    plan.write_text(json.dumps({
        "tool": str(options.tool), "plugin": str(options.plugin), "build": str(options.nccl),
        "logs": str(logs), "seed": options.seed, "todo": todo}), encoding="utf-8")
    about = {"nccl": options.nccl.name, "date": datetime.date.today().isoformat(),
             "plugin": hashlib.sha256(options.plugin.read_bytes()).hexdigest()[:12]}
    came = 0
    clocks = Clocks()
    command = [options.tool.parent / "nha-guests", "--name", f"failover{options.seed % 100000}", "-q",
               "--no-check", "--share", logs, "--timeout", LAB_LIMIT_S, "--",
               sys.executable, HERE / "failover" / "guest.py", plan]
    with subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as lab:
        try:
            for line in lab.stdout:
                said = re.sub(r"^\[h\d+\] ", "", line.rstrip("\n"))
                if said.startswith("CLOCKS "):
                    clocks.told(json.loads(said[len("CLOCKS "):]))
                    if clocks.wrong is not None:
                        print(f"  a guest's clock is {clocks.wrong:.2f} times as fast as it should be")
                        lab.terminate()
                        break
                    continue
                if not said.startswith("RESULT "):
                    print(f"  {said}", flush=True)
                    continue
                result = {**shortened(json.loads(said[len("RESULT "):])), **about}
                results.add(result)
                came += 1
                print(time.strftime("%H:%M:%S ") + text_of(result), flush=True)
        except BaseException:
            lab.terminate()
            raise
    return came, lab.returncode


def shortened(result):
    """What is kept: milliseconds are enough, and logs are not."""
    return {key: round(value, 3) if isinstance(value, float) else value
            for key, value in result.items() if key != "log"}


def text_of(result):
    end = f"stall {result['stall_s']:.2f} s" if result["survived"] else f"ENDED: {result['error']}"
    return (f"{result['fault']}, {result['variant']}, repeat {result['repeat']}: "
            f"{'' if result['right'] else 'WRONG BYTES, '}{end}")[:200]


def percentile(values, share):
    """Nearest rank."""
    ordered = sorted(values)
    return ordered[max(0, -(-int(share * 100) * len(ordered) // 100) - 1)]


class Summary:
    """What the repeats of one fault with one variant say together."""

    def __init__(self, results):
        self.count = len(results)
        self.survived = sum(result["survived"] for result in results)
        self.right = sum(result["right"] for result in results)
        stalls = [result["stall_s"] for result in results if result["survived"]]
        self.stalls = [percentile(stalls, share) for share in (0.5, 0.99, 1)] if stalls else None
        self.warned = sum(bool(result["warned"]) for result in results)
        self.back = sum(result["back_s"] is not None for result in results)

    def row(self):
        stalls = "| |" if self.stalls is None else "{:.2f} | {:.2f} | {:.2f}".format(*self.stalls)
        return (f"{self.survived} of {self.count} | {self.right} of {self.count} | {stalls} | "
                f"{self.warned} | {self.back}")

    def gaps(self, theirs):
        """In what the other one is better."""
        found = []
        for what, own, other in (("jobs survived", self.survived / self.count,
                                  theirs.survived / theirs.count),
                                 ("jobs with right bytes", self.right / self.count,
                                  theirs.right / theirs.count),
                                 ("warnings that name the rail", self.warned / self.count,
                                  theirs.warned / theirs.count),
                                 ("rails in use again", self.back / self.count,
                                  theirs.back / theirs.count)):
            if own < other:
                found.append(f"{what} {own:.0%} against {other:.0%}")
        longer = [f"{name} {own:.2f} s against {other:.2f} s"
                  for name, own, other in zip(("p50", "p99", "max"), self.stalls or (),
                                              theirs.stalls or ()) if own > other]
        if longer:
            found.append("stall " + ", ".join(longer))
        return found


def print_table(results, options):
    summaries = {}
    print("\n| fault | network | survived | bytes right | stall p50, s | p99 | max | "
          "a warning names it | both rails in use again |")
    print("|---|---|---|---|---|---|---|---|---|")
    for fault in options.faults:
        for variant in options.variants:
            found = results.of(fault, variant)
            if found:
                summary = summaries[fault, variant] = Summary(found)
                print(f"| {fault.title} | {variant.title} | {summary.row()} |")
    print()
    ours = faults.variant_named("ours")
    gaps = 0
    for (fault, variant), theirs in summaries.items():
        if not variant.ours and (fault, ours) in summaries:
            found = summaries[fault, ours].gaps(theirs)
            gaps += len(found)
            if found:
                print(f"known gap: {fault.title}, against {variant.title}: {'; '.join(found)}")
    if not gaps:
        print("no known gap in what was measured")
    by_itself = collections.Counter(result["variant"] for result in results.all
                                    if result["fault"] == "none")
    for variant in options.variants:
        print(f"jobs that ended before any fault, {variant.title}: {by_itself[variant.name]}")
    for kind in ("nccl", "plugin", "date", "seed"):
        counted = collections.Counter(str(result[kind]) for result in results.all)
        print(f"{kind}: {', '.join(sorted(counted))}")


def options_of(arguments):
    def named(all_of_them):
        def parse(text):
            known = {one.name: one for one in all_of_them}
            for name in text.split(","):
                if name not in known:
                    raise argparse.ArgumentTypeError(f"{name}: one of {', '.join(known)}")
            return [known[name] for name in text.split(",")]
        return parse

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--faults", type=named(faults.ALL_FAULTS), default=list(faults.ALL_FAULTS))
    parser.add_argument("--variants", type=named(faults.ALL_VARIANTS),
                        default=list(faults.ALL_VARIANTS))
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--nccl", type=pathlib.Path, default=newest_nccl())
    parser.add_argument("--plugin", type=pathlib.Path,
                        default=ROOT / "build/release/lib/libnccl-net-ha.so")
    parser.add_argument("--tool", type=pathlib.Path, default=ROOT / "build/release/bin/nccl-ha")
    parser.add_argument("--seed", type=int, default=random.randrange(1000000))
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args(arguments)
    version = options.nccl.name if options.nccl is not None else "unknown"
    options.json = options.json or HERE / "failover" / f"results-{version}.jsonl"
    for name in ("json", "nccl", "plugin", "tool"):
        if getattr(options, name) is not None:
            setattr(options, name, getattr(options, name).resolve())
    return options


def unusable(options):
    if options.nccl is None or not (options.nccl / "loop").exists():
        return "no NCCL without a GPU: build one with tests/nccl/run_emulated"
    for path in (options.plugin, options.tool, options.tool.parent / "nha-guests"):
        if not path.exists():
            return f"build the preset release first: {path} is missing"
    if numbers_in(options.nccl.name) < [2, 30] and \
            any(variant.name == "failover" for variant in options.variants):
        print("note: NCCL has port recovery since 2.30, this one knows failover only")
    return None


def main():
    options = options_of(sys.argv[1:])
    if options.list:
        print("\n".join(f"{fault.name:14} {fault.title}" for fault in faults.ALL_FAULTS))
        return 0
    results = Results(options.json)
    if not options.table:
        why = unusable(options)
        if why is not None:
            print(f"against_nccl_failover.py: {why}")
            return 2
        print(f"NCCL {options.nccl.name}, seed {options.seed}, results in {options.json}")
        failures = 0
        while failures < FAILED_LABS:
            todo = to_do(results, options)
            if not todo:
                break
            came, status = measure(results, options, todo)
            if status not in (0, 3):
                print(f"the lab ended with {status}", flush=True)
            failures = 0 if came else failures + 1
    print_table(results, options)
    if to_do(results, options):
        print("against_nccl_failover.py: not all could be measured")
        return 2
    ours = [result for result in results.all if result["variant"] == "ours"]
    return 0 if all(result["survived"] and result["right"] for result in ours) else 1


if __name__ == "__main__":
    sys.exit(main())
