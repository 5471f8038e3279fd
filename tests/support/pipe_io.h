// Whole messages over a pipe or socket pair between the processes of a test.
#pragma once

#include <poll.h>
#include <unistd.h>

#include <cstddef>

namespace nccl_ha::test {

/// False at the other side's end, or when nothing comes for a minute.
inline bool read_all(int fd, void* to, size_t length) {
  auto* at = static_cast<char*>(to);
  while (length > 0) {
    pollfd waiting{fd, POLLIN, 0};
    if (poll(&waiting, 1, 60000) != 1) {
      return false;
    }
    const ssize_t got = read(fd, at, length);
    if (got <= 0) {
      return false;
    }
    at += got;
    length -= static_cast<size_t>(got);
  }
  return true;
}

inline bool write_all(int fd, const void* from, size_t length) {
  return write(fd, from, length) == static_cast<ssize_t>(length);
}

}  // namespace nccl_ha::test
