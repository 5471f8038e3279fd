#!/usr/bin/env python3
"""Jobs of `nccl-ha perf` over the emulated NIC: what the log says of a failover of many connections,
and what a process that stands still costs.

usage: jobs_test.py BUILD [TEST ...]
"""
import pathlib
import re
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import perf_job  # pylint: disable=wrong-import-position
import standstill  # pylint: disable=wrong-import-position

BUILD = None
CONNECTIONS = 64


def told(text, first, more):
    """Lines that begin a burst or stand alone, lines with counts, and what all of them count."""
    alone = len(re.findall(first, text))
    counts = [int(count) for count in re.findall(more, text)]
    return alone, len(counts), alone + sum(counts)


class Jobs(unittest.TestCase):
    def start(self, arguments, seconds, size, settings=""):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        job = perf_job.Job(BUILD, pathlib.Path(folder.name), arguments, seconds, size, settings)
        self.addCleanup(job.await_end, 0)  # which ends what still runs
        self.assertTrue(job.await_data(60), "no data flowed")
        return job

    def await_text(self, job, rank, wanted, limit):
        """Until what that rank says is as wanted; what it said then."""
        until = time.monotonic() + limit
        text = ""
        while time.monotonic() < until and job.ranks[rank].poll() is None:
            text = job.output[rank].read_text(errors="replace")
            if wanted(text):
                break
            time.sleep(0.1)
        return text

    def test_a_failover_of_many_connections_is_some_lines_of_log(self):
        # Else both devices belong to one interface, lo, and fail together.
        job = self.start(["--conns", str(CONNECTIONS)], 20, "256K", ",unknown_netdev")
        down = (r"path \d of the connection to .* is down: ",
                r"(\d+) more paths of \d+ connections? to \S+ over \S+ are down ")
        failover = (r"failover of path \d to ", r"failover of (\d+) more paths of ")
        moved = (r"traffic to .* moved to the shadow path 1: ",
                 r"traffic of (\d+) more connections to \S+ moved to the shadow path over ")
        back = (r"path \d of the connection to .* is back after ",
                r"(\d+) more paths of \d+ connections? to \S+ over \S+ are back after at most ")
        not_up = (r"path \d of the connection to .* did not come up; ",
                  r"(\d+) more paths of \d+ connections? to \S+ over \S+ did not come up; ")
        for command, what in (("cut", down), ("heal", back)):
            job.nic([command, "1:0", "link"])
            for rank in range(2):
                # Each rank sends over so many connections and receives over as many.
                self.await_text(job, rank, lambda said, what=what:
                                told(said, *what)[2] >= 2 * CONNECTIONS, 15)
        self.assertEqual(job.await_end(60), [0, 0], "bytes were wrong, or a rank failed")
        for rank in range(2):
            text = job.output[rank].read_text(errors="replace")
            # What each connection counted, it says when it is closed.
            counted = [sum(map(int, re.findall(f"{what} (\\d+) times", text)))
                       for what in ("paths went down", "came back")]
            with self.subTest(rank=rank):
                self.assertGreaterEqual(counted[0], 2 * CONNECTIONS, text)
                self.assertEqual(told(text, *down)[2] + told(text, *not_up)[2], counted[0], text)
                self.assertEqual(told(text, *back)[2], counted[1], text)
                self.assertGreaterEqual(told(text, *failover)[2], CONNECTIONS, text)
                self.assertGreaterEqual(told(text, *moved)[2], CONNECTIONS, text)
                for what in (down, failover, moved, back):
                    alone, gathered, _ = told(text, *what)
                    self.assertLessEqual(alone + gathered, 12, text)
                    self.assertGreater(gathered, 0, text)

    def stop(self, job):
        """A thread that was stopped with a lock of the emulated NIC in its hands stops that too: then
        it answers nothing, whatever the other one sends again."""
        for _ in range(20):
            stopped = standstill.Stopped(job.ranks[1].pid)
            self.assertGreater(stopped.nics, 0, "its NIC has no thread: it stands still too")
            before = [job.show(f"2:{device}")["packets"] for device in range(2)]
            until = time.monotonic() + 1
            while time.monotonic() < until:
                if all(job.show(f"2:{device}")["packets"] != before[device]
                       for device in range(2)):
                    return stopped
                time.sleep(0.01)
            stopped.go_on()
            time.sleep(0.02)
        self.fail("its NIC stands still too")

    def stand_still(self, seconds, arguments):
        job = self.start(arguments, seconds + 6, "64K")
        stopped = self.stop(job)
        self.addCleanup(stopped.go_on)
        time.sleep(seconds)
        self.assertTrue(stopped.stands())
        self.assertIsNone(job.ranks[0].poll(), job.output[0].read_text(errors="replace"))
        stopped.go_on()
        statuses = job.await_end(60)
        text = "".join(path.read_text(errors="replace") for path in job.output)
        self.assertEqual(statuses, [0, 0], text)
        return job, text

    def test_a_peer_that_stands_still_for_two_seconds_loses_nothing(self):
        _, text = self.stand_still(2, ["--env", "HA_NCCL_SLOW_FACTOR=0"])  # the machine may be busy
        self.assertNotIn(" is down: ", text, "its NIC answers, so no path is given up")

    def test_a_peer_that_stands_still_until_its_receives_run_out_loses_nothing(self):
        # A heartbeat takes a receive: 16 and some are used up within a second.
        job, text = self.stand_still(4, ["--env", "HA_NCCL_HEARTBEAT_MS=10"])
        # With such short limits either path may be given up before its receives run out.
        missing = 0
        for device in range(2):
            words = job.nic(["show", f"1:{device}"]).split()
            missing += int(words[words.index("not_ready") + 1])
        self.assertGreater(missing, 0, "no receive was missing: " + text)


if __name__ == "__main__":
    BUILD = pathlib.Path(sys.argv[1]).resolve()
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
