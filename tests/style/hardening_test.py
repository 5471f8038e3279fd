#!/usr/bin/env python3
"""Reads the built library and program for what makes a mistake in memory the end of the process.

usage: hardening_test.py LIBRARY PROGRAM ARCHIVE_DIR; ARCHIVE_DIR has the static libraries
"""
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import told_skips

LIBRARY, PROGRAM, ARCHIVES = sys.argv[1:4]


def output_of(*command):
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}"
    return done.stdout


MACHINE = output_of("readelf", "-hW", PROGRAM).lower().replace("-", "_")


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

    def test_they_need_only_a_c_library_as_old_as_the_oldest_supported(self):
        for file in (LIBRARY, PROGRAM):
            with self.subTest(file=file):
                needed = re.findall(r"\(NEEDED\).*\[(.*)\]", output_of("readelf", "-dW", file))
                self.assertIn("libc.so.6", needed)
                for library in needed:
                    self.assertRegex(library, r"^(lib[cm]\.so\.6|ld-linux.*)$")
                versions = {tuple(map(int, version.split("."))) for version in
                            re.findall(r"GLIBC_([0-9.]+)", output_of("readelf", "-VW", file))}
                self.assertLessEqual(max(versions), (2, 34))

    @unittest.skipUnless(os.geteuid() == 0, "only root changes the root folder")
    @unittest.skipUnless(platform.machine() in MACHINE, "it is another machine's")
    def test_the_program_runs_where_nothing_else_is(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            shutil.copy(PROGRAM, root / "nccl-ha")
            for path in re.findall(r"(/\S+)", output_of("ldd", PROGRAM)):
                (root / path[1:]).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, root / path[1:])
            for arguments in (("--version",), ("info", "--markdown"), ("check", "--help")):
                self.assertTrue(output_of("chroot", folder, "/nccl-ha", *arguments))

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
