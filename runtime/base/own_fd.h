// The descriptors that belong to the library: a child of fork(2) closes its copies before it runs,
// so that a connection ends with the process that made it.  What exec(2) starts has none of them,
// as all of them close on exec.
#pragma once

#include <cstdint>

namespace nccl_ha {

/// While it lives no fork begins (but for one that has waited for 0.1 s), so that a child knows of
/// each descriptor that it has.  Any thread; nests.  They do not wait for each other: a device
/// whose firmware hangs takes a minute to be opened.
class OwnFds {
 public:
  OwnFds();
  ~OwnFds();
  OwnFds(const OwnFds&) = delete;
  OwnFds& operator=(const OwnFds&) = delete;

  /// `fd`, which is the library's from now on; one below 0 is an error and stays one.
  int add(int fd);
  /// Before it is closed.  False: it is not the library's, as in a fork that closed its copy.
  bool remove(int fd);
  bool any() const;

 private:
  uint64_t life_ = 0;  ///< of the process that made it
  bool held_ = false;
};

/// `fd`, or another number for it: where a standard stream is closed, others still write to it, and
/// libuv lets nobody close a descriptor of that number.  An error with its errno stays one.
int above_standard(int fd);

/// What `make` opens, or its error with its errno.
template <class Make>
int make_fd(Make&& make) {
  OwnFds own;
  return own.add(above_standard(make()));
}

/// close(2) of what make_fd() gave; nothing for any other number, also where a fork asks.
void close_fd(int fd);

}  // namespace nccl_ha
