#!/usr/bin/env python3
"""Follows docs/quickstart.md line by line, on two hosts that have its packages, the C library, a shell
and nothing else. What cannot run there is listed with the reason; a command of the page that is in
neither list is a failure.

usage: first_hour_test.py CPACK BUILD_DIR
"""
import fnmatch
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import textwrap
import time
import unittest

import told_skips
from package_test import PACKAGES, dpkg_in, make, output_of, run

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "quickstart.md").read_text(encoding="utf-8")
PATIENCE_S = 60
SPACES = ["unshare", "--mount", "--net", "--uts", "--ipc", "--pid", "--fork", "--mount-proc",
          "--kill-child"]
PROGRAMS = ["busybox", "chroot", "dpkg", "dpkg-shlibdeps", "hostname", "ip", "ldd", "mount", "nsenter",
            "unshare"]

# In the clean root, of which $1 is the path: what a kernel gives, and two hosts with a switch for each
# of their cables. It ends as a shell on node1.
HOSTS = r"""
root=$1
mount -t tmpfs -o mode=755 devices "$root/dev"
for device in null zero full random urandom; do
  : > "$root/dev/$device"
  mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir "$root/dev/shm"
mount -t tmpfs -o mode=1777 memory "$root/dev/shm"
mount -t proc proc "$root/proc"
mount -t tmpfs spaces "$root/run"
for host in node1 node2; do
  mkdir "$root/run/$host"
  touch "$root/run/$host/net" "$root/run/$host/uts"
  unshare --net="$root/run/$host/net" --uts="$root/run/$host/uts" hostname "$host"
  nsenter --net="$root/run/$host/net" ip link set lo up
done
for rail in 0 1; do
  ip link add "switch$rail" type bridge forward_delay 0 mcast_snooping 0
  ip link set "switch$rail" addrgenmode none
  ip link set "switch$rail" up
  for host in 1 2; do
    space=$root/run/node$host/net
    ip link add "port$rail$host" type veth peer name "rail$rail" netns "$space"
    ip link set "port$rail$host" addrgenmode none
    ip link set "port$rail$host" master "switch$rail"
    ip link set "port$rail$host" up
    nsenter --net="$space" ip link set "rail$rail" addrgenmode none
    nsenter --net="$space" ip address add "10.0.$rail.$host/24" dev "rail$rail"
    nsenter --net="$space" ip link set "rail$rail" up
  done
done
exec nsenter --net="$root/run/node1/net" --uts="$root/run/node1/uts" chroot "$root" /bin/sh
"""
# It leads into the namespaces of a host.
SSH = """#!/bin/sh
while [ "$1" = -o ]; do shift 2; done
host=$1
shift
[ "$1" != -- ] || shift
exec nsenter "-n/run/$host/net" "-u/run/$host/uts" -- "$@"
"""
# perf's ranks meet over the second cable, so that the first one can be pulled.
FILES = {"etc/hosts": "127.0.0.1 localhost\n10.0.1.1 node1\n10.0.1.2 node2\n",
         "etc/nsswitch.conf": "hosts: files\n", "usr/bin/ssh": SSH}
# The page's hosts have RDMA, these have not.
HERE = {"RDMA on": "datagrams over UDP on", "RoCE mlx5_0:1": "datagram", "mlx5_0:1": "rail0",
        "mlx5_1:1": "rail1"}
COUNTS = (r"(?:1 error|(?!1 )\d+ errors), (?:1 warning|(?!1 )\d+ warnings), "
          r"(?:1 hint|(?!1 )\d+ hints)")
# A line of the plugin's, as perf shows it of rank 0, and of rank 1 on node2.
PLUGIN_LINE = re.compile(r"(?:nccl-ha perf: rank (?=0)|node2: nccl-ha perf: rank (?=1))(\d) \(ha\): "
                         r"(NET/HA : .*)")


def shown(page):
    """The blocks of lines that it shows."""
    return [textwrap.dedent(one) for one in re.findall(r"(?m)(?:^ {4}.*\n)+", page)]


def commands(page):
    """Those that it shows, without comments, then those within its tables."""
    lines = [line for block in shown(page) if not block.startswith(("import ", "NET/HA : "))
             for line in block.splitlines()]
    spans = [span for line in page.splitlines() if line.startswith("|") and "NET/HA : " not in line
             for span in line.split("`")[1::2]]
    return ([re.sub(r"\s{2,}#.*", "", line) for line in lines] +
            [span for span in spans if re.match(r"[a-z][\w-]* \S", span)])


def pattern_of(line):
    """A line of the log that stands for others: `...` for anything, numbers and hosts for any."""
    for there, here in HERE.items():
        line = line.replace(there, here)
    pattern = ""
    for part in re.split(r"(\.\.\.|#[0-9a-f]{16}|\bnode\d\b|(?<!path )(?<!\w)\d+(?:\.\d+)*)", line):
        if part == "...":
            pattern += ".*"
        elif re.fullmatch(r"#[0-9a-f]{16}", part):
            pattern += r"#\S+"
        elif re.fullmatch(r"node\d", part):
            pattern += r"node\d"
        elif re.fullmatch(r"\d+(?:\.\d+)*", part):
            pattern += r"\d+(?:\.\d+)*"
        else:
            pattern += re.escape(part)
    return pattern


def why_not():
    """Why these hosts cannot be made here; empty: they can."""
    if os.geteuid() != 0:
        return "only root changes the root folder"
    missing = [name for name in PROGRAMS if not shutil.which(name)]
    if missing:
        return f"{', '.join(missing)}: not installed"
    tried = run(*SPACES, "true")
    return "" if tried.returncode == 0 else f"no namespaces can be made here: {tried.stdout.strip()}"


def make_root(root, packages):
    """The packages, what they load, a shell with its commands, and what FILES says."""
    for folder in ("dev", "etc", "proc", "run", "tmp", "usr/bin", "usr/lib", "usr/lib64", "usr/sbin"):
        (root / folder).mkdir(parents=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        (root / name).symlink_to(f"usr/{name}")
    output_of(*dpkg_in(root), "--install", *map(str, packages))
    shutil.copy(shutil.which("busybox"), root / "usr/bin/busybox")
    for name in output_of("busybox", "--list").split():
        if not (root / "usr/bin" / name).exists():
            (root / "usr/bin" / name).symlink_to("busybox")
    library, = (root / "usr/lib").rglob("libnccl-net-ha.so")
    for file in (root / "usr/bin/busybox", root / "usr/bin/nccl-ha", library):
        for path in re.findall(r"(/\S+) \(0x", run("ldd", str(file)).stdout):
            (root / path[1:]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, root / path[1:])
    for name, text in FILES.items():
        (root / name).write_text(text, encoding="utf-8")
    (root / "usr/bin/ssh").chmod(0o755)


class Hosts:
    """node1 and node2 with one root, and a shell on node1."""

    def __init__(self, root):
        self.root = root
        self.status = None
        self.shell = subprocess.Popen(
            [*SPACES, "/bin/sh", "-eu", "-c", HOSTS, "sh", str(root)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8",
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
        self.run("true")
        self.wait_for_links()

    def close(self):
        self.shell.kill()  # and with it all that runs in its namespaces
        self.shell.communicate()

    def typed(self, command):
        """The lines that come of it, as they come; then its status is known."""
        self.shell.stdin.write(f"{command}\necho its status: $?\n")
        self.shell.stdin.flush()
        for line in self.shell.stdout:
            if ended := re.fullmatch(r"its status: (\d+)\n", line):
                self.status = int(ended[1])
                return
            yield line.rstrip("\n")
        raise AssertionError(f"{command}: the shell has ended, status {self.shell.wait()}")

    def run(self, command):
        said = "\n".join(self.typed(command))
        assert self.status == 0, f"{command}: status {self.status}\n{said}"
        return said

    def in_network(self, *command):
        """Where the switches are."""
        return output_of("nsenter", f"--target={self.shell.pid}", "--mount", "--net", *command)

    def wait_for_links(self):
        """The kernel looks at carriers once a second at most."""
        limit = time.monotonic() + PATIENCE_S
        for host in ("node1", "node2"):
            links = ""
            while links.count(" state UP ") != 2:
                assert time.monotonic() < limit, links
                links = self.in_network("nsenter", f"--net={self.root}/run/{host}/net",
                                        "ip", "-o", "link", "show", "up")

    def set_first_cable(self, state):
        for port in ("port01", "port02"):
            self.in_network("ip", "link", "set", port, state)


class Rules(unittest.TestCase):
    def test_commands_are_found_and_nothing_else(self):
        page = ("text `a b`\n\n    one two  # why\n    three && four\n\n    import this\n\n"
                "    NET/HA : up\n\n| `NCCL_NET=HA` | `five six`, `up` |\n| `NET/HA : it is` | `a b` |\n")
        self.assertEqual(commands(page), ["one two", "three && four", "five six"])

    def test_a_line_stands_for_others(self):
        line = "NET/HA : path 1 to 10.0.0.2 (node2, pid 4711) by mlx5_0:1 #5f1e08c2ab97d340: 3 chunks, ..."
        said = "NET/HA : path 1 to 10.0.0.1 (node1, pid 12) by rail0 #0.7: 40 chunks, and so on"
        self.assertRegex(said, f"^{pattern_of(line)}$")
        for wrong in (said.replace("path 1", "path 0"), said.replace("by rail0", "by rail1"),
                      said.replace("chunks", "parts")):
            self.assertNotRegex(wrong, pattern_of(line))

    def test_counts_agree_with_their_nouns(self):
        for right in ("0 errors, 0 warnings, 2 hints", "1 error, 11 warnings, 1 hint"):
            self.assertRegex(right, f"^{COUNTS}$")
        for wrong in ("0 errors, 0 warnings, 1 hints", "0 errors, 2 warning, 2 hints"):
            self.assertNotRegex(wrong, f"^{COUNTS}$")


class Page(unittest.TestCase):
    def test_each_command_runs_here_or_the_reason_is_known(self):
        on_page = commands(PAGE)
        self.assertEqual(len(on_page), len(set(on_page)))
        self.assertEqual(set(RUN) & set(NOT_HERE), set())
        self.assertEqual([one for one in on_page if one not in RUN and one not in NOT_HERE], [])
        self.assertEqual((set(RUN) | set(NOT_HERE)) - set(on_page), set(), "no longer on the page")

    def test_the_job_is_a_program(self):
        job, = [block for block in shown(PAGE) if block.startswith("import ")]
        compile(job, "first_job.py", "exec")


WHY_NOT = why_not()


@unittest.skipIf(WHY_NOT, WHY_NOT)
class FirstHour(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        made = make("DEB", pathlib.Path(folder.name) / "packages")
        asked = re.findall(r"\./(\S+\.deb)", PAGE)
        found = [fnmatch.filter(made, one) for one in asked]
        assert [len(one) for one in found] == [1, 1], f"{asked}: {sorted(made)}"
        cls.root = pathlib.Path(folder.name) / "root"
        make_root(cls.root, [made[name] for name, in found])

    def hosts(self):
        hosts = Hosts(self.root)
        self.addCleanup(hosts.close)
        return hosts

    def test_line_by_line(self):
        hosts = self.hosts()
        for command in commands(PAGE):
            if command in RUN:
                with self.subTest(command=command):
                    RUN[command](self, hosts, command)

    def says_nothing(self, hosts, command):
        self.assertEqual(hosts.run(command), "")

    def says_its_words(self, hosts, command):
        self.assertEqual(hosts.run(command), command.removeprefix("echo "))

    def says_its_version(self, hosts, command):
        self.assertRegex(hosts.run(command), r"^nccl-ha \d+\.\d+\.\d+ \(.+\)$")

    def finds_no_error(self, hosts, command):
        said = hosts.run(command)
        lines = said.splitlines()
        counts = re.search(r"`(0 errors[^`]*)`", PAGE)[1]
        for one in (counts, lines[-1]):
            self.assertRegex(one, f"^{COUNTS}$", said)
            self.assertTrue(one.startswith("0 errors, "), said)
        loads = re.search(r"`(with [^`]* loads) \.\.\.`", PAGE)[1]
        self.assertEqual(sum(loads in line and "/libnccl-net-ha.so" in line for line in lines), 2, said)
        self.assertLess(lines.index("host node1"), lines.index("host node2"))
        for rail in ("rail0", "rail1"):
            self.assertRegex(said, rf"(?m)^  node1 and node2 +{rail} .* us .* GB/s$")

    def moves_bytes(self, hosts, command):
        said = hosts.run(command)
        titles = re.search(r"(?m)^# +size .*$", said)[0].split()[1:]
        rows = [dict(zip(titles, line.split())) for line in re.findall(r"(?m)^ +\d.*$", said)]
        self.assertEqual([int(row["size"]) for row in rows], [8 ** power for power in range(1, 9)], said)
        self.assertEqual({row["#wrong"] for row in rows}, {"0"}, said)

    def goes_on_without_a_cable(self, hosts, command):
        up = [pattern_of(line) for line in re.findall(r"(?m)^\| `(NET/HA : [^`]*)`", PAGE)]
        block, = [one for one in shown(PAGE) if one.startswith("NET/HA : ")]
        *away, back = [pattern_of(line) for line in block.splitlines()]
        self.assertEqual((len(up), len(away)), (5, 3))
        job = hosts.typed(command)
        self.see(job, up)
        hosts.set_first_cable("down")
        self.see(job, away)
        hosts.set_first_cable("up")
        self.see(job, [back])
        rest = list(job)
        end = re.search(r"`(# Out of bounds [^`]*)`", PAGE)[1]
        self.assertEqual((hosts.status, end in rest), (0, True), rest)

    def see(self, job, patterns):
        """Reads on until the plugin has said all of that on both hosts."""
        missing = {(rank, pattern) for rank in "01" for pattern in patterns}
        lines = []
        for line in job:
            lines.append(line)
            if said := PLUGIN_LINE.fullmatch(line):
                missing = {(rank, pattern) for rank, pattern in missing
                           if rank != said[1] or not re.fullmatch(pattern, said[2])}
            if not missing:
                return
        self.fail("\n".join([f"it has ended without {sorted(missing)}:", *lines]))

    def finds_nccls_file(self, _, command):
        """In a shell without the variables."""
        hosts = self.hosts()
        self.assertIn("NCCL_NET_PLUGIN is not set here", hosts.run(command))
        file = self.root / "etc/nccl.conf"
        row = re.search(r"(?m)^\| /etc/nccl\.conf.*$", PAGE)[0]
        lines = re.findall(r"`(NCCL_\w+=\w+)`", row)
        self.assertEqual(len(lines), 2)
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        self.addCleanup(file.unlink)
        said = hosts.run(command)
        self.assertNotIn("NCCL_NET_PLUGIN is not set here", said)
        self.assertIn("with NCCL_NET_PLUGIN=ha NCCL loads /", said)

    def test_what_it_names_lies_beside_it(self):
        doc = self.root / "usr/share/doc/nccl-ha"
        self.assertEqual((doc / "docs/quickstart.md").read_text(encoding="utf-8"), PAGE)
        named = set(re.findall(r"\b(?:docs|examples)/[\w./-]*\w", PAGE))
        self.assertGreater(len(named), 7)
        self.assertEqual([one for one in sorted(named) if not (doc / one).exists()], [])

    def test_the_page_of_installing_names_what_there_is(self):
        page = (DOCS / "install.md").read_text(encoding="utf-8")
        table = page.split("| package |")[1].split("\n\n")[0]
        names = " ".join(re.findall(r"(?m)^\| ([^|]*) \|", table))
        self.assertEqual(set(re.findall(r"[\w-]+-[\w-]*\w", names)), PACKAGES | {"nccl-ha-devel"})
        manual = re.search(r"(?m)^\| man pages ([^;|]*);", page)[1].split(", ")
        pages = (self.root / "usr/share/man/man1").glob("*.1.gz")
        self.assertEqual(sorted(manual), sorted(one.name.removesuffix(".1.gz") for one in pages))


RUN = {
    "ssh -o BatchMode=yes node1 true && ssh -o BatchMode=yes node2 true": FirstHour.says_nothing,
    "nccl-ha --version": FirstHour.says_its_version,
    "export NCCL_NET_PLUGIN=ha NCCL_NET=HA": FirstHour.says_nothing,
    "nccl-ha check --hosts node1,node2": FirstHour.finds_no_error,
    "nccl-ha perf all_reduce --hosts node1,node2 -b 8 -e 64M -f 8": FirstHour.moves_bytes,
    "export NCCL_NET_PLUGIN=ha NCCL_NET=HA NCCL_DEBUG=INFO": FirstHour.says_nothing,
    "nccl-ha perf all_reduce --hosts node1,node2 -b 1M -e 1M --seconds 30":
        FirstHour.goes_on_without_a_cable,
    "nccl-ha check": FirstHour.finds_nccls_file,
    "echo export NCCL_NET_PLUGIN=ha": FirstHour.says_its_words,
    "echo export NCCL_NET=HA": FirstHour.says_its_words,
}
NOT_HERE = {
    "tools/setup build": "it installs packages with apt",
    "cmake --preset release -DNHA_TESTS=OFF && cmake --build --preset release":
        "the build is the one that this test is given",
    "(cd build/release && cpack -G DEB && scp libnccl-net-ha_*.deb nccl-ha_*.deb node2:)":
        "cpack is called beforehand, and the hosts share their files",
    "sudo apt install ./libnccl-net-ha_*.deb ./nccl-ha_*.deb":
        "dpkg installs those two; there is neither sudo nor apt",
    "python3 -c 'import torch; print(torch.__version__, torch.cuda.nccl.version())'":
        "it needs PyTorch",
    "torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint node1:29500 first_job.py":
        "it needs PyTorch, and a GPU on each host",
    "kubectl apply -k examples/kubernetes": "it needs Kubernetes",
    "kubectl kustomize": "examples_test.py does that, where kubectl is installed",
    "systemctl enable --now nccl-ha-relay": "it needs systemd",
}


if __name__ == "__main__":
    told_skips.main()
