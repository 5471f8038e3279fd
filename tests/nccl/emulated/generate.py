#!/usr/bin/env python3
"""What NCCL's own build generates: nccl.h, the tables of its kernels, and a name for each kernel.

usage: generate.py NCCL_SOURCE OUT
       generate.py NCCL_SOURCE --version
  OUT/include         nccl.h, nccl_git_version.h, DOCA's headers where NCCL looks for them
  OUT/tables/*.cc     the tables, and kernel_names.cc: a kernel here is only a name to launch it by
  --version           only prints the version
"""
import filecmp
import pathlib
import re
import shutil
import subprocess
import sys

KERNEL = re.compile(r"^ *__global__ (void \w+\(\w+ const\));$", re.MULTILINE)


def version_of(source):
    text = (source / "makefiles" / "version.mk").read_text(encoding="utf-8")
    return {part: re.search(rf"^NCCL_{part} *:= *(\d+)", text, re.MULTILINE).group(1)
            for part in ("MAJOR", "MINOR", "PATCH")}


def write_header(source, to):
    version = version_of(source)
    code = "{0}{1:02}{2:02}".format(*(int(version[part]) for part in ("MAJOR", "MINOR", "PATCH")))
    text = (source / "src" / "nccl.h.in").read_text(encoding="utf-8")
    for name, value in (("Major", version["MAJOR"]), ("Minor", version["MINOR"]),
                        ("Patch", version["PATCH"]), ("Suffix", ""), ("Version", code)):
        text = text.replace("${nccl:" + name + "}", value)
    to.write_text(text, encoding="utf-8")


def run(folder, *command):
    subprocess.run([sys.executable, *map(str, command)], cwd=folder, check=True)


def generate(source, out):
    """Files that stay as they were keep their time, so that nothing is compiled again for them."""
    fresh = out.with_name(out.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    generate_into(source, fresh)
    for path in [p for p in out.rglob("*") if p.is_file()]:
        if not (fresh / path.relative_to(out)).exists():
            path.unlink()
    for path in [p for p in fresh.rglob("*") if p.is_file()]:
        old = out / path.relative_to(fresh)
        if not old.exists() or not filecmp.cmp(path, old, shallow=False):
            old.parent.mkdir(parents=True, exist_ok=True)
            path.replace(old)
    shutil.rmtree(fresh)


def generate_into(source, out):
    src = source / "src"
    include = out / "include"
    include.mkdir(parents=True)
    write_header(source, include / "nccl.h")
    if (src / "misc" / "generate_git_version.py").exists():
        run(src, "misc/generate_git_version.py", include / "nccl_git_version.h")
    for doca in (src / "transport/net_ib/gdaki/doca-gpunetio/include",
                 src / "transport/gdaki/doca-gpunetio/include"):
        if doca.is_dir():
            shutil.copytree(doca, include / "nccl_device/gin/gdaki/doca_gpunetio")
            break
    # The generators empty the folder that they write to.
    run(out, src / "device" / "generate.py", out / "device", "")
    run(out, src / "device" / "symmetric" / "generate.py", make(out / "symmetric"))
    tables = make(out / "tables")
    shutil.copy(out / "device" / "host_table.cc", tables / "host_table.cc")
    for table in (out / "symmetric").glob("*.cc"):
        shutil.copy(table, tables / f"symmetric_{table.name}")
    kernels = {name for table in tables.glob("*.cc")
               for name in KERNEL.findall(table.read_text(encoding="utf-8"))}
    if not kernels:
        sys.exit(f"{source}: its tables name no kernels")
    lines = ['#include "device.h"', '#include "sym_kernels.h"']
    lines += [f"{name} {{}}" for name in sorted(kernels)]
    (tables / "kernel_names.cc").write_text("\n".join(lines) + "\n", encoding="utf-8")


def make(folder):
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def main():
    if len(sys.argv) != 3:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    source = pathlib.Path(sys.argv[1]).resolve()
    if sys.argv[2] == "--version":
        print(".".join(version_of(source)[part] for part in ("MAJOR", "MINOR", "PATCH")))
    else:
        generate(source, pathlib.Path(sys.argv[2]).resolve())
    return 0


if __name__ == "__main__":
    sys.exit(main())
