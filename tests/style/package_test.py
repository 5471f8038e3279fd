#!/usr/bin/env python3
"""Makes the packages of a build and looks at them: contents, lintian, the same bytes twice, and
that they install into an empty root and leave nothing behind.

usage: package_test.py CPACK BUILD_DIR [MULTIARCH EMULATOR...]

MULTIARCH, as aarch64-linux-gnu, is what a cross-build is for; EMULATOR runs its programs.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import told_skips

CPACK, BUILD = sys.argv[1:3]
FOREIGN = sys.argv[3] if len(sys.argv) > 3 else ""
EMULATOR = sys.argv[4:]
MACHINES = {"": os.uname().machine, "aarch64-linux-gnu": "aarch64"}
ELF_NAMES = {"x86_64": "Advanced Micro Devices X86-64", "aarch64": "AArch64"}
DEBIAN_NAMES = {"x86_64": "amd64", "aarch64": "arm64"}
EPOCH = "1750000000"
SERVICES = ("agent", "relay")
PACKAGES = {"libnccl-net-ha", "nccl-ha", "nccl-ha-agent", "nccl-ha-relay", "nccl-ha-dev"}


def run(*command, **more):
    return subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          check=False, **more)


def output_of(*command, **more):
    done = run(*command, **more)
    assert done.returncode == 0, f"{command}: {done.stdout}"
    return done.stdout


def make(generator, folder, umask=0o022):
    """The packages of that kind, by file name."""
    output_of(CPACK, "--config", f"{BUILD}/CPackConfig.cmake", "-G", generator, "-B", str(folder),
              env=dict(os.environ, SOURCE_DATE_EPOCH=EPOCH), umask=umask)
    return {path.name: path for path in folder.glob(f"*.{generator.lower()}")}


def dpkg_in(root):
    """The words by which dpkg works in a root that has nothing yet."""
    (root / "var/lib/dpkg/updates").mkdir(parents=True)
    (root / "var/lib/dpkg/info").mkdir()
    (root / "var/lib/dpkg/status").touch()
    (root / "etc").mkdir(exist_ok=True)  # where users are written down
    return ["dpkg", f"--root={root}", "--force-depends", "--force-not-root", "--no-triggers",
            f"--log={root}.log", "--force-script-chrootless", "--force-architecture"]


def files_of(root):
    return {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()}


class Packages(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name)

    def twice(self, generator):
        first = make(generator, self.path / "one")
        second = make(generator, self.path / "two", umask=0o077)
        self.assertEqual(len(first), len(PACKAGES), first)
        self.assertEqual(sorted(first), sorted(second))
        for name, path in first.items():
            with self.subTest(package=name):
                self.assertEqual(path.read_bytes(), second[name].read_bytes(), "other bytes")
        return list(first.values())

    def check_tree(self, root, libraries):
        library = root / "usr" / libraries / "libnccl-net-ha.so"
        self.assertGreater(library.stat().st_size, 100000)
        self.assertTrue(library.samefile(library.parent / "librccl-net-ha.so"))
        self.assertNotIn(".debug_info", output_of("readelf", "-SW", str(library)))
        self.check_binaries(library, root / "usr/bin/nccl-ha")
        self.assertTrue((root / "usr/share/doc/nccl-ha/examples/90-nccl-ha.conf").exists())
        for service in SERVICES:
            unit = (root / f"usr/lib/systemd/system/nccl-ha-{service}.service").read_text(encoding="utf-8")
            self.assertIn(f"ExecStart=/usr/bin/nccl-ha {service}", unit)
            users = (root / f"usr/lib/sysusers.d/nccl-ha-{service}.conf").read_text(encoding="utf-8")
            self.assertIn(f"u {re.search('^User=(.*)$', unit, re.M).group(1)} ", users)
        # A program finds its plugin, wherever the root is.
        found = output_of(*EMULATOR, str(root / "usr/bin/nccl-ha"), "info", "--json",
                          env=dict(os.environ, HA_NCCL_FABRIC="datagram", HA_NCCL_IFNAME="lo"))
        self.assertIn(str(library), found)
        config = root / "usr" / libraries / "pkgconfig/nccl-ha.pc"
        text = config.read_text(encoding="utf-8")
        self.assertIn(f"libdir=/usr/{libraries}\n", text)
        self.assertIn("prefix=/usr\n", text)
        page = output_of("gzip", "-dc", str(root / "usr/share/man/man7/nccl-ha.7.gz"))
        self.assertIn("HA_NCCL_RTO_MS", page)
        page = output_of("gzip", "-dc", str(root / "usr/share/man/man1/nccl-ha-check.1.gz"))
        self.assertRegex(page, r'\.TH NCCL-HA-CHECK 1 "\d{4}-\d\d-\d\d" "nccl-ha \d+\.\d+\.\d+"')

    def check_contents(self, of):
        """What an operator reads is in the operator's package, and a service is in its own."""
        for package, file in [("libnccl-net-ha", "/libnccl-net-ha.so"), ("nccl-ha", "/bin/nccl-ha"),
                              ("nccl-ha", "/docs/operations.md"), ("nccl-ha", "/docs/quickstart.md"),
                              ("nccl-ha", "/docs/pictures/throughput-failover.svg"),
                              ("nccl-ha", "/docs/agent-dashboard.json"), ("nccl-ha", "/man7/nccl-ha.7.gz"),
                              ("nccl-ha", "/nccl-ha/changelog.gz"), ("nccl-ha", "/nccl-ha/CHANGELOG.md"),
                              ("nccl-ha-agent", "/nccl-ha-agent.service"),
                              ("nccl-ha-relay", "/nccl-ha-relay.service"),
                              ("nccl-ha-dev", "/docs/architecture.md"), ("nccl-ha-dev", "/nccl-ha.pc")]:
            self.assertEqual([name for name, files in of.items() if f"{file}\n" in files], [package], file)

    def check_binaries(self, library, program):
        machine = ELF_NAMES.get(MACHINES[FOREIGN], "")
        for file in (library, program):
            self.assertRegex(output_of("readelf", "-hW", str(file)), f"Machine: +{machine}")
        table = output_of("nm", "-D", "--defined-only", str(library))
        names = {line.split()[-1].split("@")[0] for line in table.splitlines() if line.strip()}
        self.assertEqual(names, {f"ncclNetPlugin_v{version}" for version in range(6, 13)})
        versions = {tuple(map(int, version.split("."))) for version in
                    re.findall(r"GLIBC_([0-9.]+)", output_of("readelf", "-VW", str(library)))}
        self.assertTrue(versions)
        self.assertLessEqual(max(versions), (2, 34))

    @unittest.skipUnless(shutil.which("dpkg-deb") and shutil.which("dpkg-shlibdeps"),
                         "dpkg is not installed")
    def test_debian(self):
        packages = self.twice("DEB")
        fields = {}
        for path in packages:
            text = output_of("dpkg-deb", "--field", str(path))
            fields[re.search(r"^Package: (.*)$", text, re.M).group(1)] = text
        self.assertEqual(set(fields), PACKAGES)
        for name in ("libnccl-net-ha", "nccl-ha"):
            depends = re.search(r"^Depends: (.*)$", fields[name], re.M).group(1).split(", ")
            others = [one for one in depends if not one.startswith("libnccl-net-ha ")]
            self.assertEqual(len(others), 1, depends)
            self.assertRegex(others[0], r"^libc6 \(>= 2\.3[0-4]\)$", "the C library only, of 2.34 at most")
        # Whoever installs the program gets the plugin, and with a service both, of the same version.
        for name, brings in [("nccl-ha", "libnccl-net-ha"), ("nccl-ha-agent", "nccl-ha"),
                             ("nccl-ha-relay", "nccl-ha")]:
            version = re.search(r"^Version: (.*)$", fields[name], re.M).group(1)
            self.assertRegex(fields[name],
                             rf"(?m)^Depends: (.*, )?{brings} \(= {re.escape(version)}\)(,|$)")
        self.check_contents({re.search(r"^Package: (.*)$", output_of("dpkg-deb", "--field", str(path)),
                                       re.M).group(1): output_of("dpkg-deb", "--contents", str(path))
                             for path in packages})
        if MACHINES[FOREIGN] in DEBIAN_NAMES:
            for text in fields.values():
                self.assertRegex(text, f"(?m)^Architecture: {DEBIAN_NAMES[MACHINES[FOREIGN]]}$")
        if shutil.which("lintian"):
            done = run("lintian", "--allow-root", "--fail-on", "error,warning", "--tag-display-limit", "0",
                       *map(str, packages))
            self.assertEqual(done.returncode, 0, done.stdout)
        else:
            told_skips.skipped_part("test_debian, lintian", "lintian is not installed")
        root = self.path / "root"
        dpkg = dpkg_in(root)
        before = files_of(root / "usr") if (root / "usr").exists() else set()
        output_of(*dpkg, "--install", *map(str, packages))
        multiarch = FOREIGN or output_of("dpkg-architecture", "-q", "DEB_HOST_MULTIARCH").strip()
        self.check_tree(root, f"lib/{multiarch}")
        if shutil.which("systemd-sysusers"):
            self.assertRegex((root / "etc/passwd").read_text(encoding="utf-8"), "(?m)^nccl-ha:")
        output_of(*dpkg, "--purge", *sorted(PACKAGES))
        left = files_of(root / "usr") if (root / "usr").exists() else set()
        self.assertEqual(left - before, set())

    @unittest.skipUnless(shutil.which("rpmbuild"), "rpmbuild is not installed")
    def test_rpm(self):
        packages = self.twice("RPM")
        names = {output_of("rpm", "-qp", "--qf", "%{NAME}", str(path)) for path in packages}
        self.assertEqual(names, PACKAGES - {"nccl-ha-dev"} | {"nccl-ha-devel"})
        root = self.path / "root"
        machines = {output_of("rpm", "-qp", "--qf", "%{ARCH}", str(path)) for path in packages}
        self.assertEqual(machines, {MACHINES[FOREIGN]})
        rpm = ["rpm", "--root", str(root), "--nodeps", "--noscripts"]
        output_of(*rpm, "--ignorearch", "-i", *map(str, packages))
        self.check_tree(root, "lib64")
        output_of(*rpm, "-e", *sorted(names))
        left = files_of(root / "usr") if (root / "usr").exists() else set()
        self.assertEqual({path for path in left if "rpm" not in path}, set())


if __name__ == "__main__":
    told_skips.main()
