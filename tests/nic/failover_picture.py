#!/usr/bin/env python3
"""Draws what a failover looks like: the throughput of a job of NCCL's own host code, over the emulated
NICs as in nccl_deaths.py, while the cable of one host's device 0 is pulled for some seconds: over this
plugin, over NCCL's own net_ib with its failover on, and over net_ib at its defaults.

usage: failover_picture.py BUILD NCCL SVG [--seconds S]
NCCL is what tests/nccl/run_emulated --build has made, build/nccl/VERSION.

Prints the longest operation of each.  Exit status 0: every element was right, and the cable was gone.
"""
import argparse
import pathlib
import re
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import nccl_deaths  # pylint: disable=wrong-import-position

# Its port recovery wants queue pairs of a type that the emulated NIC has not (UC).
FAILOVER = ["NCCL_IB_RESILIENCY_PORT_FAILOVER=1", "NCCL_IB_RETRY_CNT=3"]
# Name, network, settings, class of its line.
JOBS = [("nccl-ha, at its defaults", "ha", [], "ours"),
        ("NCCL's own failover on", "ib", FAILOVER, "other"),
        ("NCCL at its defaults", "ib", ["NCCL_IB_TIMEOUT=20"], "other")]
BYTES = 262144  # of an operation
SHOWN = (-1.0, 6.0)  # seconds around the moment in which the cable goes
BIN = 0.02  # seconds
DEVICE = "1:0"
WIDTH, HEIGHT, LEFT, TOP, GAP = 760, 90, 80, 40, 36


def measure(options, net, settings):
    """[(end, seconds)] of all operations, the first one without a cable at 0."""
    options.net, options.env = net, settings
    with tempfile.TemporaryDirectory() as temporary:
        job = nccl_deaths.Job(options, pathlib.Path(temporary), "threads")
        if not job.await_operations(20, 90):
            job.await_end(0)
            raise SystemExit(job.text(0)[-2000:] + "\nno operation is over")
        time.sleep(-SHOWN[0] + 0.5)
        job.nic(["cut", DEVICE, "link"])
        before = len(ends(job))
        time.sleep(options.seconds)
        job.nic(["heal", DEVICE, "link"])
        time.sleep(SHOWN[1] - options.seconds + 0.5)
        lost = int(job.show(DEVICE)["lost"])
        for rank in job.ranks[:1]:
            rank.terminate()
        statuses = job.await_end(60)
        if statuses != [0, 0] or lost == 0:
            raise SystemExit(f"{job.text(0)[-2000:]}\nstatuses {statuses}, {lost} packets lost")
        operations = ends(job)
        gone = operations[before][0] - operations[before][1]
        return [(end - gone, took) for end, took in operations]


def ends(job):
    return [(float(end), float(took)) for end, took in
            re.findall(r"^\[([\d.]+)\].* operation \d+ took ([\d.]+) s", job.text(0), re.MULTILINE)]


def throughput(operations):
    """GB/s in each bin that is shown."""
    bins = [0.0] * round((SHOWN[1] - SHOWN[0]) / BIN)
    for end, took in operations:
        at, left = end - took, max(took, 1e-4)
        rate = BYTES / left
        while left > 1e-9:
            which = int((at - SHOWN[0]) / BIN + 1e-9) if at >= SHOWN[0] else -1
            until = SHOWN[0] + (which + 1) * BIN
            part = min(left, until - at) if until - at > 1e-9 else left
            if 0 <= which < len(bins):
                bins[which] += rate * part
            at, left = at + part, left - part
    return [each / BIN / 1e9 for each in bins]


def at_x(seconds):
    return LEFT + (seconds - SHOWN[0]) / (SHOWN[1] - SHOWN[0]) * WIDTH


def panel(top, name, rates, highest, kind, seconds):
    bottom = top + HEIGHT
    points = [(at_x(SHOWN[0] + (i + 0.5) * BIN), bottom - rate / highest * HEIGHT)
              for i, rate in enumerate(rates)]
    line = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    parts = [f'<text x="{LEFT}" y="{top - 6}" class="title">{name}</text>']
    for second in range(round(SHOWN[0]), round(SHOWN[1]) + 1):
        parts += [f'<path class="grid" d="M{at_x(second):.1f} {top}V{bottom}"/>']
    for rate in (0, highest):
        y = bottom - rate / highest * HEIGHT
        parts += [f'<path class="grid" d="M{LEFT} {y:.1f}H{LEFT + WIDTH}"/>',
                  f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{rate:.2g}</text>']
    for second, what in ((0, "cable pulled"), (seconds, "and back")):
        x = at_x(second)
        parts += [f'<path class="mark" d="M{x:.1f} {top}V{bottom}"/>',
                  f'<text x="{x + 3:.1f}" y="{top + 10}" class="mark-text">{what}</text>']
    return parts + [f'<path class="line {kind}" d="M{line}"/>']


def draw(results, seconds):
    highest = max(max(rates) for _, rates, _ in results) * 1.05
    bottom = TOP + len(results) * (HEIGHT + GAP)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 20} '
             f'{bottom + 16}" width="{LEFT + WIDTH + 20}" height="{bottom + 16}">',
             "<style>rect{fill:#fff}text{font:12px sans-serif;fill:#222}.title{font-size:14px}"
             ".grid{stroke:#ddd;fill:none}.line{fill:none;stroke-width:1.5}.ours{stroke:#07c}"
             ".other{stroke:#777}.mark{stroke:#b00;stroke-dasharray:3 3;fill:none}"
             ".mark-text{fill:#b00;font-size:11px}@media (prefers-color-scheme:dark)"
             "{rect{fill:#16181d}text{fill:#ddd}.grid{stroke:#333}.ours{stroke:#5af}"
             ".other{stroke:#aaa}.mark{stroke:#f66}.mark-text{fill:#f66}}</style>",
             '<rect width="100%" height="100%"/>']
    for i, (name, rates, kind) in enumerate(results):
        parts += panel(TOP + i * (HEIGHT + GAP), name, rates, highest, kind, seconds)
    for second in range(round(SHOWN[0]), round(SHOWN[1]) + 1):
        parts += [f'<text x="{at_x(second):.1f}" y="{bottom - GAP + 16}" '
                  f'text-anchor="middle">{second} s</text>']
    middle = TOP + len(results) * (HEIGHT + GAP) / 2
    parts += [f'<text text-anchor="middle" transform="translate(20 {middle:.0f}) rotate(-90)">'
              "GB/s of all_reduce, each of 256 KiB</text>", "</svg>"]
    return "\n".join(parts) + "\n"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("nccl", type=pathlib.Path)
    parser.add_argument("svg", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=3, metavar="S", help="without the cable")
    options = parser.parse_args()
    options.build, options.nccl = options.build.resolve(), options.nccl.resolve()
    options.patience = 30
    results = []
    for name, net, settings, kind in JOBS:
        operations = measure(options, net, settings)
        longest = max(took for end, took in operations if end - took >= 0 or end > 0)
        print(f"{name}: longest operation {1000 * longest:.0f} ms")
        results.append((name, throughput(operations), kind))
    options.svg.write_text(draw(results, options.seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
