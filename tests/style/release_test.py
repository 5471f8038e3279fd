#!/usr/bin/env python3
"""tools/release refuses what must not be released, and takes its notes from CHANGELOG.md.

usage: release_test.py SOURCE_DIR
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import told_skips

SOURCE = pathlib.Path(sys.argv[1])
CHANGES = """# Changes

## 1.1.0 (unreleased)

- A second thing.

## 1.0.0 (2027-01-31)

The first.

- A thing.

## 0.9.0 (2026-01-31)
"""


class Release(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name) / "tree"
        (self.path / "tools").mkdir(parents=True)
        shutil.copy(SOURCE / "tools/release", self.path / "tools/release")
        (self.path / ".gitignore").write_text("build/\n", encoding="utf-8")
        (self.path / "CHANGELOG.md").write_text(CHANGES, encoding="utf-8")
        self.git("init", "-q")
        self.becomes("1.0.0")

    def git(self, *words):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@example.org",
                        "-c", "safe.directory=*", *words], cwd=self.path, check=True,
                       stdout=subprocess.DEVNULL)

    def becomes(self, version):
        (self.path / "CMakeLists.txt").write_text(
            f"cmake_minimum_required(VERSION 3.25)\nproject(nccl_ha VERSION {version} LANGUAGES CXX)\n",
            encoding="utf-8")
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "x")

    def release(self, version):
        return subprocess.run([sys.executable, str(self.path / "tools/release"), version, "--notes"],
                              text=True, check=False, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def refused(self, version, why):
        done = self.release(version)
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertIn(why, done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertFalse((self.path / "build").exists(), "nothing is made of what is refused")

    def test_the_notes_are_the_section_of_the_version(self):
        done = self.release("1.0.0")
        self.assertEqual(done.returncode, 0, done.stderr)
        notes = self.path / "build/releases/1.0.0/NOTES.md"
        self.assertEqual(notes.read_text(encoding="utf-8"), "The first.\n\n- A thing.\n")
        again = self.release("1.0.0")
        self.assertEqual(again.returncode, 2)
        self.assertIn("is not empty", again.stderr)

    def test_a_candidate_may_be_called_unreleased(self):
        self.becomes("1.1.0")
        self.refused("1.1.0", "CHANGELOG.md calls 1.1.0 unreleased")
        done = self.release("1.1.0-rc2")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("A second thing.",
                      (self.path / "build/releases/1.1.0-rc2/NOTES.md").read_text(encoding="utf-8"))

    def test_a_tree_with_changes_is_refused(self):
        (self.path / "new").write_text("", encoding="utf-8")
        self.refused("1.0.0", "the work tree has changes, ?? new is one")
        (self.path / "new").unlink()
        (self.path / "CHANGELOG.md").write_text(CHANGES + "\n", encoding="utf-8")
        self.refused("1.0.0", "the work tree has changes, M CHANGELOG.md is one")

    def test_other_versions_are_refused(self):
        self.refused("1.0.1", "CMakeLists.txt has version 1.0.0, not 1.0.1")
        for version in ("1.0", "v1.0.0", "1.0.0-beta", "1.0.0-rc0"):
            self.refused(version, f"{version} is no version")

    def test_a_version_that_was_released_is_refused(self):
        self.git("tag", "v1.0.0")
        self.refused("1.0.0", "tag v1.0.0 exists")

    def test_a_version_without_changes_is_refused(self):
        self.becomes("1.2.0")
        self.refused("1.2.0", "CHANGELOG.md has 0 sections for 1.2.0")
        self.becomes("0.9.0")
        self.refused("0.9.0", "CHANGELOG.md lists no change in 0.9.0")

    def test_the_changes_of_this_version_can_be_released(self):
        """What is written for the next release has the form that the script reads."""
        shutil.copy(SOURCE / "CHANGELOG.md", self.path / "CHANGELOG.md")
        self.becomes("1.0.0")
        done = self.release("1.0.0-rc1")
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    told_skips.main()
