"""A process that stands still while its emulated NIC goes on, as hardware does.

SIGSTOP would stop the thread that stands for the NIC too.
"""
import ctypes
import os
import pathlib

NIC_THREAD = "emulated NIC"
PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_DETACH = 0x4206, 0x4207, 17
WALL = 0x40000000  # __WALL: threads too

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.restype = ctypes.c_long
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


def ptrace(request, thread):
    if libc.ptrace(request, thread, None, None) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"ptrace {request:#x} of thread {thread}: {os.strerror(error)}")


def processes_below(pid):
    found = [pid]
    for thread in pathlib.Path(f"/proc/{pid}/task").iterdir():
        for child in (thread / "children").read_text().split():
            found += processes_below(int(child))
    return found


class Stopped:
    """All threads of a process and of those that it started, but those of NICs; from one thread."""

    def __init__(self, pid):
        self.threads = []
        self.nics = 0
        for process in processes_below(pid):
            for task in pathlib.Path(f"/proc/{process}/task").iterdir():
                if (task / "comm").read_text().strip() == NIC_THREAD:
                    self.nics += 1
                else:
                    self.threads.append(int(task.name))
        for thread in self.threads:
            ptrace(PTRACE_SEIZE, thread)
            ptrace(PTRACE_INTERRUPT, thread)
        for thread in self.threads:
            os.waitpid(thread, WALL)

    def stands(self):
        """Whether the kernel says that none of them runs."""
        return all(pathlib.Path(f"/proc/{thread}/stat").read_text().rsplit(")", 1)[1].split()[0] == "t"
                   for thread in self.threads)

    def go_on(self):
        for thread in self.threads:
            ptrace(PTRACE_DETACH, thread)
        self.threads = []
