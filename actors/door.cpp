#include "actors/door.h"

#include <unistd.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "actors/connection/receive_side.h"
#include "actors/peer_session.h"
#include "actors/route.h"
#include "runtime/base/host.h"
#include "runtime/base/log.h"
#include "runtime/base/own_fd.h"
#include "runtime/engine/engine.h"
#include "runtime/streams/admission.h"

namespace nccl_ha {
namespace {

/// Beside the peers that listens wait for, which may take as long as their NICs do for a hello.
constexpr size_t waiting_max = 256;
constexpr Duration hello_grace = std::chrono::milliseconds(100);
/// Sessions in which there is no connection.
constexpr size_t idle_sessions_max = 64;

std::string text_of_peer(Stream& stream) {
  const auto address = stream.peer_address();
  return address ? address_text(*address) : "an unknown address";
}

void reject(Stream& stream, std::string_view why) {
  NHA_LOG_WARN_LIMITED("door: rejected an unauthenticated peer at {}: {}", text_of_peer(stream),
                       why);
}

}  // namespace

ProcessId own_process() { return {static_cast<uint32_t>(getpid()), process_start_ticks()}; }

void answer_and_close(std::unique_ptr<Stream> stream, std::span<const std::byte> frame) {
  stream->set_owner(nullptr);
  static_cast<void>(stream->write(frame));
  stream->shutdown_then_close();
}

/// Stands at the open door: reads the first message of each stream.
class Door::Porter final : public Actor,
                           private AcceptorOwner,
                           private StreamOwner,
                           private PeerSession::Host {
 public:
  /// `fd` is bound and listening; ownership passes.
  Porter(std::shared_ptr<Door> door, int fd) : door_(std::move(door)), fd_(fd) {
    timer_.bind([](void* self) { static_cast<Porter*>(self)->evict_late(); }, this);
  }
  ~Porter() override {
    if (door_->porter_ == this) {
      door_->porter_ = nullptr;
    }
    close();
  }
  const char* name() const override { return "door"; }
  void start(Context& context) override;
  /// Something has left, or it could not begin.
  void on(const Message&) override {
    if (acceptor_) {
      door_->close_if_unused();
    } else {
      door_->end_listens(&failure_);
      context_->remove_actor(id());
    }
  }
  /// Connections that linger may still be asked for.
  void stop() override { door_->end_listens(nullptr); }
  bool lingers() const override { return !door_->members_.empty(); }
  void on_no_memory() override {
    if (context_ != nullptr && !acceptor_) {
      begin_in_vain();
    }
  }
  bool can_accept() const { return acceptor_ != nullptr; }
  void close() {
    acceptor_.reset();
    waiting_.clear();
    for (const auto& session : std::exchange(sessions_, {})) {
      session->leave_host();
    }
    close_fd(std::exchange(fd_, -1));
    if (context_ != nullptr) {
      context_->timers().cancel(timer_);
    }
  }
  size_t waiting() const { return waiting_.size(); }

 private:
  struct Waiting {
    Origin origin;
    std::unique_ptr<Stream> stream;
    ControlReader reader;
    Instant until;
    bool overdue = false;
  };
  void on_accept(int fd) override;
  void on_acceptor_error(const Error& error) override {
    NHA_LOG_WARN_LIMITED("door: accepting connections fails: {}", error.message());
  }
  void on_stream_open(Stream& stream) override { (void)stream; }
  void on_stream_data(Stream& stream, std::span<const std::byte> bytes) override;
  void on_stream_closed(Stream& stream, const Error& error) override;
  void on_connection(std::unique_ptr<Stream> stream, const ControlReader::Message& first) override {
    const Origin origin = Origin::of(stream->peer_address());
    on_first({origin, std::move(stream), {}, {}}, first);
  }
  void begin_in_vain();
  std::shared_ptr<PeerSession> share(Waiting& caller);
  void on_first(Waiting caller, const ControlReader::Message& message);
  void on_hello(Waiting caller, const Hello& hello);
  std::vector<Waiting>::iterator find(const Stream& stream) {
    return std::ranges::find_if(waiting_,
                                [&](const Waiting& one) { return one.stream.get() == &stream; });
  }
  void evict_late();

  const std::shared_ptr<Door> door_;
  int fd_;  ///< until it has begun
  Context* context_ = nullptr;
  std::unique_ptr<Acceptor> acceptor_;
  Error failure_ = fail(Errc::no_memory, "out of memory for a door");  ///< why there is none
  std::vector<Waiting> waiting_;  ///< unauthenticated peers, who came first first
  std::vector<std::shared_ptr<PeerSession>> sessions_;  ///< in which others may come
  Timer timer_;
};

std::shared_ptr<Door> Door::of(Context& context) {
  return context.shared().find_or_make<Door>([&] { return std::make_shared<Door>(context); });
}

Door::Door(Context& context) : context_(context), process_(own_process()) {}

template <class Make>
Result<uint16_t> Door::open(Make&& make) {
  if (port_ != 0) {
    return port_;
  }
  const auto listening = context_.streams().open_listener(context_.config().listen_ports);
  if (!listening) {
    return listening.error();
  }
  const Result<ActorId> porter = make(std::make_unique<Porter>(shared_from_this(), listening->fd));
  if (!porter) {
    return porter.error();
  }
  porter_id_ = *porter;
  port_ = listening->port;
  return port_;
}

Result<uint16_t> Door::add(const Listen& listen) {
  const std::lock_guard lock(mutex_);
  auto opened = open([&](auto porter) { return context_.worker().adopt(std::move(porter)); });
  if (opened) {
    listens_.emplace(listen.channel->nonce(), listen);
  }
  return opened;
}

void Door::remove(uint64_t nonce) {
  Message look{};
  {
    const std::lock_guard lock(mutex_);
    listens_.erase(nonce);
    look.to = porter_id_;
  }
  context_.worker().post(look);
}

std::optional<Secret> Door::enter(Member* member) {
  const std::lock_guard lock(mutex_);
  const auto opened = open([&](auto porter) { return context_.add_actor(std::move(porter)); });
  if (!opened) {
    NHA_LOG_WARN_LIMITED("control connections that break cannot be made anew: {}",
                         opened.error().message());
    return std::nullopt;
  }
  if (porter_ != nullptr && !porter_->can_accept()) {
    return std::nullopt;  // which it has said
  }
  Secret token;
  do {
    token = context_.secrets().draw();
  } while (!members_.emplace(token, member).second);
  return token;
}

void Door::leave(Secret token) {
  members_.erase(token);
  close_if_unused();
}

size_t Door::waiting() const { return porter_ == nullptr ? 0 : porter_->waiting(); }

size_t Door::expected() {
  const std::lock_guard lock(mutex_);
  return listens_.size();
}

std::optional<Door::Listen> Door::find(uint64_t nonce) {
  const std::lock_guard lock(mutex_);
  const auto known = listens_.find(nonce);
  return known == listens_.end() ? std::nullopt : std::optional<Listen>(known->second);
}

/// Whoever comes next opens it anew: under the lock its port is free again.
void Door::close_if_unused() {
  const std::lock_guard lock(mutex_);
  if (porter_ != nullptr && members_.empty() && listens_.empty()) {
    port_ = 0;
    porter_->close();
    context_.remove_actor(std::exchange(porter_, nullptr)->id());
  }
}

/// None can be asked for any more; who comes next needs another door.
void Door::end_listens(const Error* why) {
  {
    const std::lock_guard lock(mutex_);
    port_ = 0;
    for (auto& [nonce, listen] : std::exchange(listens_, {})) {
      if (why != nullptr) {
        listen.channel->fail(*why);
      }
    }
  }
  close_if_unused();
}

void Door::Porter::start(Context& context) {
  context_ = &context;
  door_->porter_ = this;
  auto acceptor = context.streams().adopt_listener(std::exchange(fd_, -1), this);
  if (acceptor) {
    acceptor_ = std::move(*acceptor);
    return;
  }
  NHA_LOG_WARN_LIMITED("door: nobody can come in: {}", acceptor.error().message());
  failure_ = acceptor.error();
  begin_in_vain();
}

void Door::Porter::begin_in_vain() {
  Message look{};
  look.to = id();
  context_->send_self(look);
}

void Door::Porter::on_accept(int fd) {
  std::erase_if(sessions_, [](const auto& one) { return one->state().is_over(); });
  auto stream = context_->peer_streams().adopt_fd(fd, this);
  if (!stream) {
    NHA_LOG_WARN_LIMITED("door: cannot take a connection: {}", stream.error().message());
    return;
  }
  const Origin origin = Origin::of((*stream)->peer_address());
  if (waiting_.size() >= waiting_max + door_->expected()) {
    const auto out = waiting_.begin() + static_cast<ptrdiff_t>(who_gives_way(waiting_, origin));
    reject(*out->stream, "others wait for its place");
    waiting_.erase(out);
  }
  const Instant until =
      context_->now() + std::chrono::milliseconds(context_->config().handshake_timeout_ms);
  waiting_.push_back({origin, std::move(*stream), {}, until});
  context_->request_stream_turns(1000);
  if (!timer_.armed()) {
    context_->timers().arm(timer_, until);
  }
}

void Door::Porter::on_stream_data(Stream& stream, std::span<const std::byte> bytes) {
  const auto one = find(stream);
  if (one == waiting_.end()) {
    return;
  }
  static_cast<void>(one->reader.feed(bytes));
  const auto message = one->reader.next();
  if (!message && !one->reader.broken()) {
    return;
  }
  Waiting caller = std::move(*one);  // with what the message lies in
  waiting_.erase(one);
  if (message) {
    on_first(std::move(caller), *message);
  } else {
    reject(stream, "it does not speak our control protocol");
  }
}

void Door::Porter::on_first(Waiting caller, const ControlReader::Message& message) {
  if (message.type == ControlType::hello) {
    if (const auto hello = decode_hello(message.payload)) {
      on_hello(std::move(caller), *hello);
    } else {
      reject(*caller.stream, "its hello is malformed");
    }
    return;
  }
  const auto call = message.type == ControlType::rejoin || message.type == ControlType::probe
                        ? decode_call(message.payload)
                        : std::nullopt;
  if (!call) {
    reject(*caller.stream, "it does not say for whom it is");
    return;
  }
  const auto member = door_->members_.find(call->token);
  const bool this_process = call->process == door_->process_;
  const auto session = this_process && call->shares ? share(caller) : nullptr;
  if (member == door_->members_.end() || !this_process) {
    NHA_LOG_DEBUG("door: {} asks for a connection that is gone", text_of_peer(*caller.stream));
    // Who does not know this process is not told of it.
    answer_and_close(std::move(caller.stream),
                     encode(ControlType::absent, this_process ? door_->process_ : ProcessId{}));
  } else {
    member->second->on_call(message.type, std::move(caller.stream), std::move(caller.reader));
  }
  if (session) {
    session->read_on();
  }
}

/// From here on the peer may set up other connections in its stream.  Null: it may not, or can
/// already.
std::shared_ptr<PeerSession> Door::Porter::share(Waiting& caller) {
  const Config& config = context_->config();
  const auto idle =
      std::ranges::count_if(sessions_, [](const auto& one) { return one->is_idle(); });
  if (!config.peer_sessions || !config.enable_backup || caller.stream->session() != 0 ||
      static_cast<size_t>(idle) >= idle_sessions_max) {
    return nullptr;
  }
  auto session = std::make_shared<PeerSession>(*context_, std::move(caller.stream),
                                               std::exchange(caller.reader, {}),
                                               static_cast<PeerSession::Host&>(*this));
  sessions_.push_back(session);
  caller.stream = session->begin();
  return session;
}

void Door::Porter::on_hello(Waiting caller, const Hello& hello) {
  const auto listen = door_->find(hello.nonce);
  if (!listen) {
    reject(*caller.stream, "nothing listens here with the nonce of its hello");
    answer_and_close(std::move(caller.stream), encode(ControlType::absent, ProcessId{}));
    return;
  }
  const auto session = hello.shares ? share(caller) : nullptr;
  const auto local = caller.stream->local_address();
  const fabric::RailDevices devices =
      local ? listen->ports.of_stream(listen->provider, listen->devices, *local) : listen->devices;
  const size_t worker = context_->worker_index();
  auto connection =
      make_receive_connection(listen->provider, listen->engine, worker, devices, listen->channel,
                              {std::move(caller.stream), std::move(caller.reader), hello});
  listen->engine.add_load(worker, 1.0);  // the connection gives it back
  auto made = context_->add_actor(std::move(connection));
  if (!made) {
    listen->channel->fail(made.error());
  }
  if (session) {
    session->read_on();
  }
}

void Door::Porter::on_stream_closed(Stream& stream, const Error& error) {
  if (const auto one = find(stream); one != waiting_.end()) {
    if (error.code != Errc::closed && error.sys == 0) {
      reject(stream, error.message());  // it does not show a key
    }
    waiting_.erase(one);
  }
}

void Door::Porter::evict_late() {
  const Instant now = context_->now();
  Instant next = Instant::max();
  std::erase_if(waiting_, [&](const Waiting& one) {
    const bool late = one.overdue && now >= one.until;
    if (late) {
      reject(*one.stream, "it did not say in time for whom it is");
    }
    return late;
  });
  for (Waiting& one : waiting_) {
    if (now >= one.until) {
      // If this process stood still, the message is there and was only not read yet.
      one.overdue = true;
      one.until = now + hello_grace;
      context_->request_stream_turns(1000);
    }
    next = std::min(next, one.until);
  }
  if (!waiting_.empty()) {
    context_->timers().arm(timer_, next);
  }
}

}  // namespace nccl_ha
