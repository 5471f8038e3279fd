#!/usr/bin/env python3
"""nic_report.py between two hosts of the emulated NIC, which are processes of this machine.

usage: report_test.py BUILD
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
BUILD = None
# What a measurement must see: one host's memory shows data in any order.
SETTINGS = {1: "", 2: ",any_order,tear=16"}
QUICK = ["--repeat", "10", "--rounds", "2", "--seconds", "4", "--turns", "1", "--largest", "1M",
         "--settle", "1", "--limit", "200"]


class Reports(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.state = self.folder / "nic"
        self.temporary = self.folder / "tmp"  # both hosts'
        self.temporary.mkdir()

    def environment(self, host):
        settings = (f"state={self.state},host={host},devices=2,unknown_netdev,cost.create_qp=400us,"
                    f"cost.destroy_qp=1ms{SETTINGS[host]}")
        return {"NHA_NIC": settings, "TMPDIR": str(self.temporary), "NCCL_SOCKET_IFNAME": "lo",
                "LD_LIBRARY_PATH": str(BUILD / "lib/fake_nic")}

    def ssh(self):
        """Runs a command as the other host: it is given HOST -- COMMAND."""
        path = self.folder / "ssh"
        values = " ".join(f"{name}='{value}'" for name, value in self.environment(2).items())
        path.write_text(f"#!/bin/sh\nshift 2\nexec env {values} sh -c \"$*\"\n")
        path.chmod(0o755)
        return str(path)

    def report(self, *arguments):
        output = self.folder / "report.json"
        done = subprocess.run([sys.executable, HERE / "nic_report.py", *arguments, "--build", BUILD,
                               *QUICK, "--output", output],
                              env={**os.environ, **self.environment(1)}, cwd=self.folder, timeout=230,
                              capture_output=True, text=True, check=False)
        said = done.stdout + done.stderr
        self.assertTrue(output.exists(), said)
        return done.returncode, json.loads(output.read_text())["sections"], said

    def figures(self, sections, name):
        self.assertIn("figures", sections[name], sections[name])
        return sections[name]["figures"]

    def test_every_section_has_figures(self):
        cut = [str(BUILD / "bin/nha-nic"), str(self.state)]
        status, sections, said = self.report(
            "127.0.0.1", "--ssh", self.ssh(), "--link-down",
            "--down-there", " ".join([*cut, "cut", "2:0", "link"]),
            "--up-there", " ".join([*cut, "heal", "2:0", "link"]))
        self.assertEqual(status, 0, said + json.dumps(sections, indent=1)[-3000:])
        for host in ("this host", "other host"):
            facts = self.figures(sections, "versions")[host]
            self.assertEqual(sorted(facts["devices"]), ["mlx5_0", "mlx5_1"])
            self.assertIn("nccl-ha", facts["nccl-ha"])
            verbs = self.figures(sections, "control verbs")[host]["verbs"]
            self.assertGreaterEqual(verbs["create_qp"]["p50_us"], 400)
            self.assertGreaterEqual(verbs["destroy_qp"]["p50_us"], 1000)
            self.assertEqual(verbs["modify_qp ERR"]["count"], 10)
        self.assertIn("create_qp p50", said, "a summary")
        self.check_pairs(self.figures(sections, "order of data, end under load"))
        for side in ("of the receiver", "of the sender"):
            link = self.figures(sections, "link down")[side]
            self.assertEqual(link["sender"]["status"], "transport retry counter exceeded")
            self.assertGreater(link["sender"]["ms from last success to failure"], 60)
            there = link["receiver" if side == "of the receiver" else "sender"]
            self.assertEqual([event["event"] for event in there["events"]][:1], ["port error"])
        stall = self.figures(sections, "failover stall")
        self.assertGreater(stall["without a fault"]["p50 ms"], 0)
        self.assertGreater(stall["with the link down"]["max ms"], stall["with the link down"]["p50 ms"])
        self.assertTrue(any("failover of " in line for line in stall["with the link down"]["log here"]
                            + stall["with the link down"]["log there"]))
        against = sections["against net_ib"]
        if "figures" in against:
            for row in against["figures"]["bandwidth"]:
                self.assertGreater(row["ratio"], 0)
        else:
            self.assertIn("net_ib", against["skipped"])
        self.assertEqual(list(self.temporary.glob("nha-report*")), [], "something was left")

    def check_pairs(self, pairs):
        for way in ("to this host", "to the other host"):
            order = pairs[way]["receiver"]["order"]
            self.assertEqual(order["immediate behind the data"]["incomplete at their completion"], 0)
            early = order["memory only"]["last byte before others"]
            # It must be able to see what is out of order.
            (self.assertGreater if way == "to the other host" else self.assertEqual)(early, 0)
            ends = pairs[way]["receiver"]["end_under_load"]["to ERR, then destroyed"]
            self.assertEqual(ends["until all work came back"]["count"], 2)
            self.assertEqual(ends["memory changed after destroy_qp"], 0)
            self.assertGreaterEqual(ends["destroy_qp"]["p50_us"], 1000)
            sender = pairs[way]["sender"]["end_under_load"]["to ERR, then destroyed"]
            self.assertEqual(sum(sender["status"].values()), 2)
            for side in ("receiver", "sender"):
                self.assertGreater(pairs[way][side]["verbs_under_load"]["create_qp"]["p50_us"], 400)

    def test_without_ssh_and_without_asking_no_link_goes_down(self):
        with subprocess.Popen([sys.executable, HERE / "nic_report.py", "--serve", "0", "--build", BUILD],
                              env={**os.environ, **self.environment(2)}, cwd=self.folder,
                              stdout=subprocess.PIPE, text=True) as other:
            word = other.stdout.readline().split()[-1]
            port, token = word.rpartition(":")[2].split("/")
            status, sections, said = self.report("--join", f"127.0.0.1:{port}/{token}", "--only",
                                                "control verbs", "--only", "link down", "--only",
                                                "failover stall")
            self.assertEqual(other.wait(30), 0)
        self.assertEqual(status, 0, said)
        self.figures(sections, "control verbs")
        self.assertIn("--only", sections["against net_ib"]["skipped"])
        self.assertIn("--link-down", sections["link down"]["skipped"])
        self.assertIn("--link-down",
                      self.figures(sections, "failover stall")["with the link down"]["skipped"])

    def test_a_device_that_is_not_there_is_said(self):
        done = subprocess.run([sys.executable, HERE / "nic_report.py", "127.0.0.1", "--ssh", self.ssh(),
                               "--build", BUILD, "--device-there", "mlx5_7"], timeout=60,
                              env={**os.environ, **self.environment(1)}, cwd=self.folder,
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("other host: no RDMA device mlx5_7; it has mlx5_0, mlx5_1", done.stderr)

    def test_a_host_that_is_not_there_is_said(self):
        done = subprocess.run([sys.executable, HERE / "nic_report.py", "nowhere", "--ssh", "false",
                               "--build", BUILD], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("nothing could be measured", done.stderr)


if __name__ == "__main__":
    BUILD = pathlib.Path(sys.argv[1]).resolve()
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
