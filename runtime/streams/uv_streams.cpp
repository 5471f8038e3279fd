#include "runtime/streams/uv_streams.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>
#include <uv.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/base/egress.h"
#include "runtime/base/log.h"
#include "runtime/base/own_fd.h"
#include "runtime/streams/fd_acceptor.h"
#include "runtime/streams/fd_datagram.h"
#include "runtime/streams/kernel_links.h"
#include "runtime/streams/listening.h"
#include "runtime/streams/local_ports.h"
#include "runtime/streams/sigpipe.h"
#include "runtime/streams/tcp_socket.h"
#include "runtime/streams/uv_room.h"

namespace nccl_ha {
namespace {

constexpr size_t write_backlog_max = 1 << 20;
constexpr uint64_t linger_ms = 2000;

Error uv_error(int code, const std::string& what) {
  // UV_EOF is libuv's own code and no errno that could be put into words.
  return code == UV_EOF ? fail(Errc::closed, what) : fail(Errc::remote, what, -code);
}

class UvStreams;

/// The part of a stream that lives until libuv has let go of its handles and the Stream is gone.
struct Core {
  union {
    uv_tcp_t tcp;
    uv_pipe_t pipe;
    uv_stream_t stream;
    uv_handle_t handle;
  } uv;
  uv_timer_t timer;
  uv_connect_t connect;
  uv_shutdown_t shutdown;
  UvStreams* factory = nullptr;
  Stream* face = nullptr;  // null once the Stream object is gone
  StreamOwner* owner = nullptr;
  bool is_pipe = false;
  bool connecting = false;
  bool open = false;
  bool ended = false;  // the owner has been told, or must not be
  bool closing = false;
  bool lingering = false;
  int handles = 2;  // stream and timer
  char input[16384];
};

struct WriteRequest {
  uv_write_t uv;
  std::vector<std::byte> bytes;
};

class UvStreams final : public StreamFactory {
 public:
  explicit UvStreams(Duration unanswered) : unanswered_(unanswered) {}
  Result<void> init() {
    if (auto possible = probe_uv_loop(); !possible) {
      return possible.error();
    }
    const int code = uv_loop_init(&loop_);
    if (code != 0) {
      return fail(Errc::system, "cannot create an event loop", -code);
    }
    // What the loop itself is to watch.
    for (unsigned fd = 0; fd < loop_.nwatchers; ++fd) {
      const int error = loop_.watchers[fd] == nullptr ? 0 : hold(static_cast<int>(fd));
      if (error != 0) {
        uv_loop_close(&loop_);
        return not_held(error);
      }
    }
    made_ = true;
    return {};
  }
  ~UvStreams() override;

  Result<std::unique_ptr<Stream>> connect_tcp(const sockaddr* to, const sockaddr* from,
                                              StreamOwner* owner) override;
  Result<std::unique_ptr<Stream>> connect_unix(const std::string& path,
                                               StreamOwner* owner) override;
  Result<std::unique_ptr<Stream>> adopt_fd(int fd, StreamOwner* owner) override;
  Result<std::unique_ptr<Acceptor>> adopt_listener(int fd, AcceptorOwner* owner) override;
  Result<Listening> open_listener(std::string_view ports) override {
    return nccl_ha::open_listener(ports);
  }
  Result<std::unique_ptr<DatagramEndpoint>> bind_datagram(const sockaddr* address,
                                                          DatagramOwner* owner) override {
    return bind_datagram_on(*this, address, owner);
  }
  Result<std::unique_ptr<FdWatch>> watch_fd(int fd, FdWatchOwner* owner) override;
  Result<std::unique_ptr<LinkWatch>> watch_links(LinkWatchOwner* owner) override;
  unsigned turn() override {
    events_ = 0;
    std::optional<SigpipeGuard> guard;
    if (writes_ != 0) {
      guard.emplace();
    }
    uv_run(&loop_, UV_RUN_NOWAIT);
    if (std::exchange(out_of_memory_, false)) {
      throw std::bad_alloc();
    }
    return events_;
  }
  int wait_fd() const override { return uv_backend_fd(&loop_); }
  std::optional<Duration> wait_limit() override {
    if (uv_loop_alive(&loop_) == 0) {
      return std::nullopt;  // libuv would say 0, "do not wait", for a loop with nothing to wait for
    }
    const int timeout = uv_backend_timeout(&loop_);
    return timeout < 0 ? std::nullopt : std::optional<Duration>(std::chrono::milliseconds(timeout));
  }
  size_t open_handles() const override { return handles_; }

  void happened() { ++events_; }
  /// Before the loop runs next.  0, or an errno value: the kernel does not watch it.
  int hold(int fd) const { return hold_in_set(uv_backend_fd(&loop_), fd); }
  /// No exception goes through libuv, which is C: turn() throws it on.
  template <class Call>
  void call_owner(Call&& call) {
    try {
      call();
    } catch (const std::bad_alloc&) {
      out_of_memory_ = true;
    }
  }
  void write_begun() { ++writes_; }
  void write_ended() { --writes_; }
  void handle_opened(size_t count) { handles_ += count; }
  void handle_closed() { --handles_; }

 private:
  Core* make_core(bool is_pipe, StreamOwner* owner);
  int hold(const Core* core) const;

  uv_loop_t loop_{};
  const Duration unanswered_;
  bool made_ = false;
  unsigned events_ = 0;
  bool out_of_memory_ = false;  ///< in a callback of this turn
  size_t writes_ = 0;           ///< that libuv has not reported on
  size_t handles_ = 0;
};

std::optional<int> fd_of(const Core* core) {
  uv_os_fd_t fd = -1;
  return uv_fileno(&core->uv.handle, &fd) == 0 ? std::optional<int>(fd) : std::nullopt;
}

int UvStreams::hold(const Core* core) const {
  const auto fd = fd_of(core);
  return fd ? hold(*fd) : 0;
}

void on_handle_closed(uv_handle_t* handle) {
  auto* core = static_cast<Core*>(handle->data);
  core->factory->handle_closed();
  if (--core->handles == 0 && core->face == nullptr) {
    delete core;
  }
}

void close_core(Core* core) {
  if (core->closing) {
    return;
  }
  core->closing = true;
  core->owner = nullptr;
  uv_close(&core->uv.handle, on_handle_closed);
  uv_close(reinterpret_cast<uv_handle_t*>(&core->timer), on_handle_closed);
}

/// `why()`: the error, made where no exception of it goes through libuv.
template <class Why>
void end_stream(Core* core, const Why& why) {
  if (core->lingering || core->face == nullptr) {
    close_core(core);
    return;
  }
  if (core->ended || core->closing) {
    return;
  }
  core->ended = true;
  core->open = false;
  if (core->owner != nullptr) {
    core->factory->call_owner([&] {
      core->owner->on_stream_closed(*core->face, why());  // may destroy the Stream
    });
  }
}

void on_alloc(uv_handle_t* handle, size_t, uv_buf_t* buffer) {
  auto* core = static_cast<Core*>(handle->data);
  *buffer = uv_buf_init(core->input, sizeof core->input);
}

void on_read(uv_stream_t* stream, ssize_t got, const uv_buf_t* buffer) {
  auto* core = static_cast<Core*>(stream->data);
  core->factory->happened();
  if (got > 0) {
    if (core->owner != nullptr && core->face != nullptr && !core->lingering) {
      core->factory->call_owner([&] {
        core->owner->on_stream_data(
            *core->face, std::as_bytes(std::span(buffer->base, static_cast<size_t>(got))));
      });
    }
  } else if (got < 0) {
    uv_read_stop(stream);
    end_stream(core, [got] {
      return uv_error(static_cast<int>(got),
                      got == UV_EOF ? "the connection was closed" : "the connection broke");
    });
  }
}

void on_connected(uv_connect_t* request, int status) {
  auto* core = static_cast<Core*>(request->data);
  core->factory->happened();
  core->connecting = false;
  if (core->closing) {
    return;
  }
  if (status != 0) {
    end_stream(core, [status] { return connect_error(-status); });
    return;
  }
  core->open = true;
  const int code = uv_read_start(&core->uv.stream, on_alloc, on_read);
  if (code != 0) {
    end_stream(core, [code] { return uv_error(code, "cannot read from a new connection"); });
    return;
  }
  if (core->owner != nullptr && core->face != nullptr) {
    core->factory->call_owner([&] { core->owner->on_stream_open(*core->face); });
  }
}

class UvStream final : public Stream {
 public:
  explicit UvStream(Core* core) : core_(core) { core->face = this; }
  ~UvStream() override {
    core_->face = nullptr;
    core_->owner = nullptr;
    if (core_->handles == 0) {
      delete core_;
    } else if (!core_->lingering) {
      close_core(core_);
    }
  }
  void set_owner(StreamOwner* owner) override {
    if (!core_->closing) {
      core_->owner = owner;
    }
  }
  Result<void> write(std::span<const std::byte> bytes) override;
  bool all_arrived() const override;
  size_t backlog() const override {
    return core_->closing ? 0 : uv_stream_get_write_queue_size(&core_->uv.stream);
  }
  void shutdown_then_close() override;
  Result<sockaddr_storage> local_address() override { return address(uv_tcp_getsockname); }
  Result<sockaddr_storage> peer_address() override { return address(uv_tcp_getpeername); }

 private:
  template <class Get>
  Result<sockaddr_storage> address(Get get) {
    sockaddr_storage storage{};
    int length = sizeof storage;
    const int code = core_->is_pipe || core_->closing
                         ? UV_ENOTSUP
                         : get(&core_->uv.tcp, reinterpret_cast<sockaddr*>(&storage), &length);
    if (code != 0) {
      return fail(Errc::system, "a connection has no address", -code);
    }
    return storage;
  }
  Core* core_;
};

void on_written(uv_write_t* request, int status) {
  auto* write = static_cast<WriteRequest*>(request->data);
  auto* core = static_cast<Core*>(request->handle->data);
  delete write;
  core->factory->write_ended();
  core->factory->happened();
  const bool closed = status == UV_EPIPE || status == UV_ECONNRESET;  // reading tells, in order
  if (status != 0 && status != UV_ECANCELED && !closed) {
    end_stream(core, [status] { return uv_error(status, "writing to the connection failed"); });
  }
}

Result<void> UvStream::write(std::span<const std::byte> bytes) {
  if (!core_->open || core_->closing || core_->lingering) {
    return fail(Errc::closed, "the stream is not open");
  }
  if (uv_stream_get_write_queue_size(&core_->uv.stream) > write_backlog_max) {
    return fail(Errc::again, "the peer does not read its control stream");
  }
  auto request = std::make_unique<WriteRequest>();
  request->bytes.assign(bytes.begin(), bytes.end());
  request->uv.data = request.get();
  uv_buf_t buffer = uv_buf_init(reinterpret_cast<char*>(request->bytes.data()),
                                static_cast<unsigned>(request->bytes.size()));
  const SigpipeGuard guard;
  const int code = uv_write(&request->uv, &core_->uv.stream, &buffer, 1, on_written);
  if (code != 0) {
    return uv_error(code, "writing to the connection failed");
  }
  core_->factory->write_begun();
  static_cast<void>(request.release());
  return {};
}

bool UvStream::all_arrived() const {
  const auto fd = fd_of(core_);
  return !core_->connecting && uv_stream_get_write_queue_size(&core_->uv.stream) == 0 &&
         (core_->is_pipe || !fd || all_confirmed(*fd));
}

void UvStream::shutdown_then_close() {
  if (core_->closing || core_->lingering) {
    return;
  }
  core_->owner = nullptr;
  if (!core_->open) {
    close_core(core_);
    return;
  }
  core_->lingering = true;
  const int code =
      uv_shutdown(&core_->shutdown, &core_->uv.stream, [](uv_shutdown_t* request, int) {
        // Everything is in the kernel's hands, FIN included; the peer's own FIN need not be
        // awaited, and unread input of its would only turn our FIN into a reset.
        close_core(static_cast<Core*>(request->data));
      });
  if (code != 0) {
    close_core(core_);
    return;
  }
  uv_timer_start(
      &core_->timer, [](uv_timer_t* timer) { close_core(static_cast<Core*>(timer->data)); },
      linger_ms, 0);
}

class UvFdWatch final : public FdWatch {
 public:
  struct State {
    uv_poll_t poll;
    UvStreams* factory;
    FdWatchOwner* owner;
    int fd;
  };
  explicit UvFdWatch(State* state) : state_(state) {}
  ~UvFdWatch() override {
    state_->owner = nullptr;
    uv_close(reinterpret_cast<uv_handle_t*>(&state_->poll), [](uv_handle_t* handle) {
      auto* state = static_cast<State*>(handle->data);
      state->factory->handle_closed();
      delete state;
    });
  }
  /// 0, or an errno value: the kernel does not watch it.
  static int begin(State& state) {
    uv_poll_start(&state.poll, UV_READABLE, on_readable);
    const int error = state.factory->hold(state.fd);
    if (error != 0) {
      uv_poll_stop(&state.poll);
    }
    return error;
  }
  static void on_readable(uv_poll_t* poll, int status, int /*events*/) {
    auto* state = static_cast<State*>(poll->data);
    state->factory->happened();
    // An error of a socket ends when it is read; one that stays would come back with every turn.
    const int tries = status < 0 ? 4 : 1;
    if (status < 0) {
      uv_poll_stop(poll);
    }
    for (int i = 0; i < tries && state->owner != nullptr; ++i) {
      state->factory->call_owner([state] { state->owner->on_readable(state->fd); });
      if (status < 0 && state->owner != nullptr && !has_error(state->fd) && begin(*state) == 0) {
        return;
      }
    }
    if (status < 0 && state->owner != nullptr) {
      state->factory->call_owner(
          [] { NHA_LOG_WARN("a descriptor has an error that stays: it is not read any more"); });
    }
  }

 private:
  static bool has_error(int fd) {
    pollfd asked{fd, 0, 0};
    return ::poll(&asked, 1, 0) > 0;
  }

  State* state_;
};

UvStreams::~UvStreams() {
  if (!made_) {
    return;
  }
  // Whoever is left is closed the hard way; close callbacks need turns of the loop.
  uv_walk(
      &loop_,
      [](uv_handle_t* handle, void*) {
        if (uv_is_closing(handle) != 0) {
          return;
        }
        if (handle->type == UV_TCP || handle->type == UV_NAMED_PIPE || handle->type == UV_TIMER) {
          close_core(static_cast<Core*>(handle->data));
        }
      },
      nullptr);
  while (handles_ != 0 && uv_run(&loop_, UV_RUN_NOWAIT) >= 0) {
    if (uv_loop_alive(&loop_) == 0) {
      break;
    }
  }
  NHA_ASSERT(uv_loop_close(&loop_) == 0, "streams outlive their event loop");
}

Core* UvStreams::make_core(bool is_pipe, StreamOwner* owner) {
  auto* core = new Core;
  core->factory = this;
  core->owner = owner;
  core->is_pipe = is_pipe;
  if (is_pipe) {
    uv_pipe_init(&loop_, &core->uv.pipe, 0);
  } else {
    uv_tcp_init(&loop_, &core->uv.tcp);
  }
  uv_timer_init(&loop_, &core->timer);
  core->uv.handle.data = core->timer.data = core->connect.data = core->shutdown.data = core;
  handle_opened(2);
  return core;
}

Result<std::unique_ptr<Stream>> UvStreams::connect_tcp(const sockaddr* to, const sockaddr* from,
                                                       StreamOwner* owner) {
  Core* core = make_core(false, owner);
  auto stream = std::make_unique<UvStream>(core);
  if (const int code = from == nullptr ? 0 : uv_tcp_bind(&core->uv.tcp, from, 0); code != 0) {
    return uv_error(code, "cannot connect from that address of this host");
  }
  if (uv_os_fd_t fd = -1; uv_fileno(&core->uv.handle, &fd) == 0) {
    choose_own_nic(fd, from, to);
  }
  if (const int code = uv_tcp_connect(&core->connect, &core->uv.tcp, to, on_connected); code != 0) {
    return connect_error(-code);
  }
  core->connecting = true;
  if (const int error = hold(core); error != 0) {
    return not_held(error);
  }
  if (const auto fd = fd_of(core)) {
    tune_tcp(*fd, unanswered_);
  }
  return std::unique_ptr<Stream>(std::move(stream));
}

Result<std::unique_ptr<Stream>> UvStreams::connect_unix(const std::string& path,
                                                        StreamOwner* owner) {
  Core* core = make_core(true, owner);
  auto stream = std::make_unique<UvStream>(core);
  core->connecting = true;
  uv_pipe_connect(&core->connect, &core->uv.pipe, path.c_str(), on_connected);
  if (const int error = hold(core); error != 0) {
    return not_held(error);
  }
  return std::unique_ptr<Stream>(std::move(stream));
}

Result<std::unique_ptr<Stream>> UvStreams::adopt_fd(int fd, StreamOwner* owner) {
  OwnFds().add(fd);
  sockaddr_storage name{};
  socklen_t length = sizeof name;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&name), &length) != 0) {
    const int error = errno;
    close_fd(fd);
    return fail(Errc::system, "not a socket", error);
  }
  const bool is_pipe = name.ss_family == AF_UNIX;
  Core* core = make_core(is_pipe, owner);
  auto stream = std::make_unique<UvStream>(core);
  int code = is_pipe ? uv_pipe_open(&core->uv.pipe, fd) : uv_tcp_open(&core->uv.tcp, fd);
  if (code != 0) {
    close_fd(fd);
    return uv_error(code, "cannot use an accepted connection");
  }
  if (!is_pipe) {
    tune_tcp(fd, unanswered_);
  }
  core->open = true;
  code = uv_read_start(&core->uv.stream, on_alloc, on_read);
  if (code != 0) {
    return uv_error(code, "cannot read from an accepted connection");
  }
  if (const int error = hold(core); error != 0) {
    return not_held(error);
  }
  return std::unique_ptr<Stream>(std::move(stream));
}

Result<std::unique_ptr<Acceptor>> UvStreams::adopt_listener(int fd, AcceptorOwner* owner) {
  return accept_on(*this, fd, owner);
}

Result<std::unique_ptr<LinkWatch>> UvStreams::watch_links(LinkWatchOwner* owner) {
  return watch_kernel_links(*this, owner);
}

Result<std::unique_ptr<FdWatch>> UvStreams::watch_fd(int fd, FdWatchOwner* owner) {
  auto* state = new UvFdWatch::State{};
  state->factory = this;
  state->owner = owner;
  state->fd = fd;
  state->poll.data = state;
  const int code = uv_poll_init(&loop_, &state->poll, fd);
  if (code != 0) {
    delete state;
    return fail(Errc::system, "cannot watch a descriptor", -code);
  }
  handle_opened(1);
  auto watch = std::make_unique<UvFdWatch>(state);
  if (const int error = UvFdWatch::begin(*state); error != 0) {
    return not_held(error);
  }
  return std::unique_ptr<FdWatch>(std::move(watch));
}

}  // namespace

Result<std::unique_ptr<StreamFactory>> make_uv_streams(Duration unanswered) {
  auto streams = std::make_unique<UvStreams>(unanswered);
  if (auto made = streams->init(); !made) {
    return made.error();
  }
  return std::unique_ptr<StreamFactory>(std::move(streams));
}

}  // namespace nccl_ha
