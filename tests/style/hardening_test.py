#!/usr/bin/env python3
"""Reads the built library and program for what makes a mistake in memory the end of the process.

usage: hardening_test.py LIBRARY PROGRAM ARCHIVE_DIR; ARCHIVE_DIR has the static libraries
"""
import pathlib
import re
import subprocess
import sys
import unittest

import told_skips

LIBRARY, PROGRAM, ARCHIVES = sys.argv[1:4]


def output_of(*command):
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}"
    return done.stdout


class Binaries(unittest.TestCase):
    def test_nothing_is_bound_late_and_what_was_bound_is_read_only(self):
        for file in (LIBRARY, PROGRAM):
            with self.subTest(file=file):
                self.assertRegex(output_of("readelf", "-dW", file), r"BIND_NOW|FLAGS_1.*NOW")
                segments = output_of("readelf", "-lW", file)
                self.assertIn("GNU_RELRO", segments)
                self.assertRegex(segments, r"GNU_STACK .* RW ", "the stack holds no code")
                self.assertRegex(output_of("readelf", "-hW", file), r"Type: +DYN", "it lies anywhere")

    def test_stacks_and_copies_are_guarded(self):
        for file in (LIBRARY, PROGRAM):
            symbols = output_of("readelf", "--dyn-syms", "-W", file)
            with self.subTest(file=file):
                self.assertRegex(symbols, r"UND __stack_chk_fail@")
                self.assertRegex(symbols, r"UND __[a-z]+_chk@", "_FORTIFY_SOURCE")

    def test_tools_check_the_bounds_of_containers(self):
        self.assertIn("__glibcxx_assert_fail",
                      output_of("nm", "-uC", f"{ARCHIVES}/libnha_tools.a"))

    def test_jumps_land_where_they_may(self):
        """Notes of our own objects; those of the distribution's C library decide for the whole."""
        machine = output_of("readelf", "-hW", LIBRARY)
        wanted = "IBT, SHSTK" if "X86-64" in machine else "BTI, PAC"
        archives = sorted(pathlib.Path(ARCHIVES).glob("libnha_*.a"))
        self.assertTrue(archives)
        for archive in archives:
            notes = output_of("readelf", "-nW", str(archive))
            parts = re.split(r"^File: ", notes, flags=re.M)[1:]
            self.assertTrue(parts, archive)
            for part in parts:
                name = part.split("\n", 1)[0]
                with self.subTest(object=name):
                    self.assertIn(wanted, part)


if __name__ == "__main__":
    told_skips.main()
