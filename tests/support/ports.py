"""Ports at which processes of a test meet."""
import pathlib
import random
import socket


def port_to_meet_at():
    """A TCP port where nobody listens, nor 17 above it, where the ranks of perf meet.  Below those
    that the kernel gives to whoever connects, so that no test that runs meanwhile gets it."""
    given_from = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(given_from // 2, given_from - 17)
        with socket.socket() as first, socket.socket() as above:
            try:
                first.bind(("127.0.0.1", port))
                above.bind(("127.0.0.1", port + 17))
                return port
            except OSError:
                continue
