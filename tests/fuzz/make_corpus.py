#!/usr/bin/env python3
"""Writes the seed inputs of the fuzz targets into tests/fuzz/corpus/.

The formats are those at the top of runtime/fabric/datagram/wire.h, actors/control.h,
actors/agent_protocol.h, actors/telemetry_packet.h, plugin/handle.h, relay/packet.h,
relay/link_state.h, relay/topology_file.h, relay/session_message.h, relay/frame.h,
runtime/telemetry/counter_layout.h and runtime/telemetry/hint_layout.h. Run it again after a format
changes; what libFuzzer finds on top of these seeds stays beside them under its own names.
"""
import pathlib
import re
import struct

CORPUS = pathlib.Path(__file__).resolve().parent / "corpus"

PUT, ACK, PING, PONG, PROBE, REFUSE = 1, 3, 4, 5, 6, 7
LAST, IMMEDIATE, EXACT, ACKNOWLEDGES, ECHO, SEALED = 1, 2, 4, 8, 16, 32


def write(target, name, data):
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)


def frame(kind, flags=0, sequence=0, acknowledge=0, credits=0, payload=b"", fragment=0, length=None,
          offset=0, immediate=0, key=0, address=0):
    length = len(payload) if length is None else length
    return struct.pack("<HBBIQIIHHIIHHIIIIQ", 0x484E, kind, flags, 7, 0x1122334455667788, sequence,
                       acknowledge, credits, 25, 1000, 900, len(payload), fragment, length, offset,
                       immediate, key, address) + payload


def packets():
    body = bytes(range(256)) * 4
    single = {
        "put": frame(PUT, LAST | IMMEDIATE, payload=body[:512], immediate=5, key=1, address=4096),
        "put_empty": frame(PUT, LAST | IMMEDIATE | ACKNOWLEDGES, immediate=6, credits=64),
        "put_exact": frame(PUT, LAST | EXACT, payload=body[:8], key=1, address=128),
        "ack": frame(ACK, ACKNOWLEDGES | ECHO, acknowledge=3, credits=128, payload=b"\x05" + b"\0" * 7),
        "ping": frame(PING, payload=b"\0" * 64, length=128, immediate=1),
        "pong": frame(PONG, length=128, immediate=1),
        "probe": frame(PROBE),
        "refuse": frame(REFUSE, key=9, address=77),
    }
    for name, data in single.items():
        write("packet", name, data)
    write("packet", "unused_type", frame(2, LAST, payload=body[:64]))
    # A first byte (bit 0: data channel, bit 1: aim at registered memory, bit 2: a sealed path) and a datagram size, then
    # datagrams of that size.
    for name, data in single.items():
        size = (len(data) - 64 + 7) // 8
        for gate in (0, 1, 3):
            write("packet", f"live_{gate}_{name}", bytes([gate, size]) + data)
    for name, data in single.items():
        sealed = data[:3] + bytes([data[3] | SEALED]) + data[4:] + struct.pack("<Q", 1) + bytes(16)
        for gate in (4, 7):
            write("packet", f"live_{gate}_{name}", bytes([gate, (len(sealed) - 64 + 7) // 8]) + sealed)
    parts = [frame(PUT, (LAST | IMMEDIATE) if i == 3 else 0, sequence=i, payload=body[:256], length=1024,
                   offset=256 * i, key=1, address=8192, immediate=2) for i in range(4)]
    write("packet", "live_fragment", bytes([3, 32]) + b"".join(parts))
    write("packet", "live_fragment_reordered", bytes([3, 32]) + b"".join(parts[i] for i in (2, 0, 3, 1)))
    write("packet", "live_fragment_twice", bytes([3, 32]) + b"".join(parts + parts))
    # Acknowledgements half the number space away, where "before" and "after" lose their meaning.
    for ack in (0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFF):
        write("packet", f"live_far_ack_{ack:08x}",
              bytes([0, 0]) + frame(ACK, ACKNOWLEDGES, acknowledge=ack, credits=64))
    write("packet", "live_two_frames", bytes([0, 24]) + single["put_empty"] + frame(PROBE))
    address = struct.pack("<HHI16sHHQIIIII", 4, 0x1F90, 0, bytes([127, 0, 0, 1]) + bytes(12), 0, 0x1F91,
                          99, 7, 1500, 1 << 20, 64, 768)
    write("packet", "address", address + bytes(72 - len(address)))


VERSION = 18  # control_version


def message(kind, payload):
    return struct.pack("<IHHII", 0x4148434E, kind, len(payload), 1, 1) + payload


def control():
    host = struct.pack("<H", 5) + b"alpha"
    def end(bytes_):
        return struct.pack("<H", bytes_) + bytes(bytes_) + struct.pack("<QIQI", 0x7000, 5, 0x9000, 3)

    paths = b"\1" + end(72)
    rdma = b"\2" + 2 * end(48)
    rail = struct.pack("<BHBBBB", 1, 0, 1, 0, 4, 24) + bytes([198, 18, 0, 1]) + bytes(12)
    rails = b"\2" + rail + rail
    process = struct.pack("<IQ", 1000, 123456)
    rejoin = struct.pack("<HQ", 40001, 99) + process + b"\4" + bytes([198, 18, 0, 1]) + bytes(12)
    terms = struct.pack("<BBBBB", 0, 1, 1, 0, 0) + bytes(16)
    isolated = struct.pack("<BBBBB", 1, 2, 2, 24, 4) + bytes([198, 18, 0, 1]) + bytes(12)
    agreement = struct.pack("<BBB", 0, 1, 2) + bytes([1, 0, 0])
    hello = struct.pack("<HQH", VERSION, 42, VERSION) + rejoin + struct.pack("<IBBBBB", 1, 1, 0, 0, 1, 1) + terms + host + paths + b"\1"
    hello_rdma = (struct.pack("<HQH", VERSION, 42, VERSION) + rejoin + struct.pack("<IBBBBB", 3, 2, 106, 3, 1, 1) + isolated
                  + host + rdma + b"\0")
    hello_17 = struct.pack("<HQH", VERSION - 1, 42, VERSION - 1) + hello[12:-1]
    hello_old = struct.pack("<HQQII", 1, 42, 4096, 3, 1000) + host
    hello_newer = struct.pack("<HQH", VERSION + 1, 42, VERSION) + hello[12:] + bytes(5)
    welcome = struct.pack("<H", VERSION) + rejoin + struct.pack("<BBB", 1, 1, 1) + host + paths + rails + agreement
    refusal = struct.pack("<BH", 1, 9) + b"not yours"
    close = struct.pack("<QQ", 12, 3)
    notice = struct.pack("<BIBBH", 2, 7, 1, 0, 4) + b"dead"
    down = struct.pack("<BIBBH", 2, 7, 0, 1, 5) + b"hangs"
    # Two groups: one of two buffers, one that is whole.
    fenced = struct.pack("<BIQB", 2, 7, 100, 2) + struct.pack("<BBHH", 0, 2, 0x8001, 0) + struct.pack("<BB", 1, 0)
    offer = struct.pack("<BIB", 2, 8, 1) + end(48)
    bodies = {"hello": (1, hello), "hello_rdma": (1, hello_rdma), "hello_old": (1, hello_old), "hello_newer": (1, hello_newer),
              "hello_17": (1, hello_17),
              "welcome": (2, welcome), "reject": (3, refusal), "close": (4, close), "failure": (5, refusal),
              "suspect": (6, notice), "down": (7, down), "fenced": (8, fenced), "rebuild": (9, offer),
              "rebuilt": (10, offer), "confirm": (11, b""),
              "rejoin": (12, struct.pack("<Q", 99) + process), "leave": (13, b""),
              "probe": (14, struct.pack("<Q", 99) + process), "present": (15, process), "absent": (16, process),
              "ask": (17, b""), "link_back": (18, b"\1"),
              "end": (19, b"\1" + rail), "share": (20, b""), "over": (22, b""),
              "rejoin_shared": (12, struct.pack("<Q", 99) + process + b"\1")}
    for name, (kind, body) in bodies.items():
        write("control", name, message(kind, body))
        write("control", f"{name}_body", body)
    write("control", "dialogue", b"".join(message(*pair) for pair in bodies.values()))
    def of(connection):
        return struct.pack("<IHHII", 0x4148434E, 21, 0, connection, 0)

    shared = message(1, hello) + of(1) + message(1, hello_rdma) + of(2) + message(*bodies["rejoin_shared"])
    write("control", "session", shared + of(1) + message(22, b"") + message(4, close) + of(2) + message(22, b""))
    write("control", "session_named_twice", message(1, hello) + of(1) + of(2) + message(1, hello))
    write("control", "http", b"GET / HTTP/1.0\r\n\r\n")


def handles():
    def handle(*addresses):
        body = struct.pack("<IHHQBB", 0x6C4E4148, 2, 40000, 7, len(addresses), 2)
        for address in addresses:
            body += bytes([len(address)]) + address
        return (body + bytes(128))[:128]

    v4 = bytes([10, 0, 0, 1])
    v6 = bytes([0xFE, 0x80]) + bytes(13) + b"\1"
    write("handle", "one", handle(v4))
    write("handle", "both", handle(v4, v6))
    write("handle", "full", handle(*([v4] * 20)))
    write("handle", "none", handle())


def counter_file(version=2, blocks=2, ring_capacity=4, block_scope=0):
    """Two scopes, a worker with a ring and a connection, as runtime/telemetry/counter_layout.h has it."""
    strings, offsets = b"", {}
    for text in ("worker", "connection", "turns", "bytes", "help", "path_down", "path", "epoch", "no", "names|of|values"):
        offsets[text.split("|")[0]] = len(strings)
        strings += text.encode() + b"\0"
    at = lambda *texts: [offsets[text] for text in texts]
    scopes = struct.pack("<4I", *at("worker", "help"), 0, 1) + struct.pack("<4I", *at("connection", "help"), 1, 1)
    counters = struct.pack("<4I", *at("turns", "turns", "help"), 0) + struct.pack("<4I", *at("bytes", "bytes", "help"), 2)
    events = struct.pack("<4I", *at("path_down", "help"), 0, 2)
    fields = (struct.pack("<4I", *at("path", "no", "names"), 2 | 64 << 16) +
              struct.pack("<4I", *at("epoch", "no", "no"), 3 | 8 << 8 | 16 << 16))

    def block(number, parent, scope, state, label):
        return (struct.pack("<5Q", 2, number, parent, scope | state << 32, 1000) + label.ljust(88, b"\0") +
                struct.pack("<32Q", *range(number, number + 32)))

    block_table = (block(1, 0, block_scope, 1, b"worker 0") + block(2, 1, 1, 2, b"send to b"))[:384 * blocks]
    body, tables = b"", []

    def add(data, count, entry):
        nonlocal body
        body += bytes(-len(body) % 64)
        tables.append((448 + len(body), count, entry))
        body += data

    add(scopes, 2, 16)
    add(counters, 2, 16)
    add(events, 1, 16)
    add(fields, 2, 16)
    add(strings, len(strings), 1)
    add(block_table, blocks, 384)
    ring_offset = 448 + len(body) + -len(body) % 64
    ring = struct.pack("<4Q", 3, ring_capacity, ring_offset + 64, 1) + bytes(32)
    slots = b"".join(struct.pack("<5Q", 2 * n + 2, 5000 + n, 7 << 32, n, n) for n in range(3)) + bytes(40)
    add(ring + slots, 1, 64)
    header = struct.pack("<8sIIQQQqqII32s32s64sQqq104s", b"nhacntr\0", version, 432, 448 + len(body), 1, 2, 3, 4, 5,
                         0, b"0.1.0", b"python3", b"host-a", 6, 7, 8, b"a path was replaced")
    return header + b"".join(struct.pack("<QII", *table) for table in tables) + bytes(16) + body


def counters():
    whole = counter_file()
    write("counters", "whole", whole)
    write("counters", "header", whole[:432])
    write("counters", "cut", whole[:len(whole) - 64])
    write("counters", "other_version", counter_file(version=3))
    write("counters", "no_blocks", counter_file(blocks=0))
    write("counters", "wild_ring", counter_file(ring_capacity=1 << 60))
    write("counters", "wild_scope", counter_file(block_scope=9))


def discovery():
    def packet(kind, body, sender=2):
        return struct.pack("<IBBHQII", 0x4D48414E, 3, kind, 24 + len(body), sender, 1, 1) + body

    def state(origin, links):
        address = bytes([4, 24, 10, 0, 0, origin]) + bytes([6, 64]) + bytes(15) + b"\1"
        return (struct.pack("<QQIB", origin, 5, 60000, 1) + b"\2h" + bytes([48 + origin]) + b"\2" + address +
                bytes([len(links)]) + b"".join(struct.pack("<QIII", node, 1, 1, 1000) for node in links))

    def states(*all_of_them):
        return bytes([len(all_of_them)]) + b"".join(struct.pack("<H", len(one)) + one for one in all_of_them)

    heard = struct.pack("<QII", 1, 1, 1)
    write("discovery", "hello", packet(1, struct.pack("<QHHBHQB", 1, 500, 2000, 2, 9000, 77, 1) + heard))
    write("discovery", "leaves", packet(1, struct.pack("<QHHBHQB", 2, 500, 2000, 1, 0, 77, 1) + heard))
    write("discovery", "states", packet(2, states(state(2, [1, 3]), state(3, [2]), state(1, []))))
    write("discovery", "summary", packet(3, struct.pack("<QQB", 0, 9, 2) + struct.pack("<QQQQ", 1, 1, 3, 9)))
    write("discovery", "request", packet(4, struct.pack("<BQQ", 2, 1, 3)))
    write("discovery", "query", packet(5, b"\1"))
    write("seal", "keys", b"# two\n2 " + b"ab" * 32 + b"\n1 " + b"CD" * 32 + b" # older\n")
    write("seal", "query", struct.pack("<IBBHQII", 0x4D48414E, 3, 5, 25, 7, 1, 0) + b"\0" + struct.pack("<QI", 1, 1) + bytes(16))
    write("seal", "nothing", bytes(52))
    greeting = struct.pack("<IHHI", 0x5341484E, 1, 0, 1) + bytes(48)
    write("seal", "greeting", greeting)
    write("seal", "greeting_and_record", greeting + struct.pack("<H", 4) + bytes(20))
    write("seal", "record", struct.pack("<H", 4) + bytes(20))
    entry = struct.pack("<QIIIHBB4B", 3, 1, 2, 5, 18740, 4, 24, 10, 0, 0, 3)
    write("discovery", "neighbours", packet(6, struct.pack("<IBIB", 1, 9, 7, 2) + entry + entry))
    write("discovery", "file", b"# four\nnode a 10.0.0.1/24 fe80::1 no-relay\nnode b 10.0.0.2\ncable a b 1000\n")


def hints():
    def table(version=1, slots=2, generation=5):
        size = 128 + 64 * slots
        return struct.pack("<8sIIQQqQIIII", b"nhahint\0", version, 128, size, generation, 1, 2, 3, slots, 64,
                           20) + struct.pack("<Q", 1000) + bytes(56) + bytes(64 * slots)
    write("hints", "whole", table())
    write("hints", "empty", table(slots=0))
    write("hints", "cut", table()[:-64])
    write("hints", "header", table()[:128])
    write("hints", "other_version", table(version=2))
    write("hints", "no_generation", table(generation=0))


def agent_text(text):
    return struct.pack("<H", len(text)) + text


def agent_address(*parts):
    return bytes([6 if len(parts) == 16 else 4]) + bytes(parts).ljust(16, b"\0")


def agents():
    bodies = {
        "hello": (1, struct.pack("<HI", 1, 4711) + agent_text(b"node1")),
        "hello_newer": (1, struct.pack("<HI", 9, 4711) + b"what nobody knows"),
        "welcome": (2, struct.pack("<HQI", 1, 0x1122334455667789, 99)),
        "refuse": (3, bytes([9]) + agent_text(b"all 4 slots are taken")),
        "enter": (4, agent_address(10, 0, 1, 1) + agent_address(10, 0, 1, 2) + agent_text(b"node1") +
                  agent_text(b"node2") + bytes([2]) + agent_text(b"mlx5_0") + agent_text(b"mlx5_1")),
        "enter_v6": (4, agent_address(*range(16)) + agent_address(*range(1, 17)) + agent_text(b"") +
                     agent_text(b"node2") + bytes([0])),
        "entered": (5, struct.pack("<IQQ", 3, 77, 0x1122334455667789)),
        "leave": (6, b""),
        "left": (7, b""),
        "ask_status": (8, b""),
        "status": (9, b"{}"),
        "status_end": (10, b""),
    }
    stream = b""
    for name, (kind, body) in bodies.items():
        message = struct.pack("<IHHQ", 0x4148414E, kind, len(body), 7) + body
        stream += message
        write("agent", name, message)
        if body:
            write("agent", name + "_body", body)
    write("agent", "dialogue", stream)
    write("agent", "http", b"GET / HTTP/1.1\r\n\r\n")


def telemetry_packet(kind, entries, tagged=True, version=1, count=None):
    body = b"".join(entries)
    length = 40 + len(body) + (32 if tagged else 0)
    return struct.pack("<IBBHQQqIBBH", 0x5448414E, version, kind, length, 0x1122334455667788, 42,
                       1700000000000000000, 1, int(tagged), len(entries) if count is None else count,
                       0) + body + (bytes(range(32)) if tagged else b"")


def telemetry():
    flow = agent_address(10, 0, 1, 1) + agent_address(10, 0, 2, 1)
    congestion = flow + struct.pack("<BBBI", 1, 200, 1, 123456)
    anybody = bytes(34) + struct.pack("<BBBI", 0, 7, 0, 0)
    report = agent_address(10, 0, 1, 1) + struct.pack("<BBIQQIIIII", 1, 20, 100000, 1 << 40, 1 << 39, 1, 2, 3, 4, 5)
    write("telemetry", "congestion", telemetry_packet(1, [congestion, anybody]))
    write("telemetry", "untagged", telemetry_packet(1, [congestion], tagged=False))
    write("telemetry", "begun", telemetry_packet(2, [flow + b"\2"]))
    write("telemetry", "ended", telemetry_packet(3, [flow + b"\2"]))
    write("telemetry", "report", telemetry_packet(4, [report]))
    write("telemetry", "other_version", telemetry_packet(1, [congestion], version=2))
    write("telemetry", "wrong_count", telemetry_packet(1, [congestion], count=2))
    write("telemetry", "empty", telemetry_packet(1, []))


def session():
    header = (CORPUS.parents[2] / "relay" / "session_message.h").read_text(encoding="utf-8")
    version = int(re.search(r"session_version = (\d+);", header)[1])
    chunk = 4096

    def message(kind, body):
        return struct.pack("<IBBH", 0x5348414E, version, kind, 8 + len(body)) + body

    hop = struct.pack("<QIIHH", 8192, 3, chunk + 80, 16, 72) + bytes(72)
    ticket = struct.pack("<IQII", 7, 3, 5, 1000) + bytes(range(16))

    def frame(kind, payload=b"", flags=1, sequence=1, message_bytes=None, offset=0, hop=0, hops=2, address=4096):
        size = len(payload) if message_bytes is None else message_bytes
        return struct.pack("<IBBHQQQHHIQQIIIIII", 0x5248414E, 1, kind, 80, 2, 1, 7, hop, hops, len(payload), sequence,
                           address, 9, size, offset, 5, flags, 0) + payload

    nodes = b"".join(struct.pack("<Q", node) for node in (1, 2, 3))
    write("session", "request", message(1, struct.pack("<QBB", 77, 1, 3) + nodes +
                                        struct.pack("<HQ", 4711, 99) + ticket + struct.pack("<IB", chunk, 1) + hop))
    write("session", "ack", message(2, struct.pack("<I", chunk) + hop))
    write("session", "refusal", message(3, struct.pack("<BQBB", 2, 5, 1, 4) + b"gone"))
    write("session", "ping", message(4, b""))
    write("session", "hello", message(5, ticket + bytes(range(32)) + b"\1"))
    write("seal", "hello", message(5, ticket + bytes(range(32)) + b"\1"))
    write("seal", "hello_sealed", message(5, ticket + bytes(range(32)) + b"\1" + bytes(16)))
    write("session", "link_down", message(6, b"\4down"))
    write("session", "key_question", message(7, struct.pack("<I", 9)))
    write("session", "key", message(8, struct.pack("<II", 9, 77)))
    write("session", "endpoint", struct.pack("<IBBHQQ", 0x4548414E, version, 0, 4711, 3, 99) + ticket)
    write("session", "write", frame(1, b"x" * 64))
    write("session", "piece", frame(1, b"x" * 64, flags=0, message_bytes=100))
    write("session", "note", frame(2, flags=3, hop=1, hops=1))
    write("session", "write_at_end", frame(1, b"y" * 64, flags=3, hop=1, hops=1))
    write("session", "pieces_at_end", frame(1, b"y" * 64, flags=0, message_bytes=128, hop=1, hops=1) +
          frame(1, b"z" * 64, message_bytes=128, offset=64, hop=1, hops=1, address=4160))
    write("session", "unused_kind", frame(3, b"y" * 64, hop=1, hops=1))
    write("session", "frame_ack", frame(4, flags=0, address=16, hop=1, hops=1))


if __name__ == "__main__":
    session()
    discovery()
    packets()
    control()
    handles()
    counters()
    hints()
    agents()
    telemetry()
