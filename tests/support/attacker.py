"""An attacker on a lab's network, for tests/e2e_long/attacks_netns_test.cpp.

Each command attacks in one way, and prints one line at its end with what it did: NAME=NUMBER each.
The formats are written down here once more, from runtime/fabric/datagram/wire.h: an attacker has
read them, and no code of the product can be wrong on both sides.
"""
import itertools
import os
import random
import resource
import select
import socket
import struct
import sys

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
        header = struct.pack("!BBHHHBBH4s4s", 0x45, 0, length + 20, 0, 0, FORGED_TTL, 17, 0, source, to)
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
    """What a tap shows, until the job is silent; a job that has paths says something each second."""
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
    that what is under way has arrived, or that it is refused."""
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
            for _ in range(min(free, 20) if one.held else 1 - len(one.calling)):
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


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
