"""`nccl-ha perf` between two processes over the emulated NICs (tests/rig/nic), two devices each."""
import os
import pathlib
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from ports import port_to_meet_at  # pylint: disable=wrong-import-position

FLOWS = 3000  # packets, which are some operations


class Network:
    """Emulated NICs, whose state is a file."""

    def __init__(self, build, folder):
        self.build = build
        self.state = folder / "nic"

    def nic(self, command):
        return subprocess.run([self.build / "bin/nha-nic", self.state, *command], check=True,
                              capture_output=True, text=True).stdout.strip()

    def show(self, device):
        words = self.nic(["show", device]).split()
        return dict(zip(words[::2], words[1::2]))


class Ranks(Network):
    """Two processes, which are hosts 1 and 2."""

    def __init__(self, build, folder):
        super().__init__(build, folder)
        self.output = [folder / f"rank{rank}.log" for rank in range(2)]
        self.ranks = []

    def start(self, rank, command, environment):
        with open(self.output[rank], "w") as log:
            self.ranks.append(subprocess.Popen([str(part) for part in command], stdout=log,
                                               stderr=subprocess.STDOUT, env=environment))

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
        for _, output in zip(self.ranks, self.output):
            said = output.read_text(errors="replace")
            assert "on a progress thread, where data waits for it" not in said, said
        return statuses


class Job(Ranks):
    def __init__(self, build, folder, arguments, seconds, size, settings=""):
        super().__init__(build, folder)
        port = port_to_meet_at()
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
            self.start(rank, command, environment)

    def packets(self):
        return int(self.show("1:0")["packets"])

    def await_data(self, limit):
        """False when none flows over device 0 of host 1."""
        until = time.monotonic() + limit
        while time.monotonic() < until and all(rank.poll() is None for rank in self.ranks):
            if self.state.exists() and self.packets() > FLOWS:
                return True
            time.sleep(0.05)
        return False
