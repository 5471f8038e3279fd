"""Where NCCL's source and CUDA's headers come from.

Packages are looked up in lists of our own, of the mirror that the machine's apt already uses: its own
sources and lists stay as they are, nothing is installed, and nobody needs to be root.
"""
import dataclasses
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

HERE = pathlib.Path(__file__).resolve().parent

# Upstream tarballs in Debian's source packages that the emulation is known to build with.
KNOWN = {
    "2.29.7-1": "e67239212c395bfdb398a7519491840d06fdf6b599c299f97c7ed0109777bba1",
}
SUITE = "sid"
HEADERS = ("cuda.h", "cuda_runtime_api.h", "cuda_fp16.h", "cuda_bf16.h")


class Missing(Exception):
    """What is needed cannot be had on this machine."""


@dataclasses.dataclass
class Source:
    folder: pathlib.Path
    known: bool


def version_of(source):
    return subprocess.run([sys.executable, HERE / "generate.py", source, "--version"], check=True,
                          stdout=subprocess.PIPE, text=True).stdout.strip()


def nccl_sources(built, fetch=False):
    given = os.environ.get("NHA_NCCL_SOURCE")
    if given:
        folders = [pathlib.Path(part).resolve() for part in given.split(":") if part]
        for folder in folders:
            if not (folder / "makefiles" / "version.mk").exists():
                sys.exit(f"NHA_NCCL_SOURCE={folder}: no source tree of NCCL")
        return [Source(folder, True) for folder in folders]
    return [debian_source(built / "sources", fetch)]


def debian_source(cache, fetch):
    found = sorted(cache.glob("nvidia-nccl_*.orig.tar.gz"))
    if fetch or not found:
        cache.mkdir(parents=True, exist_ok=True)
        with Apt(f"deb-src {{mirror}} {SUITE} contrib") as apt:
            apt.run("source", "--download-only", "--tar-only", "nvidia-nccl", folder=cache)
        found = sorted(cache.glob("nvidia-nccl_*.orig.tar.gz"))
        if not found:
            raise Missing("Debian's source package nvidia-nccl has no upstream tarball")
    tarball = max(found, key=lambda path: path.stat().st_mtime)
    version = re.match(r"nvidia-nccl_(.*)\.orig", tarball.name).group(1)
    digest = hashlib.sha256(tarball.read_bytes()).hexdigest()
    if version in KNOWN and KNOWN[version] != digest:
        tarball.unlink()
        sys.exit(f"{tarball.name}: its SHA-256 is {digest}, not that of version {version}")
    return Source(unpacked(tarball, cache / digest[:16]), version in KNOWN)


def unpacked(tarball, folder):
    """The tree in the tarball; unpacked once."""
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=folder.parent) as fresh:
            with tarfile.open(tarball) as archive:
                archive.extractall(fresh)
            pathlib.Path(fresh).rename(folder)
            pathlib.Path(fresh).mkdir()  # which the with statement is to remove
    trees = [path.parent.parent for path in folder.glob("*/makefiles/version.mk")]
    if len(trees) != 1:
        raise Missing(f"{tarball.name} is no source tree of NCCL")
    return trees[0]


def complete(include):
    # CUDA 13 keeps the C++ library's headers in a folder of their own.
    return (all((include / name).exists() for name in HEADERS) and
            any((include / place / "nv" / "target").exists() for place in (".", "cccl")))


def cuda_include(built):
    places = []
    if os.environ.get("CUDA_HOME"):
        places.append(pathlib.Path(os.environ["CUDA_HOME"]) / "include")
    nvcc = shutil.which("nvcc")
    if nvcc:
        places.append(pathlib.Path(nvcc).resolve().parent.parent / "include")
    places += sorted(pathlib.Path("/usr/local").glob("cuda*/include"), reverse=True)
    places += [pathlib.Path("/usr/include"), built / "cuda" / "include"]
    for place in places:
        if complete(place):
            return place
    return debian_headers(built / "cuda")


def debian_headers(cache):
    """Only headers are kept of the package, which is large."""
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as name:
        folder = pathlib.Path(name)
        print("fetching Debian's CUDA headers", flush=True)
        with Apt(f"deb {{mirror}} {SUITE} main contrib non-free") as apt:
            apt.run("download", "nvidia-cuda-dev", "libcu++-dev", folder=folder)
            for package in folder.glob("*.deb"):
                subprocess.run(["sh", "-c", 'dpkg-deb --fsys-tarfile "$1" | tar -x -C "$2" '
                                "--wildcards './usr/include/*'", "-", package, folder], check=True)
        shutil.rmtree(cache / "include", ignore_errors=True)
        (folder / "usr" / "include").rename(cache / "include")
    if not complete(cache / "include"):
        raise Missing("Debian's packages of CUDA lack headers that are needed")
    return cache / "include"


class Apt:
    """apt-get with a state of its own."""

    def __init__(self, line):
        self.line = line

    def __enter__(self):
        if not shutil.which("apt-get"):
            raise Missing("no apt-get here, and no NHA_NCCL_SOURCE or CUDA_HOME")
        self.folder = tempfile.TemporaryDirectory()
        state = pathlib.Path(self.folder.name)
        for part in ("lists/partial", "cache/archives/partial"):
            (state / part).mkdir(parents=True)
        mirror = self.mirror()
        (state / "sources.list").write_text(self.line.format(mirror=mirror) + "\n",
                                            encoding="utf-8")
        (state / "apt.conf").write_text("".join(f'{name} "{value}";\n' for name, value in {
            "Dir::State": state, "Dir::State::status": "/var/lib/dpkg/status",
            "Dir::State::lists": state / "lists",
            "Dir::Cache": state / "cache", "Dir::Etc::sourcelist": state / "sources.list",
            "Dir::Etc::sourceparts": "/dev/null", "Acquire::Languages": "none",
            "Acquire::http::Timeout": 20, "Acquire::Retries": 1, "APT::Sandbox::User": "",
            "Debug::NoLocking": "1",
        }.items()), encoding="utf-8")
        try:
            self.run("update")
        except BaseException:
            self.folder.cleanup()
            raise
        return self

    def __exit__(self, *_):
        self.folder.cleanup()

    def mirror(self):
        """The one of Debian itself among those of the machine."""
        told = subprocess.run(["apt-get", "indextargets", "--format", "$(REPO_URI)"], check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
        for line in told.splitlines():
            if re.search(r"/debian/?$", line):
                return line
        raise Missing("apt here knows no mirror of Debian, and there is no NHA_NCCL_SOURCE"
                      " or CUDA_HOME")

    def run(self, *arguments, folder=None):
        environment = dict(os.environ, APT_CONFIG=f"{self.folder.name}/apt.conf", LC_ALL="C")
        try:
            done = subprocess.run(["apt-get", "-q", *arguments], env=environment, timeout=600,
                                  cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, check=False)
        except subprocess.TimeoutExpired:
            raise Missing(f"apt-get {arguments[0]} did not end in time") from None
        # An update that reaches nobody is a warning to apt.
        complaints = [line for line in done.stdout.splitlines() if line.startswith(("E:", "W: Fail"))]
        if done.returncode != 0 or complaints:
            raise Missing(f"apt-get {arguments[0]}: " + (complaints or ["failed"])[0][:120])
