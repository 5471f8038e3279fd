#!/usr/bin/env python3
"""The commit that a build names follows the repository, without a new configure step by hand.

usage: version_test.py CMAKE SOURCE_DIR
"""
import pathlib
import subprocess
import sys
import tempfile
import unittest

import told_skips

CMAKE, SOURCE = sys.argv[1:3]

PROJECT = f"""cmake_minimum_required(VERSION 3.22)
project(small LANGUAGES CXX)
include("{SOURCE}/cmake/NhaVersion.cmake")
"""


def output_of(*command, **more):
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          check=False, **more)
    assert done.returncode == 0, f"{command}: {done.stdout}"
    return done.stdout.strip()


class Version(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name) / "tree"
        self.build = pathlib.Path(self.folder.name) / "build"
        base = self.path / "runtime/base"
        base.mkdir(parents=True)
        (self.path / "CMakeLists.txt").write_text(PROJECT, encoding="utf-8")
        (base / "version.h").write_text("namespace nccl_ha { const char* version_commit(); }\n",
                                        encoding="utf-8")
        self.git("init", "-q")
        self.commit()

    def git(self, *words):
        return output_of("git", "-c", "user.name=a", "-c", "user.email=a@example.org",
                         "-c", "safe.directory=*", *words, cwd=self.path)

    def commit(self):
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "x")
        return self.git("rev-parse", "--short=12", "HEAD")

    def built(self):
        output_of(CMAKE, "--build", str(self.build))
        return (self.build / "version_commit.cpp").read_text(encoding="utf-8")

    def follows(self, tree):
        output_of(CMAKE, "-S", str(tree), "-B", str(self.build), "-G", "Ninja")
        self.built()
        self.path = tree
        commit = self.commit()
        self.assertIn(f'"{commit}"', self.built())
        self.git("checkout", "-q", "HEAD~1")
        self.assertIn(f'"{self.git("rev-parse", "--short=12", "HEAD")}"', self.built())
        unchanged = (self.build / "version_commit.cpp").stat().st_mtime_ns
        self.built()
        self.assertEqual((self.build / "version_commit.cpp").stat().st_mtime_ns, unchanged)

    def test_a_clone(self):
        self.follows(self.path)

    def test_a_work_tree_beside_it(self):
        other = pathlib.Path(self.folder.name) / "other"
        self.git("worktree", "add", "-q", str(other))
        self.follows(other)


if __name__ == "__main__":
    told_skips.main()
