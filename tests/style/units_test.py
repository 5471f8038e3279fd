#!/usr/bin/env python3
"""Reads the units of the services for what they may do.

usage: units_test.py UNIT...
"""
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

import told_skips

UNITS = sys.argv[1:]
EXPOSURE_MOST = 30  # tenths


class Units(unittest.TestCase):
    def test_they_are_nobody_in_particular_and_may_do_little(self):
        for unit in UNITS:
            text = pathlib.Path(unit).read_text(encoding="utf-8")
            with self.subTest(unit=unit):
                self.assertRegex(text, r"(?m)^User=nccl-ha$")
                # What they read is not shipped, and need not be there.
                self.assertIn("\nConfigurationDirectory=nccl-ha\n", text)
                for line in ("NoNewPrivileges=yes", "ProtectSystem=strict", "RestrictNamespaces=yes",
                             "MemoryDenyWriteExecute=yes", "SystemCallFilter=@system-service",
                             "SystemCallArchitectures=native"):
                    self.assertIn(f"\n{line}\n", text)
                held = re.search(r"(?m)^CapabilityBoundingSet=(.*)$", text).group(1).split()
                self.assertLessEqual(set(held), {"CAP_NET_ADMIN", "CAP_NET_RAW"})

    @unittest.skipUnless(shutil.which("systemd-analyze"), "systemd-analyze is not installed")
    def test_systemd_finds_them_little_exposed(self):
        for unit in UNITS:
            with self.subTest(unit=unit):
                done = subprocess.run(["systemd-analyze", "security", "--offline=true", "--no-pager",
                                       f"--threshold={EXPOSURE_MOST}", unit], text=True, check=False,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                self.assertEqual(done.returncode, 0, done.stdout)


if __name__ == "__main__":
    told_skips.main()
