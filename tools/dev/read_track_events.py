#!/usr/bin/env python3
"""Reads what `nccl-ha trace export` wrote, by protoc and a schema of its own, and draws a part of it.

usage: tools/dev/read_track_events.py FILE [-o FILE.svg] [--from-ms X] [--to-ms Y] [--tracks WORD]
                                      [--as-json FILE]
  -o          a picture: slices by track, instants as ticks, flows as lines
  --from-ms   of the trace: where the picture begins and where it ends (default: all)
  --tracks    only tracks under a connection or process whose name has that word
  --as-json   the same events as Chrome's JSON, to compare with (docs/traces.md)

Prints how many of each kind there are.  Exit status 1 where the export is wrong: a field that the
schema does not have, a time that goes backwards, an end without a beginning, a track without a
description.  Status 2: it cannot be read.
"""
import argparse
import collections
import json
import pathlib
import shutil
import subprocess
import sys
from xml.sax.saxutils import escape

HERE = pathlib.Path(__file__).resolve().parent
ROW = 17
LEFT = 290
WIDTH = 1180
COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b6992d", "#499894", "#d37295", "#9d7660", "#79706e")


def decoded(path):
    """The lines of protoc's text format."""
    with open(path, "rb") as data:
        done = subprocess.run(["protoc", f"--proto_path={HERE}", "--decode=track_events.Trace",
                               "track_events.proto"], stdin=data, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, check=False)
    if done.returncode != 0:
        print(f"{path}: {done.stderr.decode(errors='replace').strip()}", file=sys.stderr)
        sys.exit(2)
    return done.stdout.decode(errors="replace").splitlines()


def packets_of(lines):
    """Each a dictionary from a field's name to all of its values; messages are dictionaries too."""
    whole = collections.defaultdict(list)
    stack = [whole]
    for line in lines:
        text = line.strip()
        if text.endswith("{"):
            inner = collections.defaultdict(list)
            stack[-1][text[:-1].strip()].append(inner)
            stack.append(inner)
        elif text == "}":
            stack.pop()
        else:
            name, _, value = text.partition(": ")
            stack[-1][name].append(value[1:-1] if value.startswith('"') else value)
    return whole["packet"]


class Trace:
    def __init__(self, packets):
        self.mistakes = []
        self.tracks = {}      # number: (parent or 0, name)
        self.slices = []      # (track, begin, end, name)
        self.instants = []    # (track, time, name)
        self.counters = []    # (track, time, value)
        self.flows = collections.defaultdict(list)  # number: [(time, track)]
        self.open = collections.defaultdict(list)
        self.last = 0
        for packet in packets:
            self.check_names(packet)
            for track in packet["track"]:
                self.describe(track)
            for event in packet["event"]:
                self.add(int(packet["timestamp"][0]), event)
        for number, left in self.open.items():
            self.mistakes += [f"a slice of {self.name(number)} does not end"] * len(left)
        self.cut_flows = sum(len(ends) < 2 for ends in self.flows.values())

    def check_names(self, message):
        for name, values in message.items():
            if name.isdigit():
                self.mistakes.append(f"field {name} is not in the schema")
            for value in values:
                if isinstance(value, dict):
                    self.check_names(value)

    def describe(self, track):
        name = track["name"] or [value["name"][0] for value in track["process"] + track["thread"]]
        self.tracks[int(track["uuid"][0])] = (int((track["parent"] or ["0"])[0]), name[0])

    def name(self, number):
        return self.tracks.get(number, (0, "?"))[1]

    def add(self, time, event):
        track = int(event["track"][0])
        if time < self.last:
            self.mistakes.append(f"{time} ns comes behind {self.last} ns")
        self.last = time
        if track not in self.tracks:
            self.mistakes.append(f"track {track} is not described")
        name = (event["name"] or [""])[0]
        kind = event["type"][0]
        for flow in event["flow"]:
            self.flows[flow].append((time, track))
        if kind == "BEGIN":
            self.open[track].append((time, name))
        elif kind == "END":
            if not self.open[track]:
                self.mistakes.append(f"an end on {self.name(track)} at {time} ns has no beginning")
                return
            begin, name = self.open[track].pop()
            self.slices.append((track, begin, time, name))
        elif kind == "INSTANT":
            self.instants.append((track, time, name))
        else:
            self.counters.append((track, time, int(event["counter"][0])))


class Picture:
    def __init__(self, trace, begin, end, word):
        self.trace = trace
        self.begin = begin
        self.end = end
        used = {track for track, start, stop, _ in trace.slices if stop >= begin and start <= end}
        used |= {track for track, time, _ in trace.instants if begin <= time <= end}
        self.rows = [row for row in self.in_order() if self.below(row[0]) & used and
                     (not word or word in self.full_name(row[0]))]
        self.at = {number: 30 + ROW * i for i, (number, _) in enumerate(self.rows)}

    def below(self, number):
        found = {number}
        for other, (parent, _) in self.trace.tracks.items():
            if parent == number:
                found |= self.below(other)
        return found

    def full_name(self, number):
        parent, name = self.trace.tracks[number]
        return (self.full_name(parent) + " " if parent else "") + name

    def in_order(self, parent=0, depth=0):
        rows = []
        for number, (above, _) in self.trace.tracks.items():
            if above == parent:
                rows += [(number, depth)] + self.in_order(number, depth + 1)
        return rows

    def x(self, time):
        return LEFT + (time - self.begin) / (self.end - self.begin) * (WIDTH - LEFT - 40)

    def shown(self, time, track):
        return self.begin <= time <= self.end and track in self.at

    def svg(self):
        colours = {}
        height = 40 + ROW * len(self.rows)
        out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
               f'width="{WIDTH}" height="{height}">',
               "<style>text{font:11px sans-serif;fill:#222}.grid{stroke:#ddd}.flow{stroke:#c33;"
               "fill:none;stroke-width:.8;opacity:.55}.tick{stroke:#000}</style>",
               f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>']
        for i in range(6):
            time = self.begin + (self.end - self.begin) * i / 5
            out.append(f'<path class="grid" d="M{self.x(time):.1f} 20V{height - 10}"/>'
                       f'<text x="{self.x(time):.1f}" y="14" text-anchor="middle">'
                       f'{time / 1e6:.2f} ms</text>')
        for number, depth in self.rows:
            out.append(f'<text x="{6 + 12 * depth}" y="{self.at[number] + 12}">'
                       f'{escape(self.trace.name(number))}</text>')
        for track, begin, end, name in self.trace.slices:
            if track not in self.at or end < self.begin or begin > self.end:
                continue
            left, right = self.x(max(begin, self.begin)), self.x(min(end, self.end))
            colour = colours.setdefault(self.trace.name(track),
                                        COLOURS[len(colours) % len(COLOURS)])
            out.append(f'<rect x="{left:.1f}" y="{self.at[track] + 2}" height="{ROW - 4}" '
                       f'width="{max(right - left, 0.6):.1f}" fill="{colour}">'
                       f'<title>{escape(name)}</title></rect>')
            if right - left > 7 * len(name):
                out.append(f'<text x="{left + 3:.1f}" y="{self.at[track] + 12}" '
                           f'style="fill:#fff">{escape(name)}</text>')
        for track, time, name in self.trace.instants:
            if self.shown(time, track):
                x = self.x(time)
                out.append(f'<path class="tick" d="M{x:.1f} {self.at[track] + 3}v{ROW - 6}">'
                           f'<title>{escape(name)}</title></path>')
        for ends in self.trace.flows.values():
            for (time, track), (later, other) in zip(ends, ends[1:]):
                if self.shown(time, track) and self.shown(later, other):
                    out.append(f'<path class="flow" d="M{self.x(time):.1f} '
                               f'{self.at[track] + ROW / 2}L{self.x(later):.1f} '
                               f'{self.at[other] + ROW / 2}"/>')
        return "\n".join(out + ["</svg>"]) + "\n"


def as_json(packets, trace):
    """The same in the Trace Event Format: it knows processes and threads only, so each track is a
    thread, and each end of a flow is an event of its own."""
    processes = {int(track["uuid"][0]): int(track["process"][0]["pid"][0])
                 for packet in packets for track in packet["track"] if track["process"]}

    def root(number):
        parent = trace.tracks[number][0]
        return processes.get(number, root(parent) if parent else 1)

    def full_name(number):
        parent, name = trace.tracks[number]
        return (f"{full_name(parent)} / " if parent and parent not in processes else "") + name

    events = []
    for number in trace.tracks:
        kind = "process_name" if number in processes else "thread_name"
        events.append({"ph": "M", "pid": root(number), "tid": number, "name": kind,
                       "args": {"name": full_name(number)}})
    left = {flow: len(ends) for flow, ends in trace.flows.items()}
    for packet in packets:
        for event in packet["event"]:
            track = int(event["track"][0])
            place = {"pid": root(track), "tid": track, "ts": int(packet["timestamp"][0]) / 1000}
            kind = {"BEGIN": "B", "END": "E", "INSTANT": "i", "COUNTER": "C"}[event["type"][0]]
            args = {one["name"][0]: (one["number"] or one["text"])[0]
                    for one in event["annotation"]}
            if kind == "C":
                args = {"bytes": int(event["counter"][0])}
            events.append({"ph": kind, **place, **({"name": event["name"][0]} if event["name"]
                                                   else {}), **({"args": args} if args else {})})
            for flow in event["flow"]:
                first = left[flow] == len(trace.flows[flow])
                left[flow] -= 1
                events.append({"ph": "s" if first else "t" if left[flow] else "f", **place,
                               "name": "chunk", "id": flow, "bp": "e"})
    return json.dumps({"traceEvents": events}, separators=(",", ":")) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("-o", "--output", type=pathlib.Path)
    parser.add_argument("--from-ms", type=float, default=0)
    parser.add_argument("--to-ms", type=float)
    parser.add_argument("--tracks", default="")
    parser.add_argument("--as-json", type=pathlib.Path)
    options = parser.parse_args()
    if shutil.which("protoc") is None:
        print("protoc is missing: install protobuf-compiler", file=sys.stderr)
        return 2
    packets = packets_of(decoded(options.file))
    trace = Trace(packets)
    print(f"{len(trace.tracks)} tracks, {len(trace.slices)} slices, {len(trace.instants)} instants, "
          f"{len(trace.counters)} counter values, {len(trace.flows)} flows ({trace.cut_flows} of what was under way), {trace.last} ns")
    if options.output:
        end = trace.last if options.to_ms is None else options.to_ms * 1e6
        picture = Picture(trace, options.from_ms * 1e6, end, options.tracks)
        options.output.write_text(picture.svg(), encoding="utf-8")
    if options.as_json:
        options.as_json.write_text(as_json(packets, trace), encoding="utf-8")
    for mistake in trace.mistakes[:20]:
        print(mistake, file=sys.stderr)
    return 1 if trace.mistakes else 0


if __name__ == "__main__":
    sys.exit(main())
