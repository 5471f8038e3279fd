#!/usr/bin/env python3
"""What a job of NCCL's own host code does when an RDMA device of one rank dies under load: two ranks
that all_reduce 256 KiB again and again over fake GPUs and the emulated NICs, two devices each
(tests/nccl/emulated/loop.cpp); device 0 of one host dies at a random moment, as in deaths.py.

usage: nccl_deaths.py BUILD NCCL [--only KIND]... [--runs N] [--modes inline,threads] [--seed N]
                      [--patience S] [--net ib] [--env NAME=VALUE]... [--limit MS] [--logs DIR]
NCCL is what tests/nccl/run_emulated --build has made, build/nccl/VERSION.

Prints a line for each kind and mode: how many jobs went on, every element right, to their end after
2 s more of operations; ended with an error; were wrong; hung; and the longest operation since the
fault (p50 and most, of those that went on).  A run whose fault did not happen counts as none and is made again.
--net ib: NCCL's own net_ib instead of the plugin.  Exit status: 0 where every job went on, but for
kinds that may end with an error, and no operation took longer than --limit.
"""
import argparse
import math
import os
import pathlib
import random
import re
import signal
import sys
import tempfile
import time

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import deaths  # pylint: disable=wrong-import-position
import perf_job  # pylint: disable=wrong-import-position

RANK = HERE.parent / "nccl/emulated/rank.sh"
HANGS_AFTER = 20  # seconds of an operation
END_LIMIT = 3  # times as long: NCCL takes back memory, for which a device that hangs is awaited


class Job(perf_job.Ranks):
    def __init__(self, options, folder, mode):
        super().__init__(options.build, folder)
        port = perf_job.port_to_meet_at()
        net = {"NCCL_NET": "IB", "NCCL_IB_TIMEOUT": "14"} if options.net == "ib" else \
            {"HA_NCCL_USE_PROGRESS_THREAD": deaths.MODES[mode]}
        plugin = "none" if options.net == "ib" else options.build / "lib/libnccl-net-ha.so"
        for rank in range(2):
            environment = dict(
                os.environ, RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(port), NHA_FAKE_NIC="1", NCCL_DEBUG="WARN",
                NCCL_TOPO_FILE=str(RANK.parent / "two_nics.xml"),
                NHA_PRELOAD=str(options.nccl / "nic/libnha_nic_sysfs.so"),
                NHA_NIC=f"state={self.state},host={rank + 1},devices=2,unknown_netdev",
                **(net | dict(setting.split("=", 1) for setting in options.env)))
            self.start(rank, [RANK, options.nccl, plugin, "loop", "--limit", options.patience],
                       environment)

    def text(self, rank):
        return self.output[rank].read_text(errors="replace")

    def await_operations(self, count, limit):
        """Until rank 0 has done so many more."""
        done = self.text(0).count(" took ")
        until = time.monotonic() + limit
        while time.monotonic() < until and all(rank.poll() is None for rank in self.ranks):
            if self.text(0).count(" took ") >= done + count:
                return True
            time.sleep(0.02)
        return False


def run(options, name, mode, number):
    """A verdict, and the longest operation in ms; None: the fault did not happen."""
    kind = deaths.KINDS[name]
    chance = random.Random(f"{options.seed} {name} {mode} {number}")
    host = 1 + number % 2
    device = f"{host}:0"
    devices = {"@": device, "@1": f"{host}:1"}
    with tempfile.TemporaryDirectory() as temporary:
        job = Job(options, pathlib.Path(temporary), mode)
        if not job.await_operations(20, 90):
            job.await_end(0)
            print(job.text(0)[-2000:], file=sys.stderr)
            return "no data", 0
        time.sleep(chance.uniform(0, 0.5))
        before = job.text(0).count(" took ")  # at its start NCCL makes connections in operations
        for step in kind.steps:
            if isinstance(step, float):
                time.sleep(step)
            else:
                job.nic([devices.get(word, word) for word in step])
        job.await_operations(20, options.patience + 5)
        time.sleep(2)
        happened = deaths.happened(kind, job.show(device))
        if job.ranks[0].poll() is None:
            job.ranks[0].send_signal(signal.SIGTERM)
        statuses = job.await_end(END_LIMIT * options.patience)
        texts = [job.text(rank) for rank in range(2)]
    if not happened:
        return None
    if any(" is wrong" in text for text in texts):
        verdict = "WRONG"
    elif statuses == [0, 0]:
        verdict = "went on"
    elif None in statuses or any(text.rstrip().endswith("hangs") for text in texts):
        verdict = "hung"
    else:
        verdict = "ended"
    if options.logs and verdict != "went on":
        options.logs.mkdir(parents=True, exist_ok=True)
        for rank, text in enumerate(texts):
            (options.logs / f"{name}-{mode}-{number}-rank{rank}.log").write_text(text)
    took = [1000 * float(each)
            for each in re.findall(r"operation \d+ took ([\d.]+) s", texts[0])[before:]]
    return verdict, max(took, default=0)


def run_kind(options, name, mode):
    results = []
    numbers = iter(range(10 * options.runs))
    while len(results) < options.runs:
        one = run(options, name, mode, next(numbers))
        results += [one] if one is not None else []
    count = {verdict: sum(one[0] == verdict for one in results)
             for verdict in ("went on", "ended", "WRONG", "hung", "no data")}
    longest = [one[1] for one in results if one[0] == "went on"]
    print(f"{name:14} {mode:8} {count['went on']:7} {count['ended']:6} {count['WRONG']:6} "
          f"{count['hung'] + count['no data']:5}  {deaths.quantile(longest, 0.5):8.0f} "
          f"{max(longest, default=0):8.0f}  {deaths.KINDS[name].what}", flush=True)
    good = count["went on"] + (count["ended"] if deaths.KINDS[name].may_end else 0)
    return good == options.runs and max(longest, default=0) <= options.limit


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("nccl", type=pathlib.Path)
    parser.add_argument("--only", choices=deaths.KINDS, action="append")
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--modes", default="inline,threads")
    parser.add_argument("--patience", type=float, default=HANGS_AFTER, metavar="S",
                        help="before an operation counts as hung")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--net", choices=["ha", "ib"], default="ha")
    parser.add_argument("--env", action="append", default=[], help="NAME=VALUE for both ranks")
    parser.add_argument("--limit", type=float, default=math.inf, metavar="MS",
                        help="of the longest operation")
    parser.add_argument("--logs", type=pathlib.Path, help="of jobs that did not go on")
    options = parser.parse_args()
    options.build = options.build.resolve()
    options.nccl = options.nccl.resolve()
    print(f"{'':14} {'':8} {'went on':>7} {'ended':>6} {'WRONG':>6} {'hung':>5}  "
          f"{'p50 ms':>8} {'most ms':>8}")
    good = [run_kind(options, name, mode) for name in options.only or deaths.KINDS
            for mode in options.modes.split(",")]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
