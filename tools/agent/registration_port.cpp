#include "tools/agent/registration_port.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "runtime/base/log.h"

namespace nccl_ha::tools {
namespace {

constexpr Duration look_for_late_ones = std::chrono::seconds(1);
constexpr int backlog = 1024;

}  // namespace

Result<PeerCredentials> peer_credentials(int fd) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return fail(Errc::system, "cannot tell who connected", errno);
  }
  return PeerCredentials{credentials.pid, credentials.uid};
}

Result<int> open_agent_socket(const AgentDirectory& directory, bool everybody) {
  const std::string path = directory.socket_path();
  const auto refuse = [&](const char* what) {
    return fail(Errc::system, fmt::format("{}: {}", path, what), errno);
  };
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) {
    return refuse("cannot open a socket");
  }
  // Made under another name and renamed, so that there is no moment without one.
  // It is no longer than the socket's own name, which is known to fit.
  const std::string fresh = directory.path() + "/agent.new";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (fresh.size() >= sizeof address.sun_path) {
    close(fd);
    errno = ENAMETOOLONG;
    return refuse("no UNIX socket can have this name");
  }
  std::memcpy(address.sun_path, fresh.data(), fresh.size());
  unlink(fresh.c_str());
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      chmod(fresh.c_str(), everybody ? 0666 : 0600) != 0 || listen(fd, backlog) != 0 ||
      rename(fresh.c_str(), path.c_str()) != 0) {
    const Error error = refuse("cannot listen there");
    close(fd);
    unlink(fresh.c_str());
    return error;
  }
  return fd;
}

RegistrationPort::RegistrationPort(std::shared_ptr<FlowBoard> board, int listener, Limits limits,
                                   std::function<std::string()> status)
    : board_(std::move(board)),
      listener_(listener),
      limits_(std::move(limits)),
      status_(std::move(status)) {
  timer_.bind([](void* self) { static_cast<RegistrationPort*>(self)->end_late_ones(); }, this);
}

RegistrationPort::~RegistrationPort() {
  if (listener_ >= 0) {
    close(listener_);
  }
}

void RegistrationPort::start(Context& context) {
  context_ = &context;
  auto acceptor = context.streams().adopt_listener(std::exchange(listener_, -1), this);
  if (!acceptor) {
    NHA_LOG_ERROR("agent: no process can register: {}", acceptor.error().message());
    failed_ = true;
    return;
  }
  acceptor_ = std::move(*acceptor);
}

void RegistrationPort::stop() {
  acceptor_.reset();
  clients_.clear();
  if (context_ != nullptr) {
    context_->timers().cancel(timer_);
  }
}

Result<void> RegistrationPort::admit(int fd, PeerCredentials& who) const {
  auto credentials = peer_credentials(fd);
  if (!credentials) {
    return credentials.error();
  }
  who = *credentials;
  const bool may =
      limits_.all_users || who.uid == 0 || who.uid == geteuid() ||
      std::find(limits_.users.begin(), limits_.users.end(), who.uid) != limits_.users.end();
  if (!may) {
    return fail(Errc::invalid_usage,
                fmt::format("processes of user {} may not register with this agent (\"users\" in "
                            "its settings)",
                            who.uid));
  }
  const auto own = static_cast<size_t>(
      std::count_if(clients_.begin(), clients_.end(),
                    [&](const Client& client) { return client.who.uid == who.uid; }));
  if (share_of(who) != 0 && clients_.size() < limits_.clients &&
      !ha::within_share(own, clients_.size() - own, limits_.clients)) {
    return fail(Errc::no_memory,
                fmt::format("{} processes of user {} are registered, and the other places are kept "
                            "for other users (\"processes\" in the agent's settings)",
                            own, who.uid));
  }
  if (clients_.size() >= limits_.clients) {
    return fail(Errc::no_memory,
                fmt::format("{} processes are registered, and no more may (\"processes\" in the "
                            "agent's settings)",
                            clients_.size()));
  }
  return {};
}

ha::FlowRegistry::User RegistrationPort::share_of(const PeerCredentials& who) {
  return who.uid == geteuid() ? 0 : who.uid;
}

size_t RegistrationPort::clients() const {
  return static_cast<size_t>(std::count_if(clients_.begin(), clients_.end(),
                                           [](const Client& client) { return client.known; }));
}

void RegistrationPort::on_accept(int fd) {
  PeerCredentials who;
  const auto admitted = admit(fd, who);
  auto stream = context_->streams().adopt_fd(fd, this);
  if (!stream) {
    NHA_LOG_WARN_LIMITED("agent: {}", stream.error().message());
    return;
  }
  if (!admitted) {
    ++counts_.refused;
    NHA_LOG_WARN_LIMITED("agent: process {} is refused: {}", who.pid, admitted.error().message());
    static_cast<void>(
        (*stream)->write(encode(0, AgentRefusal{admitted.error().code, admitted.error().what})));
    (*stream)->shutdown_then_close();
    return;
  }
  ++counts_.accepted;
  Client client;
  client.id = ++last_id_;
  client.stream = std::move(*stream);
  client.who = who;
  client.since = context_->now();
  clients_.push_back(std::move(client));
  if (!timer_.armed()) {
    context_->timers().arm(timer_, context_->now() + look_for_late_ones);
  }
}

void RegistrationPort::on_acceptor_error(const Error& error) {
  NHA_LOG_WARN_LIMITED("agent: accepting processes fails: {}", error.message());
}

RegistrationPort::Place RegistrationPort::find(const Stream& stream) {
  return std::find_if(clients_.begin(), clients_.end(),
                      [&](const Client& client) { return client.stream.get() == &stream; });
}

void RegistrationPort::remove(Place client) {
  counts_.lost += client->connections != 0 ? 1 : 0;
  board_->drop(client->id, context_->now());
  clients_.erase(client);
}

bool RegistrationPort::say(Place client, const std::vector<std::byte>& frame) {
  if (auto written = client->stream->write(frame); !written) {
    NHA_LOG_WARN_LIMITED("agent: process {} does not take its answers: {}", client->who.pid,
                         written.error().message());
    remove(client);
    return false;
  }
  return true;
}

bool RegistrationPort::refuse(Place client, const Error& why) {
  NHA_LOG_WARN_LIMITED("agent: process {} is refused: {}", client->who.pid, why.message());
  static_cast<void>(client->stream->write(encode(0, AgentRefusal{why.code, why.what})));
  client->stream->shutdown_then_close();
  remove(client);
  return false;
}

void RegistrationPort::on_stream_data(Stream& stream, std::span<const std::byte> bytes) {
  const Place client = find(stream);
  client->reader.feed(bytes);
  while (const auto message = client->reader.next()) {
    if (!answer(client, *message)) {
      return;
    }
  }
  if (client->reader.broken()) {
    ++counts_.malformed;
    refuse(client, fail(Errc::invalid_argument, "that is no message of a plugin to its agent"));
  }
}

void RegistrationPort::on_stream_closed(Stream& stream, const Error& error) {
  (void)error;
  remove(find(stream));
}

bool RegistrationPort::answer(Place client, const AgentReader::Message& message) {
  switch (message.type) {
    case AgentMessage::hello:
      if (const auto hello = decode_agent_hello(message.payload); hello && !client->known) {
        if (hello->version != agent_version) {
          return refuse(client,
                        fail(Errc::invalid_usage,
                             fmt::format("the plugin speaks version {}, the agent version {}: use "
                                         "the nccl-ha and the plugin of one build",
                                         hello->version, agent_version)));
        }
        client->known = true;
        client->host = hello->host;
        AgentWelcome welcome;
        welcome.generation = board_->generation();
        welcome.pid = static_cast<uint32_t>(getpid());
        return say(client, encode(welcome));
      }
      break;
    case AgentMessage::enter:
      if (client->known) {
        return answer_enter(client, message);
      }
      break;
    case AgentMessage::leave:
      if (client->known && message.payload.empty()) {
        if (auto left = board_->leave(client->id, message.connection, context_->now()); !left) {
          return say(client, encode(message.connection,
                                    AgentRefusal{left.error().code, left.error().what}));
        }
        --client->connections;
        return say(client, encode_agent(AgentMessage::left, message.connection));
      }
      break;
    case AgentMessage::ask_status: {
      if (client->asked) {
        break;
      }
      client->asked = true;
      // In one piece: what waits already is limited, and a large host's status is more than that.
      std::vector<std::byte> all;
      for (const auto& frame : encode_status(status_())) {
        all.insert(all.end(), frame.begin(), frame.end());
      }
      return say(client, all);
    }
    default:
      break;
  }
  ++counts_.malformed;
  return refuse(client, fail(Errc::invalid_argument, "a message that the agent does not expect"));
}

bool RegistrationPort::answer_enter(Place client, const AgentReader::Message& message) {
  const auto announcement = decode_announcement(message.payload);
  if (!announcement) {
    ++counts_.malformed;
    return refuse(client, fail(Errc::invalid_argument, "a registration that is malformed"));
  }
  const auto place = board_->enter(client->id, message.connection, *announcement, context_->now(),
                                   share_of(client->who));
  if (!place) {
    NHA_LOG_WARN_LIMITED("agent: a connection of process {} is refused: {}", client->who.pid,
                         place.error().what);
    return say(client,
               encode(message.connection, AgentRefusal{place.error().code, place.error().what}));
  }
  ++client->connections;
  return say(client, encode(message.connection, *place));
}

void RegistrationPort::end_late_ones() {
  const Instant now = context_->now();
  bool waits = false;
  for (auto client = clients_.begin(); client != clients_.end();) {
    const auto next = std::next(client);
    if (!client->known && now - client->since > limits_.hello) {
      ++counts_.late;
      refuse(client, fail(Errc::timed_out, "it does not say who it is"));
    } else {
      waits = waits || !client->known;
    }
    client = next;
  }
  if (waits) {
    context_->timers().arm(timer_, now + look_for_late_ones);
  }
}

}  // namespace nccl_ha::tools
