#!/usr/bin/env python3
"""Checks that includes point only downwards between the layers (docs/architecture.md).

usage: check_layers.py [--root DIR]

Rules, for every C++ file in the layer folders:
  * a quoted include is written from the repository root and names an existing file;
  * its folder is one the including folder may know of; tools/common/ knows no subcommand;
  * third-party headers stay where they belong: NCCL's in plugin/, tools/ and tests/, libuv's,
    the lock-free queue's and the verbs' in runtime/ (and tests/);
  * the rig in tests/rig knows no test, its simulator nothing above runtime/, and no GoogleTest;
  * the folders of runtime/fabric know nothing of each other, and of runtime/fabric only the file
    that registers the kinds knows of them; the rooms of runtime/ stand one above the other;
  * actors/ and ha/ include nothing of such a folder, and name no kind of fabric.
Prints one line per violation and exits 1 when there is any.
"""
import argparse
import pathlib
import re
import sys

# What each folder may include besides itself.
ALLOWED = {
    "runtime": set(),
    "ha": {"runtime"},
    "actors": {"runtime", "ha"},
    "relay": {"runtime", "ha", "actors"},
    "plugin": {"runtime", "ha", "actors", "relay"},
    "tools": {"runtime", "ha", "actors", "relay", "plugin"},
    "tests": {"runtime", "ha", "actors", "relay", "plugin", "tools"},
}

# The state machines in ha/ are pure, so of runtime/ they see plain values only.
HA_MAY_USE = {
    "runtime/base/check.h",
    "runtime/base/clock.h",
    "runtime/telemetry/counters.h",
    "runtime/fabric/completion_status.h",
    "runtime/base/instant.h",
    "runtime/base/random.h",
    "runtime/base/result.h",
    "runtime/base/slot_table.h",
}
HA_MUST_NOT_USE = re.compile(
    r"^(thread|mutex|condition_variable|future|sys/socket\.h|sys/epoll\.h|netinet/.*|poll\.h)$")

# Third-party headers and the folders that may know of them.
FOREIGN = [
    (re.compile(r"^(nccl.*\.h|nccl/.*)$"), {"plugin", "tools", "tests"}),
    (re.compile(r"^(uv\.h|uv/.*)$"), {"runtime", "tests"}),
    (re.compile(r"^concurrentqueue/"), {"runtime", "tests"}),
    (re.compile(r"^infiniband/"), {"runtime", "tests"}),
    (re.compile(r"^(CLI/|nlohmann/)"), {"tools", "tests"}),
    (re.compile(r"^sodium"), {"tools", "tests", "runtime"}),
    (re.compile(r"^gtest/"), {"tests"}),
]

# Kinds of fabric, each in a folder of its own below this one.
FABRIC = "runtime/fabric/"
# Rooms of runtime/; each may include those before it.
ROOMS = ["base", "telemetry", "streams", "engine", "fabric"]
NAMES_ALL_KINDS = "runtime/fabric/standard_kinds.cpp"
KNOW_NO_KIND = {"actors", "ha"}
NAMES_A_KIND = re.compile(r"\bFabricKind\s*(::|[({]\s*\d)")

# What the folders of the rig may include besides themselves.
RIG = {
    "tests/rig/sim/": ("runtime/",),
    "tests/rig/runs/": ("runtime/", "ha/", "actors/", "relay/", "plugin/", "tools/common/",
                        "tests/rig/sim/"),
    "tests/rig/guests/": ("runtime/", "tools/common/", "tools/lab/"),
    "tests/rig/peers/": ("runtime/", "tools/common/", "tools/commands.h"),
    "tests/rig/nic/": (),
}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def sources(root, folder):
    for path in sorted((root / folder).rglob("*")):
        if path.suffix in {".h", ".cpp", ".def"} and path.is_file():
            yield path


def kind_folder(name):
    """The folder of a kind of fabric that a file is in, or None."""
    if not name.startswith(FABRIC) or "/" not in name[len(FABRIC):]:
        return None
    return name[len(FABRIC):].split("/", 1)[0]


def room_of(name):
    """The room of runtime/ that a file is in, or None."""
    parts = name.split("/")
    return parts[1] if parts[0] == "runtime" and len(parts) > 2 else None


def check_rooms(including, name):
    """What is wrong with #include "name" in this file for the rooms of runtime/, or None."""
    own, other = kind_folder(including), kind_folder(name)
    if including.split("/", 1)[0] in KNOW_NO_KIND and other:
        return f'"{name}": a kind of fabric is asked for its traits, not known by its headers'
    if not including.startswith("runtime/"):
        return None
    room, of = room_of(including), room_of(name)
    if room != of and room in ROOMS and of in ROOMS and ROOMS.index(of) > ROOMS.index(room):
        return f'"{name}": runtime/{room} stands below runtime/{of}'
    if own and other and own != other:
        return f'"{name}": {own} and {other} are siblings; what both need goes above both'
    if including.startswith(FABRIC) and not own and other and including != NAMES_ALL_KINDS:
        return f'"{name}": only {NAMES_ALL_KINDS} knows of the kinds'
    return None


def check_rig(including, name):
    """What is wrong with #include "name" in this file for the rig of the tests, or None."""
    for folder, may in RIG.items():
        if including.startswith(folder) and not name.startswith((folder, *may)):
            return f'"{name}": {folder} may include {", ".join(may) or "nothing else"}'
    return None


def check_quoted(root, folder, place, name):
    """What is wrong with #include "name" in the file `place` of folder, or None."""
    if not (root / name).is_file():
        return f'"{name}" does not exist: write project includes from the repository root'
    target = name.split("/", 1)[0]
    if target == folder:
        shared = place.startswith("tools/common/")
        if shared and not name.startswith("tools/common/"):
            return f'"{name}": tools/common/ includes no subcommand'
        return None
    if target not in ALLOWED[folder]:
        may = ", ".join(sorted(ALLOWED[folder])) or "nothing else"
        return f'"{name}": {folder}/ may include {may}, not {target}/'
    if folder == "ha" and name not in HA_MAY_USE:
        return f'"{name}": ha/ is pure and may use only {", ".join(sorted(HA_MAY_USE))}'
    return None


def check_angle(root, folder, place, name):
    """What is wrong with #include <name> in a file of folder, or None."""
    if name.split("/", 1)[0] in ALLOWED and (root / name).is_file():
        return f"<{name}> is a file of this project: use quotes"
    for pattern, folders in FOREIGN:
        if pattern.match(name) and folder not in folders:
            return f"<{name}> may be included only in {', '.join(sorted(folders))}"
    if place.startswith(tuple(RIG)) and name.startswith("gtest/"):
        return f"<{name}>: the rig is no test"
    if folder == "ha" and HA_MUST_NOT_USE.match(name):
        return f"<{name}>: ha/ is pure and knows no threads and no sockets"
    return None


def violations(root):
    found = []
    for folder in ALLOWED:
        for path in sources(root, folder):
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            for number, line in enumerate(lines, 1):
                name = path.relative_to(root).as_posix()
                match = INCLUDE.match(line)
                problem = None
                if not match:
                    if folder in KNOW_NO_KIND and NAMES_A_KIND.search(line):
                        problem = "it names a kind of fabric: ask for traits instead"
                elif match.group(1) == '"':
                    problem = (check_quoted(root, folder, name, match.group(2))
                               or check_rooms(name, match.group(2))
                               or check_rig(name, match.group(2)))
                else:
                    problem = check_angle(root, folder, name, match.group(2))
                if problem:
                    found.append(f"{name}:{number}: {problem}")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parents[2])
    root = parser.parse_args().root
    if not (root / "runtime").is_dir():
        print(f"{root}: no folder runtime/ here, is this the repository root?", file=sys.stderr)
        return 2
    found = violations(root)
    for line in found:
        print(line)
    print(f"layers: {len(found)} wrong lines")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
