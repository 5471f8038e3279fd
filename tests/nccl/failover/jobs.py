"""A job of two ranks in two guests: this guest's rank, and the other one's through a connection."""
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import threading
import time

RANK_SCRIPT = pathlib.Path(__file__).resolve().parent.parent / "emulated" / "rank.sh"
OPERATION = re.compile(r"rank \d+: operation (\d+) took ([0-9.]+) s")
INIT = re.compile(r"rank \d+: ncclCommInitRank took ([0-9.]+) s")
OWN_WORDS = re.compile(r"^\[\d+\.\d+\] rank \d+: ")
FAILURE = re.compile(r"error|fail|down|lost|moved|is back|dead|silent|unreach|retr|time|broken|gone",
                     re.IGNORECASE)


class Rank:
    """One process of tests/nccl/emulated/loop.cpp, and what it says."""

    def __init__(self):
        self.process = None
        self.changed = threading.Condition()
        self.forget()

    def forget(self):
        self.lines = []
        self.operations = {}
        self.init_s = None
        self.begun = False
        self.status = None

    def start(self, build, plugin, environment, log):
        """The log is at its place when the process has ended: a folder that guests share is slow, and a
        rank waits for whoever reads what it says."""
        self.forget()
        # Nothing of the surroundings decides what is measured.
        kept = {key: value for key, value in os.environ.items()
                if not key.startswith(("NCCL_", "HA_NCCL_"))}
        self.process = subprocess.Popen(
            ["bash", str(RANK_SCRIPT), build, plugin, "loop"], env={**kept, **environment},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        threading.Thread(target=self.listen, args=(self.process, log), daemon=True).start()

    def listen(self, process, log):
        said = []
        for raw in process.stdout:
            line = raw.decode(errors="replace").rstrip("\n")
            said.append(f"{time.strftime('%H:%M:%S')} {line}\n")
            self.take(line)
        status = process.wait()
        pathlib.Path(log).write_text("".join(said), encoding="utf-8")
        with self.changed:
            self.status = status
            self.changed.notify_all()

    def take(self, line):
        with self.changed:
            operation = OPERATION.search(line)
            if operation:
                self.operations[int(operation[1])] = float(operation[2])
            elif line:
                self.lines.append(line)
                init = INIT.search(line)
                self.init_s = float(init[1]) if init else self.init_s
                self.begun = self.begun or "ncclCommInitRank begins" in line
            self.changed.notify_all()

    def until(self, condition, seconds):
        """Waits until the condition holds or the process has ended; whether the condition holds."""
        with self.changed:
            self.changed.wait_for(lambda: condition() or self.status is not None, seconds)
            return bool(condition())

    def ended(self):
        return self.status

    def count(self):
        return len(self.operations)

    def mark(self):
        return len(self.lines)

    def slowest(self, first):
        return max((took for number, took in list(self.operations.items()) if number >= first),
                   default=0.0)

    def init_took(self):
        return self.init_s

    def last_words(self):
        own = [line for line in self.lines if OWN_WORDS.match(line)]
        return OWN_WORDS.sub("", (own or self.lines or ["nothing was said"])[-1])

    def lacks(self, proofs):
        """Those that the log does not say."""
        text = "\n".join(self.lines)
        return [proof for proof in proofs if not re.search(proof, text)]

    def told(self, since, tag, names):
        """The first warning of a network (its tag) after `since` that names what failed, or nothing."""
        found = [line for line in self.lines[since:] if "NCCL WARN" in line and tag in line and
                 re.search(names, line) and FAILURE.search(line)]
        return found[0][found[0].index(tag):][:200] if found else ""

    def finish(self):
        self.process.send_signal(signal.SIGTERM)

    def end(self, patience):
        """Its exit status; it is killed when it has not ended by then."""
        if self.process is None:
            return None
        if not self.until(lambda: self.status is not None, patience):
            self.process.kill()
            if not self.until(lambda: self.status is not None, 30):
                raise RuntimeError("a rank cannot be killed")
        return self.status

    @staticmethod
    def clock():
        return time.monotonic()

    @staticmethod
    def carrier_changes():
        return {path.parent.name: int(path.read_text(encoding="ascii"))
                for path in pathlib.Path("/sys/class/net").glob("*/carrier_changes")}


def serve(rank, host, port):
    """In the other guest: does what is asked until the connection ends."""
    deadline = time.monotonic() + 60
    while True:
        try:
            connection = socket.create_connection((host, port), timeout=5)
            break
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)  # nobody listens yet, of which there is no event
    connection.settimeout(None)
    with connection, connection.makefile("rw", encoding="utf-8") as stream:
        for line in stream:
            asked = json.loads(line)
            answer = getattr(rank, asked["call"])(*asked["arguments"])
            stream.write(json.dumps(answer) + "\n")
            stream.flush()
    rank.end(0)


class OtherRank:
    """The rank in the other guest: the same calls, over the management network."""

    def __init__(self, port):
        with socket.create_server(("", port)) as listener:
            listener.settimeout(120)
            connection, _ = listener.accept()
        connection.settimeout(180)
        self.stream = connection.makefile("rw", encoding="utf-8")

    def __getattr__(self, name):
        def call(*arguments):
            self.stream.write(json.dumps({"call": name, "arguments": arguments}) + "\n")
            self.stream.flush()
            line = self.stream.readline()
            if not line:
                raise RuntimeError("the other guest does not answer")
            return json.loads(line)
        return call
