#!/usr/bin/env python3
"""Lints the examples, and runs what can run here.

usage: examples_test.py SOURCE_DIR PROGRAM PLUGIN
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import told_skips

try:
    import yaml
except ImportError:
    yaml = None

SOURCE, PROGRAM, PLUGIN = sys.argv[1:4]
EXAMPLES = pathlib.Path(SOURCE) / "tools/examples"


def run(*command, **more):
    return subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          check=False, **more)


class Examples(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name)

    def script(self, name, text):
        path = self.path / name
        path.write_text("#!/bin/sh\n" + text + "\n", encoding="utf-8")
        path.chmod(0o755)
        return path

    @unittest.skipUnless(shutil.which("shellcheck"), "shellcheck is not installed")
    def test_scripts_have_no_mistakes(self):
        scripts = [EXAMPLES / "slurm-prolog", EXAMPLES / "collect-image",
                   pathlib.Path(SOURCE) / "tools/completion/nccl-ha.bash"]
        done = run("shellcheck", "--shell=bash", *map(str, scripts))
        self.assertEqual(done.returncode, 0, done.stdout)
        packages = pathlib.Path(SOURCE) / "tools/package"
        done = run("shellcheck", "--shell=sh", str(scripts[0]), str(packages / "postinst.in"),
                   str(packages / "prerm.in"))
        self.assertEqual(done.returncode, 0, done.stdout)

    def prolog(self, status, text):
        """Its status, and how scontrol was called."""
        program = self.script("nccl-ha", f'[ "$*" = "check --brief --require-plugin" ] || exit 9\n'
                                         f'echo "{text}"\nexit {status}')
        calls = self.path / "calls"
        self.script("scontrol", f'printf "%s|" "$@" >> "{calls}"')
        done = run(str(EXAMPLES / "slurm-prolog"),
                   env={"PATH": f"{self.path}:{os.environ['PATH']}", "NHA_PROGRAM": str(program),
                        "SLURMD_NODENAME": "n7", "NHA_CHECK_SECONDS": "10"})
        return done.returncode, calls.read_text(encoding="utf-8") if calls.exists() else ""

    def test_a_node_that_fails_is_drained_with_the_reason(self):
        self.assertEqual(self.prolog(0, "nccl-ha check passed"), (0, ""))
        status, calls = self.prolog(1, "nccl-ha check failed: rail1 is down")
        self.assertEqual((status, calls), (1, "update|NodeName=n7|State=DRAIN|"
                                              "Reason=nccl-ha check failed: rail1 is down|"))

    def test_the_real_check_speaks_to_the_prolog(self):
        self.script("scontrol", f'printf "%s|" "$@" > "{self.path}/calls"')
        env = {"PATH": f"{self.path}:{os.environ['PATH']}", "NHA_PROGRAM": PROGRAM,
               "SLURMD_NODENAME": "n7", "HA_NCCL_FABRIC": "nonsense"}
        done = run(str(EXAMPLES / "slurm-prolog"), env=env)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("HA_NCCL_FABRIC=nonsense", (self.path / "calls").read_text(encoding="utf-8"))

    def test_a_node_without_the_program_is_left_alone(self):
        done = run(str(EXAMPLES / "slurm-prolog"), env={"PATH": os.environ["PATH"],
                                                        "NHA_PROGRAM": "/does/not/exist"})
        self.assertEqual(done.returncode, 0, done.stdout)

    @unittest.skipUnless(yaml, "python3-yaml is not installed")
    def test_kubernetes_objects_are_whole(self):
        text = (EXAMPLES / "kubernetes.yaml").read_text(encoding="utf-8")
        objects = list(yaml.safe_load_all(text))
        self.assertEqual([one["kind"] for one in objects], ["DaemonSet", "ConfigMap", "Job"])
        for one in objects:
            if "spec" not in one:
                continue
            spec = one["spec"]["template"]["spec"]
            volumes = {volume["name"] for volume in spec["volumes"]}
            containers = spec["containers"] + spec.get("initContainers", [])
            for container in containers:
                mounted = {mount["name"] for mount in container.get("volumeMounts", [])}
                self.assertLessEqual(mounted, volumes, container["name"])
            for container in containers:
                # The agent opens no RDMA device.
                if container["name"] != "agent":
                    self.assertEqual(container["resources"]["limits"], {"rdma/hca": 1}, container["name"])
                    self.assertIn("IPC_LOCK", container["securityContext"]["capabilities"]["add"])
                if "nccl-ha:" in container["image"]:
                    # Each is a command that there is.
                    done = run(PROGRAM, container["args"][0], "--help")
                    self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(objects[0]["spec"]["selector"]["matchLabels"],
                         objects[0]["spec"]["template"]["metadata"]["labels"])

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("chroot"), "only root can chroot")
    def test_the_image_runs_without_anything_else(self):
        image = self.path / "image"
        done = run(str(EXAMPLES / "collect-image"), PROGRAM, PLUGIN, str(image))
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertFalse((image / "bin/sh").exists() or (image / "usr/bin/sh").exists())
        done = run("chroot", str(image), "/usr/bin/nccl-ha", "--version")
        self.assertEqual(done.returncode, 0, done.stdout)
        done = run("chroot", str(image), "/usr/bin/nccl-ha", "info", "--env")
        self.assertIn("HA_NCCL_RTO_MS", done.stdout)
        done = run("chroot", str(image), "/usr/bin/nccl-ha", "perf", "all_reduce", "-b", "8", "-e",
                   "64K", env=dict(os.environ, HA_NCCL_FABRIC="datagram", HA_NCCL_IFNAME="lo",
                                   HA_NCCL_COUNTERS_DIR=""))
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("Out of bounds values : 0 OK", done.stdout)


if __name__ == "__main__":
    told_skips.main()
