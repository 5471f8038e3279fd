// What our copy of libuv's archive refers to in place of the C library; NhaLibraries.cmake says
// why.
//
// Variables: uv_os_environ() therefore sees the environment of the moment the library was loaded,
// and the `env` option of uv_spawn() has no effect. Nothing here uses either.
//
// Functions: the descriptors that libuv opens are the library's (runtime/base/own_fd.h), and it
// closes no others: in a fork its numbers may be somebody else's by now.
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>

#include "runtime/base/own_fd.h"

using nccl_ha::make_fd;

extern "C" {
extern const in6_addr nha_uv_in6addr_any;

char** nha_uv_environ = environ;
char** nha_uv_environ_too = environ;
FILE* nha_uv_stderr = stderr;
const in6_addr nha_uv_in6addr_any = IN6ADDR_ANY_INIT;

int nha_uv_socket(int domain, int type, int protocol) {
  return make_fd([&] { return socket(domain, type, protocol); });
}
int nha_uv_pipe2(int* ends, int flags) {
  nccl_ha::OwnFds own;
  const int result = pipe2(ends, flags);
  if (result == 0) {
    ends[0] = own.add(nccl_ha::above_standard(ends[0]));
    ends[1] = own.add(nccl_ha::above_standard(ends[1]));
    if (ends[0] < 0 || ends[1] < 0) {
      const int error = errno;
      nccl_ha::close_fd(ends[0]);
      nccl_ha::close_fd(ends[1]);
      errno = error;
      return -1;
    }
  }
  return result;
}
int nha_uv_epoll_create1(int flags) {
  return make_fd([&] { return epoll_create1(flags); });
}
int nha_uv_eventfd(unsigned first, int flags) {
  return make_fd([&] { return eventfd(first, flags); });
}
int nha_uv_open64(const char* path, int flags, mode_t mode) {
  return make_fd([&] { return open(path, flags, mode); });
}
int nha_uv_open64_2(const char* path, int flags) { return nha_uv_open64(path, flags, 0); }

/// libuv closes descriptors by it.
long nha_uv_syscall(long number, ...) {
  long arguments[6];
  va_list rest;
  va_start(rest, number);
  for (long& argument : arguments) {
    argument = va_arg(rest, long);
  }
  va_end(rest);
  if (number == SYS_close) {
    nccl_ha::close_fd(static_cast<int>(arguments[0]));
    return 0;
  }
  return syscall(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4],
                 arguments[5]);
}

/// In a fork libuv would make descriptors for loops that are not its own, and threads for a pool
/// that nothing here uses.
int nha_uv_pthread_atfork(void (*)(), void (*)(), void (*)()) { return 0; }
}
