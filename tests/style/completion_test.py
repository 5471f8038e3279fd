#!/usr/bin/env python3
"""The completion scripts, each in its own shell: what is offered after a part of a command line.

usage: completion_test.py NCCL_HA FOLDER     (FOLDER: tools/completion)
"""
import os
import shutil
import subprocess
import sys
import unittest

import told_skips

PROGRAM, FOLDER = sys.argv[1:3]
# In place of what belongs to a shell that somebody types into: what is offered comes line by line.
BASH = """
source "$0/nccl-ha.bash"
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*" COMP_POINT=${#COMP_LINE}
"$(complete -p nccl-ha | sed 's/.*-F \\([^ ]*\\).*/\\1/')" nccl-ha "${@: -1}" "${@: -2:1}"
printf '%s\\n' "${COMPREPLY[@]}"
"""
ZSH = """
compadd() { shift; print -rl -- "$@" }
_files() { print FILES }
words=("$@") CURRENT=$#
source "$0/_nccl-ha"
"""
FISH = 'source $argv[1]/nccl-ha.fish; complete -C "$argv[2]"'


class Offered(unittest.TestCase):
    def ask(self, shell, *words):
        if shutil.which(shell) is None:
            self.skipTest(f"{shell} is not installed")
        command = {"bash": ["bash", "--norc", "-c", BASH, FOLDER, *words],
                   "zsh": ["zsh", "-f", "-c", ZSH, FOLDER, *words],
                   "fish": ["fish", "--no-config", "-c", FISH, FOLDER, " ".join(words)]}[shell]
        environment = dict(os.environ, PATH=os.path.dirname(PROGRAM) + ":" + os.environ["PATH"])
        done = subprocess.run(command, env=environment, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, check=False, timeout=60)
        self.assertEqual(done.stderr, "")  # the status says whether there was anything
        return {line.split("\t")[0] for line in done.stdout.splitlines() if line}

    def check(self, shell):
        self.assertEqual(self.ask(shell, "nccl-ha", "trace", "ex"), {"export"})
        self.assertEqual(self.ask(shell, "nccl-ha", "perf", "all_g"), {"all_gather"})
        self.assertIn("ring-4", self.ask(shell, "nccl-ha", "lab", "run", ""))
        self.assertIn("--json", self.ask(shell, "nccl-ha", "check", "--"))
        self.assertEqual(self.ask(shell, "nccl-ha", "perf", "--no-such"), set())

    def test_bash(self):
        self.check("bash")

    def test_zsh(self):
        self.check("zsh")

    def test_fish(self):
        self.check("fish")


if __name__ == "__main__":
    told_skips.main()
