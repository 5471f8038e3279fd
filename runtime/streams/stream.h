// Byte streams for the control plane (TCP, UNIX) and datagrams for telemetry, as actors see them.
// All on the worker's thread.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "runtime/base/aead.h"
#include "runtime/base/clock.h"
#include "runtime/base/result.h"
#include "runtime/streams/listening.h"

namespace nccl_ha {

class Stream;

/// Hears what happens on a stream.  May destroy the stream in any of its callbacks.
class StreamOwner {
 public:
  virtual ~StreamOwner() = default;
  virtual void on_stream_open(Stream& stream) = 0;  ///< a connect succeeded
  virtual void on_stream_data(Stream& stream, std::span<const std::byte> bytes) = 0;
  /// Once.  Errc::closed: the peer closed in good order; else reset, or the connect failed.
  virtual void on_stream_closed(Stream& stream, const Error& error) = 0;
};

class Stream {
 public:
  virtual ~Stream() = default;  ///< closes at once, without a callback
  virtual void set_owner(StreamOwner* owner) = 0;
  /// Copies.  Errc::again when more than 1 MiB waits to be sent, Errc::closed after the end.
  virtual Result<void> write(std::span<const std::byte> bytes) = 0;
  /// The peer's host has confirmed whatever was sent to it, the dial included; of the peer's
  /// process that says nothing.
  virtual bool all_arrived() const = 0;
  /// Bytes that were written and that the kernel has not taken yet.
  virtual size_t backlog() const { return 0; }
  /// The number, from 1 and higher for later ones, of the stream that several share and that this
  /// one is a part of; 0: it is its own.
  virtual uint64_t session() const { return 0; }
  /// Sends what was written, then FIN, and closes by itself within two seconds, even when this
  /// object is destroyed meanwhile.  No callbacks after it.
  virtual void shutdown_then_close() = 0;
  virtual Result<sockaddr_storage> local_address() = 0;
  virtual Result<sockaddr_storage> peer_address() = 0;
  /// What both ends of an open one have in common and nobody else; null: it is not sealed.
  virtual const SharedKey* shared_key() const { return nullptr; }
};

class AcceptorOwner {
 public:
  virtual ~AcceptorOwner() = default;
  /// A connected, non-blocking socket; ownership passes.  May go to another worker.
  virtual void on_accept(int fd) = 0;
  virtual void on_acceptor_error(const Error& error) = 0;
};

class Acceptor {
 public:
  virtual ~Acceptor() = default;  ///< stops listening
};

class DatagramOwner {
 public:
  virtual ~DatagramOwner() = default;
  virtual void on_datagram(std::span<const std::byte> bytes, const sockaddr* from) = 0;
};

/// A socket for control-plane datagrams; the data path has its own.
class DatagramEndpoint {
 public:
  virtual ~DatagramEndpoint() = default;
  virtual Result<void> send(std::span<const std::byte> bytes, const sockaddr* to) = 0;
  virtual Result<sockaddr_storage> local_address() = 0;
};

class LinkWatchOwner {
 public:
  virtual ~LinkWatchOwner() = default;
  /// An interface got or lost its carrier, was taken up or down, or went away.
  virtual void on_link(const std::string& interface, bool up) = 0;
  /// None has that name any more: it went away, as on_link() has told, or was renamed.
  virtual void on_link_gone(const std::string& interface) { (void)interface; }
  /// Addresses or interfaces came, went, or have another name or number.
  virtual void on_interfaces() {}
};

class LinkWatch {
 public:
  virtual ~LinkWatch() = default;  ///< no callback after it
};

class FdWatchOwner {
 public:
  virtual ~FdWatchOwner() = default;
  /// Something can be read; told again as long as it can.
  virtual void on_readable(int fd) = 0;
};

class FdWatch {
 public:
  virtual ~FdWatch() = default;  ///< no callback after it
};

class StreamFactory {
 public:
  virtual ~StreamFactory() = default;
  /// `from` may be null.  The result is connecting; the owner hears the outcome.
  virtual Result<std::unique_ptr<Stream>> connect_tcp(const sockaddr* to, const sockaddr* from,
                                                      StreamOwner* owner) = 0;
  virtual Result<std::unique_ptr<Stream>> connect_unix(const std::string& path,
                                                       StreamOwner* owner) = 0;
  /// A connected TCP or UNIX socket; ownership passes, also on failure.
  virtual Result<std::unique_ptr<Stream>> adopt_fd(int fd, StreamOwner* owner) = 0;
  /// A bound, listening, non-blocking socket; ownership passes, also on failure.
  virtual Result<std::unique_ptr<Acceptor>> adopt_listener(int fd, AcceptorOwner* owner) = 0;
  /// Any thread.  A socket for adopt_listener() that listens at all addresses of this host, on a
  /// port of `ports` (HA_NCCL_LISTEN_PORTS).
  virtual Result<Listening> open_listener(std::string_view ports) = 0;
  virtual Result<std::unique_ptr<DatagramEndpoint>> bind_datagram(const sockaddr* address,
                                                                  DatagramOwner* owner) = 0;
  /// A descriptor that others own and read, made non-blocking; it must stay open as long as the
  /// watch.  A regular file: Errc::system.
  virtual Result<std::unique_ptr<FdWatch>> watch_fd(int fd, FdWatchOwner* owner) = 0;
  /// Changes of this host's network interfaces from now on.  Where there is nobody to tell of them:
  /// invalid_usage.
  virtual Result<std::unique_ptr<LinkWatch>> watch_links(LinkWatchOwner* owner) {
    (void)owner;
    return fail(Errc::invalid_usage, "nobody tells of links here");
  }
  /// Lets callbacks run without waiting; how many things may have happened (0: idle).
  virtual unsigned turn() = 0;
  /// Readable when turn() has something to do; -1: none.
  virtual int wait_fd() const { return -1; }
  /// Call turn() again after so long even if nothing becomes readable; nullopt: no need to.
  virtual std::optional<Duration> wait_limit() { return std::nullopt; }
  /// Open handles, closing ones included.
  virtual size_t open_handles() const = 0;
};

}  // namespace nccl_ha
