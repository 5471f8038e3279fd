#!/usr/bin/env python3
"""Looks at the page of nccl-ha agent in a headless Chromium.

usage: page_test.py NCCL_HA CHROMIUM [--picture FILE]
"""
import json
import os
import pathlib
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import zlib

NCCL_HA, CHROMIUM = sys.argv[1:3]
PATIENCE_S = 60
SCRIPT = "0s sout 40; 0s sup 20; 0s sup 120 10.0.1.1 10.0.2.1; 0s sup 250 10.0.1.1 10.0.2.2; 300s sup 0"
EVIL = b"<img src=x onerror=document.title=1>"


def text(data):
    return struct.pack("<H", len(data)) + data


def address(*parts):
    return bytes([4]) + bytes(parts).ljust(16, b"\0")


def message(kind, body, connection=0):
    """As actors/agent_protocol.h has it."""
    return struct.pack("<IHHQ", 0x4148414E, kind, len(body), connection) + body


def png_size(path):
    head = path.read_bytes()[:24]
    assert head.startswith(b"\x89PNG"), path
    return struct.unpack(">II", head[16:24])


def corner_of(path):
    """The colour of the first pixel: no filter of PNG's changes that one."""
    data, at = b"", 8
    content = path.read_bytes()
    while at < len(content):
        length, kind = struct.unpack_from(">I4s", content, at)
        data += content[at + 8 : at + 8 + length] if kind == b"IDAT" else b""
        at += length + 12
    return zlib.decompress(data)[1:4].hex()


class Agent:
    """An agent with flows, a job that registered them, and a switch that speaks of them."""

    def __init__(self, script=SCRIPT, sixth=EVIL):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="nha-page-"))
        keys = self.folder / "keys"
        subprocess.run([NCCL_HA, "agent", "make-key", keys], check=True)
        settings = {"directory": str(self.folder / "run"), "page": "127.0.0.1:0",
                    "telemetry": {"listen": "127.0.0.1:0", "keys": str(keys)},
                    "rails": [{"interface": "lo"}]}
        (self.folder / "settings").write_text(json.dumps(settings))
        notify = self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        notify.bind(str(self.folder / "notify"))
        notify.settimeout(PATIENCE_S)
        environment = dict(os.environ, NOTIFY_SOCKET=str(self.folder / "notify"))
        self.process = subprocess.Popen([NCCL_HA, "agent", "-q", "--settings", self.folder / "settings"],
                                        env=environment)
        assert b"READY=1" in notify.recv(4096)
        self.job = socket.socket(socket.AF_UNIX)
        self.job.connect(str(self.folder / "run/agent.sock"))
        self.job.settimeout(PATIENCE_S)
        self.job.sendall(message(1, struct.pack("<HI", 1, os.getpid()) + text(b"node1")))
        for i in range(1, 7):
            host = sixth if i == 6 else b"node%d" % (i + 1)
            self.job.sendall(message(4, address(10, 0, 1, 1) + address(10, 0, 2, i) + text(b"node1") +
                                     text(host) + b"\0", i))
        status = self.status()
        self.page = status["page"]
        self.switch = subprocess.Popen(
            [NCCL_HA, "agent", "simulate-switch", script, "-q", "--keys", keys, "--listen", "127.0.0.1:0",
             "--to", f"127.0.0.1:{status['telemetry']['port']}"])
        self.wait(lambda s: len(s["flows"]) == 6 and s["hints"]["backpressure"] >= 1)

    def status(self):
        done = subprocess.run([NCCL_HA, "agent", "status", "--json", "--dir", self.folder / "run"],
                              stdout=subprocess.PIPE, check=True)
        return json.loads(done.stdout)

    def wait(self, good):
        end = time.monotonic() + PATIENCE_S
        while not good(self.status()):
            assert time.monotonic() < end, self.status()

    def close(self):
        self.switch.kill()
        self.switch.wait()
        self.job.close()
        self.notify.close()
        self.process.terminate()
        status = self.process.wait(PATIENCE_S)
        shutil.rmtree(self.folder)
        assert status == 0, status


def browse(url, *options):
    """Lets the page run for a while; what was printed."""
    done = subprocess.run(
        [CHROMIUM, "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--timeout=3000", *options, url],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60, check=True)
    return done.stdout.decode("utf-8", errors="replace")


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.agent = Agent()

    @classmethod
    def tearDownClass(cls):
        cls.agent.close()

    def shown(self):
        """What the page consists of once it has its first answer, without its own script."""
        dom = browse(self.agent.page, "--dump-dom", "--virtual-time-budget=2500")
        return re.sub(r"<script>.*?</script>", "", dom, flags=re.S)

    def test_it_shows_flows_and_their_state(self):
        shown = self.shown()
        for part in ["10.0.1.1 \u2192 10.0.2.1", "node1 \u2192 node2", "backpressure on SUP", "by telemetry",
                     "of 4096 slots", ">running<", "longest turn"]:
            with self.subTest(part=part):
                self.assertTrue(part in shown)

    def test_names_of_hosts_stay_text(self):
        shown = self.shown()
        self.assertTrue("&lt;img src=x" in shown)
        self.assertFalse("<img" in shown)
        self.assertTrue("<title>nccl-ha agent</title>" in shown)

    def test_it_is_drawn_as_wide_as_phones_and_desks_are(self):
        for width in (360, 390, 1100):
            picture = self.agent.folder / f"{width}.png"
            browse(self.agent.page, f"--window-size={width},1400", f"--screenshot={picture}")
            self.assertEqual(png_size(picture), (width, 1400))
            self.assertGreater(picture.stat().st_size, 20000, "an empty page is smaller")

    def test_it_is_dark_where_that_is_wanted(self):
        for scheme, ground in enumerate(("14171b", "f6f7f9")):  # Chromium's numbers: dark, light
            picture = self.agent.folder / f"scheme{scheme}.png"
            browse(self.agent.page, "--window-size=800,600", f"--screenshot={picture}",
                   f"--blink-settings=preferredColorScheme={scheme}")
            self.assertEqual(corner_of(picture), ground)


def take_picture(path):
    steps = [f"{2 * i}s {('sout', 'sup')[i % 2]} {level}" for i, level in
             enumerate((20, 20, 60, 90, 30, 140, 80, 40, 120, 60, 20, 100, 40, 30))]
    script = "; ".join(steps + ["0s sup 120 10.0.1.1 10.0.2.1", "20s sup 250 10.0.1.1 10.0.2.2", "300s sup 0"])
    agent = Agent(script, b"node7")
    try:
        browse(agent.page, "--window-size=1000,900", f"--screenshot={path}",
               "--blink-settings=preferredColorScheme=1")
    finally:
        agent.close()


if __name__ == "__main__":
    if sys.argv[3:4] == ["--picture"]:
        take_picture(pathlib.Path(sys.argv[4]).resolve())
    else:
        unittest.main(argv=sys.argv[:1])
