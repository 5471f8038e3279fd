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

    def objects(self):
        """Those of the Kubernetes example, as they are applied; by kind and name."""
        if shutil.which("kubectl"):
            done = run("kubectl", "kustomize", str(EXAMPLES / "kubernetes"))
            self.assertEqual(done.returncode, 0, done.stdout)
            texts = [done.stdout]
        else:
            told_skips.skipped_part("Kubernetes, kustomize", "kubectl is not installed")
            of = yaml.safe_load((EXAMPLES / "kubernetes/kustomization.yaml").read_text(encoding="utf-8"))
            texts = [(EXAMPLES / "kubernetes" / name).read_text(encoding="utf-8")
                     for name in of["resources"]]
        found = [one for text in texts for one in yaml.safe_load_all(text)]
        return {(one["kind"], one["metadata"]["name"]): one for one in found if one["kind"] != "ConfigMap"}

    @unittest.skipUnless(yaml, "python3-yaml is not installed")
    def test_kubernetes_objects_are_whole(self):
        objects = self.objects()
        self.assertEqual(set(objects), {
            ("Namespace", "nccl-ha"), ("ServiceAccount", "nccl-ha"), ("DaemonSet", "nccl-ha-agent"),
            ("DaemonSet", "nccl-ha-relay"), ("PodMonitor", "nccl-ha"), ("Service", "training"),
            ("Job", "training")})
        self.assertFalse(objects["ServiceAccount", "nccl-ha"]["automountServiceAccountToken"])
        for (kind, name), one in objects.items():
            if kind not in ("DaemonSet", "Job"):
                continue
            pod = one["spec"]["template"]["spec"]
            self.assertEqual(pod["serviceAccountName"], "nccl-ha", name)
            volumes = {volume["name"]: volume for volume in pod["volumes"]}
            # Each pod has shared memory of its own.
            self.assertNotIn("/dev/shm", [volume.get("hostPath", {}).get("path") for volume in pod["volumes"]])
            for container in pod["containers"] + pod.get("initContainers", []):
                for mount in container.get("volumeMounts", []):
                    self.assertIn(mount["name"], volumes, container["name"])
                if "nccl-ha" in container["image"] and "command" not in container:
                    # Each is a command that there is.
                    done = run(PROGRAM, container["args"][0], "--help")
                    self.assertEqual(done.returncode, 0, done.stdout)
                if container["name"] in ("relay", "check", "training"):  # they open RDMA devices
                    self.assertEqual(container["resources"]["limits"]["rdma/hca"], 1, container["name"])
                    self.assertIn("IPC_LOCK", container["securityContext"]["capabilities"]["add"])

    @unittest.skipUnless(yaml, "python3-yaml is not installed")
    def test_kubernetes_services_are_probed_and_asked(self):
        objects = self.objects()
        monitor = objects["PodMonitor", "nccl-ha"]["spec"]
        for service in ("agent", "relay"):
            spec = objects["DaemonSet", f"nccl-ha-{service}"]["spec"]
            labels = spec["template"]["metadata"]["labels"]
            for wanted in (spec["selector"]["matchLabels"], monitor["selector"]["matchLabels"]):
                self.assertLessEqual(wanted.items(), labels.items())
            container = spec["template"]["spec"]["containers"][0]
            self.assertIn(monitor["podMetricsEndpoints"][0]["port"],
                          [port["name"] for port in container["ports"]])
            for probe in ("readinessProbe", "livenessProbe"):
                program, *words = container[probe]["exec"]["command"]
                self.assertEqual((program, words[:2]), ("/usr/bin/nccl-ha", [service, "status"]))
                done = run(PROGRAM, *words, "--help")
                self.assertEqual(done.returncode, 0, done.stdout)
        settings = self.path / "agent.json"
        shutil.copy(EXAMPLES / "kubernetes/agent.json", settings)
        done = run(PROGRAM, "agent", "--check", "--settings", str(settings), "--dir", str(self.path))
        self.assertEqual(done.returncode, 0, done.stdout)

    @unittest.skipUnless(yaml, "python3-yaml is not installed")
    def test_kubernetes_checks_what_the_job_runs(self):
        """One library, in one volume: copied, loaded in the job's image, checked, and used."""
        pod = self.objects()["Job", "training"]["spec"]["template"]["spec"]
        copies, loads, check = pod["initContainers"]
        job = pod["containers"][0]
        self.assertEqual(loads["image"], job["image"])
        self.assertEqual(copies["image"], check["image"])
        environment = {one["name"]: one["value"] for one in job["env"]}
        library = environment["NCCL_NET_PLUGIN"]
        self.assertEqual(environment, {"NCCL_NET_PLUGIN": library, "NCCL_NET": "HA"})
        self.assertEqual({one["name"]: one["value"] for one in check["env"]}, environment)
        self.assertIn("--require-plugin", check["args"])
        self.assertIn(library, loads["command"][-1])
        self.assertEqual(pathlib.Path(copies["command"][-1]) / pathlib.Path(copies["command"][-2]).name,
                         pathlib.Path(library))
        places = {mount["mountPath"] for one in (copies, loads, check, job)
                  for mount in one["volumeMounts"] if mount["name"] == "plugin"}
        self.assertEqual(places, {str(pathlib.Path(library).parent)})

    def test_an_image_with_the_plugin_takes_it_or_ends(self):
        text = (EXAMPLES / "Containerfile.pytorch").read_text(encoding="utf-8")
        steps = [line for line in text.splitlines() if line and not line.startswith("#")]
        self.assertEqual([line.split()[0] for line in steps], ["ARG", "FROM", "COPY", "ENV"])
        self.assertIn("/usr/lib/libnccl-net-ha.so", steps[2])
        self.assertEqual(steps[3], "ENV NCCL_NET_PLUGIN=ha NCCL_NET=HA")

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("chroot"), "only root can chroot")
    def test_the_image_runs_without_anything_else(self):
        image = self.path / "image"
        done = run(str(EXAMPLES / "collect-image"), PROGRAM, PLUGIN, str(image))
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertFalse((image / "bin/sh").exists() or (image / "usr/bin/sh").exists())
        done = run("chroot", str(image), "/usr/bin/cp", "/usr/lib/libnccl-net-ha.so", "/tmp/")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual((image / "tmp/libnccl-net-ha.so").read_bytes(), pathlib.Path(PLUGIN).read_bytes())
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
