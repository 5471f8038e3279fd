#!/usr/bin/env python3
"""What two rails of a device carry, by what the receiver's interfaces count, in namespaces.

usage: rails.py [--turns N] [--tool FILE] [CASE...]     (default: 3 turns, all cases)

Rails are limited to 400 Mb/s and less, so that links and not processors are the limit.  Each turn measures
what each rail carries alone, and beside that:
  unequal  400 + 200, 100 and 40 Mb/s by the own policy (goal: 0.92 of the sum), and split evenly, by an
           agent's hint, for comparison
  slowed   a rail falls from 400 to 40 Mb/s in mid-run: what both carry from 100 ms after that on (goal:
           0.9 of the new sum), and from when on they do
  cut      a rail goes: what the other one carries once traffic goes on (goal: 0.95 of what it carries
           alone), and what both carry once it is back (goal: 0.9 of the sum)
  peace    two rails of 400 Mb/s against one of 800 (goal: 0.98)
Prints medians with the least and the most. Exit status 0 if the goals hold, 1 if not, 2 if it could not be
measured.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

TOOL = pathlib.Path(__file__).resolve().parents[2] / "build/release/bin/nccl-ha"
BOTH = ["MPIB_HCA_SOUT=rail0", "MPIB_HCA_SUP=rail1", "MPIB_MODE=1", "MPIB_ISLAND_PREFIX_LEN=0",
        "HA_NCCL_FAILBACK_MS=300"]
ONE = {rail: [f"HA_NCCL_IFNAME={rail}", "HA_NCCL_ENABLE_BACKUP=0"] for rail in ("rail0", "rail1")}

# Runs on the receiving host: waits for traffic, does what the plan says, and samples.
WATCH = r"""
import json, subprocess, sys, time
plan, out = json.loads(sys.argv[1]), sys.argv[2]
files = [open(f"/sys/class/net/{rail}/statistics/rx_bytes", "rb", buffering=0) for rail in ("rail0", "rail1")]
def received():
    values = []
    for file in files:
        file.seek(0)
        values.append(int(file.read()))
    return values
first = received()
while sum(received()) - sum(first) < 20_000_000:
    time.sleep(0.005)
begin, samples, done = time.monotonic(), [], []
waiting = list(plan["do"])
running = []
while time.monotonic() - begin < plan["seconds"]:
    now = time.monotonic() - begin
    if waiting and now >= waiting[0][0]:
        done.append(now)
        running.append(subprocess.Popen(["nccl-ha", "lab", *waiting.pop(0)[1].split()],
                                        stdout=subprocess.DEVNULL))
    samples.append([now, *received()])
    time.sleep(0.004)
failed = [one.args for one in running if one.wait() != 0]
with open(out + ".part", "w") as file:
    json.dump({"samples": samples, "done": done, "failed": failed}, file)
import os
os.rename(out + ".part", out)
"""


class Failed(Exception):
    pass


class Seen:
    """What a run has received: bytes by time."""

    def __init__(self, data):
        self.samples, self.done = data["samples"], data["done"]

    def at(self, seconds):
        """Both rails' bytes by then."""
        row = next((row for row in self.samples if row[0] >= seconds), self.samples[-1])
        return row[0], row[1] + row[2], row[1], row[2]

    def rate(self, begin, end, column=1):
        """Bytes per second: 1 of both, 2 of rail0, 3 of rail1."""
        first, last = self.at(begin), self.at(end)
        return (last[column] - first[column]) / max(last[0] - first[0], 1e-9)

    def settled(self, after, until, window, least):
        """Seconds after `after` from which on every window carries so much; None: never."""
        step, last, at = 0.01, after, after
        while at + window <= until:
            if self.rate(at, at + window) < least:
                last = at + step
            at += step
        return last - after if last + window < until else None


class Rails:
    def __init__(self, tool, folder):
        self.tool, self.folder, self.number = tool, folder, 0

    def run(self, speeds, settings, seconds, faults=(), hint=None):
        """Traffic of one connection for so long, with faults [(second, command of `lab`)...]."""
        self.number += 1
        name = f"railsbench{os.getpid()}.{self.number}"
        out = pathlib.Path(self.folder, f"{self.number}.json")
        watch = pathlib.Path(self.folder, "watch.py")
        watch.write_text(WATCH)
        plan = json.dumps({"seconds": seconds, "do": list(faults)})
        slow = " && ".join(f"nccl-ha lab slow rail{i} {speed}" for i, speed in enumerate(speeds) if speed)
        script = (f"exec 2>&1; if [ $RANK = 0 ]; then {slow or 'true'} || exit 9; fi; {self.agent(hint)} "
                  f"if [ $RANK = 1 ]; then python3 {watch} '{plan}' {out} & fi; "
                  "exec nccl-ha perf pt2pt --reuse -c 0 -b 8M -e 8M -w 0 -I 1000000 --timeout 100")
        command = [str(self.tool), "lab", "run", "pair", "-q", "--timeout", "110", "--name", name,
                   "--env", "HA_NCCL_FABRIC=datagram"]
        for setting in settings:
            command += ["--env", setting]
        with open(pathlib.Path(self.folder, f"{self.number}.log"), "w+") as log:
            lab = subprocess.Popen(command + ["--", "bash", "-c", script], stdout=log, stderr=log)
            while not out.exists() and lab.poll() is None:
                time.sleep(0.05)
            subprocess.run([str(self.tool), "lab", "stop", "--lab", name], capture_output=True)
            lab.wait()
            if not out.exists():
                log.seek(0)
                raise Failed(log.read()[-3000:])
        data = json.loads(out.read_text())
        if data["failed"] or len(data["done"]) != len(faults):
            raise Failed(f"faults did not happen: {data['failed']}")
        return Seen(data)

    def agent(self, hint):
        if hint is None:
            return ""
        directory = f"{self.folder}/agent{self.number}"
        settings = pathlib.Path(f"{directory}.json")
        keys = f"{directory}.keys"
        subprocess.run([str(self.tool), "agent", "make-key", keys], check=True, capture_output=True)
        settings.write_text(json.dumps({
            "directory": directory, "page": "", "policy": {"floor": hint, "ceiling": hint},
            "telemetry": {"listen": "127.0.0.1:7471", "keys": keys}}))
        return (f"if [ $RANK = 0 ]; then nccl-ha agent --settings {settings} >/dev/null & "
                f"until nccl-ha agent status --dir {directory} >/dev/null 2>&1; do sleep 0.05; done; "
                f"nccl-ha agent simulate-switch '0s sup 0; 0s sout 0; 100s sup 0' --keys {keys} >/dev/null & "
                f"export MPIB_AGENT_DIR={directory}; fi;")

    def alone(self, rail, speed):
        speeds = [speed, None] if rail == "rail0" else [None, speed]
        return self.run(speeds, ONE[rail], 2).rate(0.5, 2)


class Table:
    def __init__(self):
        self.rows, self.met = {}, True

    def add(self, what, value, goal=None):
        self.rows.setdefault(what, (goal, []))[1].append(value)

    def show(self):
        for what, (goal, values) in self.rows.items():
            middle = statistics.median(values)
            missed = goal is not None and middle < goal
            self.met = self.met and not missed
            print(f"{what:<60} {middle:6.3f}  ({min(values):.3f} to {max(values):.3f})"
                  + (f"  goal {goal}" if goal is not None else "") + ("  MISSED" if missed else ""))


def unequal(rails, table):
    first = rails.alone("rail0", "400mbit")
    for slower in ("200mbit", "100mbit", "40mbit"):
        total = first + rails.alone("rail1", slower)
        own = rails.run(["400mbit", slower], BOTH, 3).rate(1, 3)
        even = rails.run(["400mbit", slower], BOTH, 3, hint=512).rate(1, 3)
        table.add(f"400mbit + {slower}, of the sum", own / total, 0.92)
        table.add(f"400mbit + {slower}, split evenly, of the sum", even / total)


def slowed(rails, table):
    total = rails.alone("rail0", "400mbit") + rails.alone("rail1", "40mbit")
    seen = rails.run(["400mbit", "400mbit"], BOTH, 4, [(2, "slow rail1 40mbit")])
    at = seen.done[0]
    table.add("slowed: before, of twice 400mbit alone", seen.rate(at - 1, at) / (2 * total / 1.1))
    table.add("slowed: 100 to 600 ms after, of the new sum", seen.rate(at + 0.1, at + 0.6) / total, 0.9)
    table.add("slowed: 0.6 to 1.6 s after, of the new sum", seen.rate(at + 0.6, at + 1.6) / total, 0.9)
    back = seen.settled(at, at + 1.9, 0.1, 0.9 * total)
    table.add("slowed: ms until each 100 ms carry 0.9 of the new sum", 9999 if back is None else 1e3 * back)


def cut(rails, table):
    alone = rails.alone("rail0", "400mbit")
    # The kernel looks for a carrier once a second, and failback waits; hence 4 s.
    seen = rails.run(["400mbit", "400mbit"], BOTH, 9, [(2, "cut rail1"), (4, "heal rail1 --cable")])
    at, healed = seen.done
    went = seen.settled(at, healed, 0.1, 0.9 * alone)
    table.add("cut: ms until each 100 ms carry 0.9 of the survivor alone", 9999 if went is None else 1e3 * went)
    table.add("cut: from there to the heal, of the survivor alone",
              seen.rate(at + (went or 0), healed) / alone, 0.95)
    table.add("cut: 4 to 5 s after the heal, of the sum", seen.rate(healed + 4, healed + 5) / (2 * alone), 0.9)


def peace(rails, table):
    two = rails.run(["400mbit", "400mbit"], BOTH, 3).rate(1, 3)
    one = rails.run(["800mbit", None], ONE["rail0"], 3).rate(1, 3)
    table.add("two rails of 400 Mb/s against one of 800", two / one, 0.98)


CASES = {"unequal": unequal, "slowed": slowed, "cut": cut, "peace": peace}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--tool", type=pathlib.Path, default=TOOL)
    parser.add_argument("case", nargs="*", choices=[[], *CASES], default=[])
    options = parser.parse_args()
    if not options.tool.exists():
        print(f"rails.py: build the preset release first: {options.tool} is missing")
        return 2
    table = Table()
    with tempfile.TemporaryDirectory() as folder:
        rails = Rails(options.tool, folder)
        try:
            for _ in range(options.turns):
                for name in options.case or CASES:
                    CASES[name](rails, table)
        except Failed as error:
            print(f"rails.py: could not be measured: {error}")
            return 2
    table.show()
    return 0 if table.met else 1


if __name__ == "__main__":
    sys.exit(main())
