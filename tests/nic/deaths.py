#!/usr/bin/env python3
"""What a plugin does when an RDMA device of one host dies under load: eight connections between two
processes over the emulated NICs (flows.cpp), half of them on each of two devices; device 0 of one
host dies at a random moment, of the sender and of the receiver in turn.

usage: deaths.py BUILD [--only KIND]... [--runs N] [--at-once N] [--modes inline,threads]
                 [--plugin PLUGIN] [--seconds S] [--patience S] [--seed N] [--nic SETTINGS]
                 [--env NAME=VALUE]...
                 [--merged|--late] [--limit MS] [--other-limit MS] [--logs DIR]

Prints a line for each kind and mode: how many jobs went on with every byte right, ended with an
error, had wrong bytes or hung; the stall of the connections on the device that died (p50, p99 and
most of the longest gaps, of those that went on), and the longest gap on the other device, also of
those that ended.  With --merged each connection is on both, merged by NCCL's makeVDevice, and all
count as the first.  With --late another connection to the first device is asked for after half of
the time; where it does not come up the run counts as ended.  A run whose fault did not happen counts as none and is made again.  Exit
status: 0 where every job went on, but for kinds that may end with an error (`may end` in KINDS),
which may not hang or be wrong, and where no gap on the device that died was longer than --limit, and
none on the other one longer than --other-limit.
"""
import argparse
import concurrent.futures
import json
import math
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import perf_job  # pylint: disable=wrong-import-position


class Kind:
    """`steps`: commands of nha-nic, @ is the device, @1 the same host's other one, or a number of
    seconds to wait.  `shows`: a word and the least number behind it that `show` must have
    afterwards, or the mode."""

    def __init__(self, what, steps, shows=None, may_end=False):
        self.what, self.steps, self.shows, self.may_end = what, steps, shows, may_end


LOST = ("lost", 1)
KINDS = {
    "none": Kind("nothing happens", []),
    "cut": Kind("the cable, unseen by the port", [["cut", "@"]], LOST),
    "cut-link": Kind("the cable", [["cut", "@", "link"]], LOST),
    "cut-out": Kind("what it sends is lost", [["cut", "@", "out"]], LOST),
    "cut-in": Kind("what it is sent is lost", [["cut", "@", "in"]], LOST),
    "flap": Kind("the cable, three times for 100 ms",
                 [["cut", "@", "link"], 0.1, ["heal", "@", "link"], 0.1] * 3, LOST),
    "hold": Kind("packets stay in the network for 300 ms, then the cable goes",
                 [["hold", "@", "300"], 0.05, ["cut", "@"]], LOST),
    "qp-fatal": Kind("QP_FATAL on all its queue pairs", [["event", "@", "qp_fatal"]]),
    "qp-silent": Kind("the same, and no work comes back", [["event", "@", "qp_fatal", "silent"]]),
    "qp-access": Kind("QP_ACCESS_ERR on all its queue pairs", [["event", "@", "qp_access_err"]]),
    # What it held tells nobody any more that acknowledged data has arrived.
    "cq-err": Kind("a completion queue is lost", [["event", "@", "cq_err"]], may_end=True),
    "gid-change": Kind("GID_CHANGE, and nothing else", [["event", "@", "gid_change"]]),
    "reset": Kind("reset: fatal, disassociated", [["reset", "@"]], ("mode", "reset")),
    "reset-back": Kind("reset, and back at once", [["reset", "@"], ["back", "@"]],
                       ("generation", 1)),
    "reset-both": Kind("reset, and back after 0.5 s; then the other device for good",
                       [["reset", "@"], 0.5, ["back", "@"], 3.0, ["reset", "@1"]],
                       ("generation", 1)),
    "remove": Kind("graceful removal under load: memory goes before queue pairs",
                   [["remove", "@"]], ("revoked", 1)),
    "remove-slow": Kind("the same in 100 ms", [["remove", "@", "100"]], ("revoked", 1)),
    "internal": Kind("internal error: verbs say 0, it goes on writing; reset after 2 s",
                     [["internal", "@"]], may_end=True),
    "internal-late": Kind("the same with packets in the network",
                          [["hold", "@", "300"], ["internal", "@"]], may_end=True),
    "hang": Kind("firmware hangs: nothing completes, each command takes 60 s", [["hang", "@"]],
                 ("mode", "hung")),
    "hang-wakes": Kind("the same for 1.5 s; then it goes on where it was",
                       [["hang", "@"], 1.5, ["back", "@"]]),
}
FLOWS = 3000  # packets, which are some messages
MODES = {"inline": "0", "threads": "1"}


class Job(perf_job.Network):
    def __init__(self, options, folder, mode, seconds):
        super().__init__(options.build, folder)
        settings = f"state={self.state},devices=2" + (f",{options.nic}" if options.nic else "")
        environment = dict(
            os.environ, LD_LIBRARY_PATH=str(self.build / "lib/fake_nic"),
            LD_PRELOAD=str(self.build / "lib/fake_nic/libnha_nic_sysfs.so"), NHA_NIC=settings,
            HA_NCCL_USE_PROGRESS_THREAD=MODES[mode], NCCL_SOCKET_IFNAME="lo",
            **dict(setting.split("=", 1) for setting in options.env))
        self.log = folder / "log"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [self.build / "bin/nha-flows", options.plugin, str(seconds), "262144",
                 "merged" if options.merged else "late" if options.late else ""],
                stdout=subprocess.PIPE, stderr=log, env=environment, text=True)

    def await_data(self, device, limit):
        until = time.monotonic() + limit
        while time.monotonic() < until and self.process.poll() is None:
            if self.state.exists() and int(self.show(device)["packets"]) > FLOWS:
                return True
            time.sleep(0.02)
        return False

    def end(self, limit):
        """Exit status, None where it had to be killed; and what it printed."""
        try:
            out, _ = self.process.communicate(timeout=limit)
            return self.process.returncode, out
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            return None, ""


def happened(kind, shown):
    if kind.shows is None:
        return True
    word, least = kind.shows
    return shown[word] == least if isinstance(least, str) else int(shown[word]) >= least


def run(options, name, mode, number):
    """A verdict, and the longest gap on each device in ms; None: the fault did not happen."""
    kind = KINDS[name]
    chance = random.Random(f"{options.seed} {name} {mode} {number}")
    device = f"{1 + number % 2}:0"
    named = {"@": device, "@1": f"{device[0]}:1"}
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        seconds = options.seconds + sum(step for step in kind.steps if isinstance(step, float))
        job = Job(options, folder, mode, seconds)
        devices = [device] + ([f"{device[0]}:1"] if options.merged else [])
        # The receiver's sends a packet for a message, which says little of a slow host.
        if not all(job.await_data(f"1:{one[2:]}", 60) for one in devices):
            print(f"no data; status {job.end(1)}: {job.log.read_text()[:2000]}", file=sys.stderr)
            return "no data", 0, 0
        time.sleep(chance.uniform(0, 0.5))
        for step in kind.steps:
            if isinstance(step, float):
                time.sleep(step)
            else:
                job.nic([named.get(word, word) for word in step])
        over = bool(kind.steps) and job.process.poll() == 0  # before all of it was done
        status, out = job.end(seconds + options.patience)
        second = named["@1"] if any("@1" in step for step in kind.steps
                                    if not isinstance(step, float)) else None
        if over or not happened(kind, job.show(device)) or \
                (second and job.show(second)["mode"] != "reset"):
            return None
        text = job.log.read_text(errors="replace")
        verdict = {0: "went on", None: "hung", 3: "hung"}.get(
            status, "WRONG" if "WRONG BYTES" in text else "ended")
        if options.logs and verdict != "went on":
            options.logs.mkdir(parents=True, exist_ok=True)
            (options.logs / f"{name}-{mode}-{number}.log").write_text(text)
        told = out.splitlines()
        if not told:
            return verdict, 0, 0
        said = json.loads(told[0])
        if options.late and verdict == "went on" and said["late"] != "up":
            verdict = "ended"  # a connection, not the job
        gaps = [[flow["gap_ms"] for flow in said["flows"]
                 if (flow["device"] != 1) == first] for first in (True, False)]
        return verdict, max(gaps[0]), max(gaps[1], default=0)


def quantile(values, part):
    return sorted(values)[min(len(values) - 1, int(part * len(values)))] if values else 0


def run_kind(options, pool, name, mode):
    results = []
    numbers = iter(range(10 * options.runs))
    while len(results) < options.runs:
        wanted = [next(numbers) for _ in range(options.runs - len(results))]
        made = pool.map(lambda number: run(options, name, mode, number), wanted)
        results += [one for one in made if one is not None]
    count = {verdict: sum(one[0] == verdict for one in results)
             for verdict in ("went on", "ended", "WRONG", "hung", "no data")}
    stalls = [one[1] for one in results if one[0] == "went on"]
    others = [one[2] for one in results]
    print(f"{name:14} {mode:8} {count['went on']:7} {count['ended']:6} {count['WRONG']:6} "
          f"{count['hung'] + count['no data']:5}  {quantile(stalls, 0.5):8.0f} "
          f"{quantile(stalls, 0.99):8.0f} {max(stalls, default=0):8.0f}  "
          f"{max(others, default=0):10.0f}  {KINDS[name].what}", flush=True)
    good = count["went on"] + (count["ended"] if KINDS[name].may_end else 0)
    limited = (options.limit == math.inf or 0 < max(stalls, default=0) <= options.limit) and \
        (options.other_limit == math.inf or 0 < max(others) <= options.other_limit)
    return good == options.runs and limited


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--only", choices=KINDS, action="append")
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--modes", default="inline,threads")
    parser.add_argument("--plugin", help="another one, or `ib` out of LIBNCCL")
    parser.add_argument("--seconds", type=float, default=4, metavar="S",
                        help="of load, and as long as the kind's steps wait")
    parser.add_argument("--patience", type=float, default=90, metavar="S",
                        help="after the end of the load, before a job counts as hung")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nic", default="", help="more settings of NHA_NIC")
    parser.add_argument("--env", action="append", default=[], help="NAME=VALUE for the plugin")
    parser.add_argument("--limit", type=float, default=math.inf, metavar="MS",
                        help="of the longest gap on the device that died")
    parser.add_argument("--other-limit", type=float, default=math.inf, metavar="MS",
                        help="of the longest gap on the device that lives")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--merged", action="store_true", help="by makeVDevice")
    how.add_argument("--late", action="store_true", help="one connection more, asked for late")
    parser.add_argument("--logs", type=pathlib.Path, help="of jobs that did not go on")
    options = parser.parse_args()
    options.build = options.build.resolve()
    options.plugin = options.plugin or str(options.build / "lib/libnccl-net-ha.so")
    print(f"{'':14} {'':8} {'went on':>7} {'ended':>6} {'WRONG':>6} {'hung':>5}  "
          f"{'p50 ms':>8} {'p99 ms':>8} {'most ms':>8}  {'other (ms)':>10}")
    with concurrent.futures.ThreadPoolExecutor(options.at_once) as pool:
        good = [run_kind(options, pool, name, mode) for name in options.only or KINDS
                for mode in options.modes.split(",")]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
