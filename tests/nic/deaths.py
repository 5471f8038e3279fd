#!/usr/bin/env python3
"""What the plugin does when an RDMA device of one host dies: `nccl-ha perf` between two processes
over the emulated NICs (tests/rig/nic), two devices each.

usage: deaths.py BUILD [--only NAME] [--seconds S] [--inline] [--rails] [--logs DIR]

Prints a line for each death: whether the job went on, ended or hung, the seconds from the death
until it ended, and what the NIC counted.  With --logs the ranks' output stays there.  Exit status:
0 where every job went on with every byte right.
"""
import argparse
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time

# What happens to device 0 of host 1, by nha-nic; several commands come one right after another.
DEATHS = {
    "none": [],
    "cut": [["cut", "1:0"]],
    "cut-link": [["cut", "1:0", "link"]],
    "reset": [["reset", "1:0"]],
    "hang": [["hang", "1:0"]],
    "hang-cut": [["hang", "1:0"], ["cut", "1:0", "link"]],
    "internal": [["internal", "1:0"]],
    # What is in the network arrives when verbs have said that the queue pair is gone.
    "internal-late": [["hold", "1:0", "300"], ["internal", "1:0"]],
    "reset-back": [["reset", "1:0"], ["back", "1:0"]],
    "pairs": [["event", "1:0", "qp_fatal", "silent"]],  # nothing but the event tells
}
FLOWS = 3000  # packets, which are some operations


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1] - 17  # perf adds that


class Job:
    """Two ranks, which are hosts 1 and 2 of the emulated network."""

    def __init__(self, build, folder, arguments, seconds, size, settings=""):
        self.build = build
        self.state = folder / "nic"
        self.output = [folder / f"rank{rank}.log" for rank in range(2)]
        self.ranks = []
        port = free_port()
        for rank in range(2):
            environment = dict(
                os.environ, RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1",
                MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), NCCL_SOCKET_IFNAME="lo",
                LD_LIBRARY_PATH=str(build / "lib/fake_nic"),
                LD_PRELOAD=str(build / "lib/fake_nic/libnha_nic_sysfs.so"),
                NHA_NIC=f"state={self.state},host={rank + 1},devices=2{settings}")
            command = [build / "bin/nccl-ha", "perf", "sendrecv", "-b", size, "-e", size, "-v",
                       "--seconds", str(seconds), "--plugin", build / "lib/libnccl-net-ha.so",
                       "-T", str(int(seconds) + 100), *arguments]
            with open(self.output[rank], "w") as log:
                self.ranks.append(subprocess.Popen([str(part) for part in command], stdout=log,
                                                   stderr=subprocess.STDOUT, env=environment))

    def nic(self, command):
        tool = self.build / "bin/nha-nic"
        return subprocess.run([tool, self.state, *command], check=True, capture_output=True,
                              text=True).stdout.strip()

    def packets(self):
        words = self.nic(["show", "1:0"]).split()
        return int(words[words.index("packets") + 1])

    def await_data(self, limit):
        """False when none flows over device 0 of host 1."""
        until = time.monotonic() + limit
        while time.monotonic() < until and all(rank.poll() is None for rank in self.ranks):
            if self.state.exists() and self.packets() > FLOWS:
                return True
            time.sleep(0.05)
        return False

    def await_end(self, limit):
        """Exit statuses; None for a rank that had to be killed."""
        until = time.monotonic() + limit
        statuses = []
        for rank in self.ranks:
            try:
                statuses.append(rank.wait(max(0.1, until - time.monotonic())))
            except subprocess.TimeoutExpired:
                statuses.append(None)
        for rank in self.ranks:
            if rank.poll() is None:
                rank.kill()
                rank.wait()
        return statuses


def run(build, folder, name, options):
    arguments = ["--env", "HA_NCCL_USE_PROGRESS_THREAD=0"] if options.inline else []
    if options.rails:
        arguments += ["--env", "MPIB_HCA_SOUT=mlx5_0", "--env", "MPIB_HCA_SUP=mlx5_1"]
    for setting in options.env:
        arguments += ["--env", setting]
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    job = Job(build, folder, arguments, options.seconds, options.size, options.nic)
    flowed = job.await_data(60)
    for command in DEATHS[name]:
        job.nic(command)
    death = time.monotonic()
    statuses = job.await_end(options.seconds + options.patience)
    took = time.monotonic() - death
    text = "".join(path.read_text(errors="replace") for path in job.output)
    right = statuses == [0, 0]
    verdict = ("went on" if right else "hung" if None in statuses else "ended")
    print(f"{name:12} {verdict:8} {took:6.1f} s after it  statuses {statuses}  "
          f"data flowed: {flowed}")
    print(f"             device 0: {job.nic(['show', '1:0'])}")
    print(f"             device 1: {job.nic(['show', '1:1'])}")
    if not right:
        lines = [line for line in text.splitlines() if "WARN" in line or "rror" in line]
        for line in lines[:12]:
            print(f"             {line[:200]}")
    sys.stdout.flush()
    return right and flowed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--only", choices=DEATHS)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--size", default="1M", help="of an operation")
    parser.add_argument("--patience", type=float, default=60, help="seconds after the job's own")
    parser.add_argument("--inline", action="store_true", help="no progress threads")
    parser.add_argument("--rails", action="store_true", help="both devices carry data")
    parser.add_argument("--nic", default="", help="more settings of NHA_NIC, after a comma")
    parser.add_argument("--env", action="append", default=[], help="NAME=VALUE for the plugin")
    parser.add_argument("--logs", type=pathlib.Path)
    options = parser.parse_args()
    options.nic = f",{options.nic}" if options.nic else ""
    build = options.build.resolve()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.logs or pathlib.Path(temporary)).resolve()
        names = [options.only] if options.only else list(DEATHS)
        good = [run(build, folder / name, name, options) for name in names]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
