#include "actors/agent_client.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "runtime/base/host.h"
#include "runtime/base/log.h"
#include "runtime/telemetry/agent_directory.h"

namespace nccl_ha {
namespace {

constexpr Duration first_wait = std::chrono::milliseconds(20);
constexpr Duration longest_wait = std::chrono::seconds(1);
/// Who was connected for so long is missed at once; who ends sooner may do so again.
constexpr Duration settled = std::chrono::seconds(1);
/// A full table may have room again.
constexpr Duration refused_wait = std::chrono::seconds(5);
/// So many heartbeats may be missed, where that takes longer than HA_NCCL_AGENT_SILENCE_MS.
constexpr int beats_missed = 4;
/// Announcements without an answer: a stream keeps no more than it has to.
constexpr size_t unanswered_max = 256;
/// The first look at an agent's answers, while a handshake with it is under way.
constexpr unsigned handshake_turns = 64;

}  // namespace

std::shared_ptr<AgentClient> AgentClient::of(Context& context) {
  if (auto known = context.shared().find<AgentClient>()) {
    return known;
  }
  std::shared_ptr<AgentClient> made(new AgentClient(context));
  context.shared().put(made);
  return made;
}

AgentClient::AgentClient(Context& context) : context_(context), backoff_(first_wait, longest_wait) {
  timer_.bind([](void* self) { static_cast<AgentClient*>(self)->on_timer(); }, this);
}

AgentClient::~AgentClient() { drop_stream(); }

std::unique_ptr<AgentClient::Registration> AgentClient::enter(FlowAnnouncement announcement) {
  auto registration =
      std::make_unique<Registration>(shared_from_this(), ++last_id_, std::move(announcement));
  registration->silence_max_ = std::chrono::milliseconds(context_.config().agent_silence_ms);
  registrations_.emplace(registration->id_, registration.get());
  if (table_) {
    announce_more();
  } else if (!stream_ && !timer_.armed()) {
    context_.timers().arm(timer_, context_.now() + backoff_.next(context_.random()));
  }
  return registration;
}

void AgentClient::leave(Registration& registration) {
  registrations_.erase(registration.id_);
  if (registrations_.empty()) {
    drop_stream();  // its end says it for all of them
    backoff_.reset();
  } else if (table_ && !registration.refused_ && registration.id_ <= told_to_) {
    write(encode_agent(AgentMessage::leave, registration.id_));
  }
}

void AgentClient::on_timer() {
  if (table_) {
    retold_to_ = 0;
    announce_more();
  } else if (stream_) {
    try_again(fail(Errc::timed_out, "it does not answer"));
  } else if (!registrations_.empty()) {
    attempt();
  }
}

void AgentClient::attempt() {
  directory_ = AgentDirectory::chosen(context_.config().agent_dir);
  const auto place = AgentDirectory::open(directory_);
  if (!place) {
    try_again(place.error());
    return;
  }
  reader_ = {};
  auto stream = context_.streams().connect_unix(place->socket_path(), this);
  if (!stream) {
    try_again(stream.error());
    return;
  }
  stream_ = std::move(*stream);
  context_.timers().arm(
      timer_, context_.now() + std::chrono::milliseconds(context_.config().handshake_timeout_ms));
  context_.request_stream_turns(handshake_turns);
}

void AgentClient::try_again(const Error& why) {
  const bool was_settled = table_ && context_.now() - welcomed_at_ >= settled;
  drop_stream();
  if (const std::string text = why.message(); text != told_) {  // once, not with each attempt
    told_ = text;
    if (why.code == Errc::invalid_argument) {
      NHA_LOG_WARN("the transport agent is not used: {}", text);
    } else {
      NHA_LOG_INFO(
          "no transport agent in {}: {}; connections split their data by themselves until "
          "there is one",
          directory_, text);
    }
  }
  if (was_settled) {
    backoff_.reset();
  }
  if (!registrations_.empty()) {
    context_.timers().arm(timer_, context_.now() + backoff_.next(context_.random()));
  }
}

void AgentClient::drop_stream() {
  context_.timers().cancel(timer_);
  stream_.reset();
  table_.reset();  // registrations keep theirs: what an agent said last holds for a moment
}

/// False: the stream is gone.
bool AgentClient::write(std::span<const std::byte> frame) {
  if (auto written = stream_->write(frame); !written) {
    // A message that is left out would leak a slot; the stream's end frees all of them.
    try_again(written.error());
    return false;
  }
  return true;
}

/// False: the stream is gone.
bool AgentClient::announce(Registration& registration) {
  registration.refused_ = false;
  ++unanswered_;
  return write(encode(registration.id_, registration.announcement_));
}

/// In portions: a job may have thousands.  Goes on with each answer.
void AgentClient::announce_more() {
  for (auto next = registrations_.upper_bound(told_to_);
       next != registrations_.end() && unanswered_ < unanswered_max; ++next) {
    told_to_ = next->first;
    if (!announce(*next->second)) {
      return;
    }
  }
  auto next = registrations_.upper_bound(retold_to_);
  for (; next != registrations_.end() && next->first <= told_to_ && unanswered_ < unanswered_max;
       ++next) {
    retold_to_ = next->first;
    if (next->second->refused_ && !announce(*next->second)) {
      return;
    }
  }
  if (next == registrations_.end() || next->first > told_to_) {
    retold_to_ = UINT64_MAX;
  }
}

void AgentClient::on_answer() {
  unanswered_ -= std::min<size_t>(unanswered_, 1);
  announce_more();
}

void AgentClient::on_stream_open(Stream& stream) {
  (void)stream;
  AgentHello hello;
  hello.pid = static_cast<uint32_t>(getpid());
  hello.host = host_name();
  write(encode(hello));
}

void AgentClient::on_stream_data(Stream& stream, std::span<const std::byte> bytes) {
  reader_.feed(bytes);
  while (const auto message = reader_.next()) {
    on_message(*message);
    if (stream_.get() != &stream) {
      return;  // what it said ended it
    }
  }
  if (reader_.broken()) {
    try_again(fail(Errc::remote, "what listens there is no transport agent"));
  }
}

void AgentClient::on_stream_closed(Stream& stream, const Error& error) {
  (void)stream;
  try_again(error);
}

void AgentClient::on_message(const AgentReader::Message& message) {
  switch (message.type) {
    case AgentMessage::welcome:
      if (const auto welcome = decode_agent_welcome(message.payload); welcome && !table_) {
        on_welcome(*welcome);
        return;
      }
      break;
    case AgentMessage::refuse:
      if (const auto refusal = decode_agent_refusal(message.payload)) {
        on_refusal(message.connection, *refusal);
        return;
      }
      break;
    case AgentMessage::entered:
      if (const auto place = decode_place(message.payload); place && table_) {
        on_place(message.connection, *place);
        return;
      }
      break;
    case AgentMessage::left:
      return;
    default:
      break;
  }
  try_again(fail(Errc::remote, "the transport agent says something that it should not"));
}

void AgentClient::on_welcome(const AgentWelcome& welcome) {
  if (welcome.version != agent_version) {
    try_again(fail(Errc::invalid_argument,
                   fmt::format("it speaks version {}, this plugin version {}: use the nccl-ha and "
                               "the plugin of one build",
                               welcome.version, agent_version)));
    return;
  }
  auto table = HintTable::open(directory_, welcome.generation);
  if (!table) {
    try_again(table.error());
    return;
  }
  table_ = std::move(*table);
  context_.timers().cancel(timer_);
  welcomed_at_ = context_.now();
  told_.clear();
  ++attachments_;
  told_to_ = 0;
  retold_to_ = UINT64_MAX;
  unanswered_ = 0;
  NHA_LOG_INFO("the transport agent in {} (process {}) is told of {} connections", directory_,
               welcome.pid, registrations_.size());
  announce_more();
}

void AgentClient::on_refusal(uint64_t connection, const AgentRefusal& refusal) {
  if (connection == 0) {
    try_again(fail(refusal.code, refusal.text));
    return;
  }
  NHA_LOG_WARN_LIMITED("the transport agent refuses a connection: {}", refusal.text);
  const auto found = registrations_.find(connection);
  if (found != registrations_.end()) {
    found->second->table_.reset();
    found->second->refused_ = true;
    if (table_ && !timer_.armed()) {
      context_.timers().arm(timer_, context_.now() + refused_wait);
    }
  }
  if (table_) {
    on_answer();
  }
}

void AgentClient::on_place(uint64_t connection, const FlowPlace& place) {
  const auto found = registrations_.find(connection);
  if (found == registrations_.end()) {
    on_answer();  // it has left meanwhile
    return;
  }
  Registration& registration = *found->second;
  if (place.generation != table_->generation() ||
      place.flow != ha::flow_hash(registration.announcement_.flow)) {
    try_again(fail(Errc::remote, "the transport agent answers for another flow"));
    return;
  }
  registration.table_ = table_;
  registration.place_ = place;
  // An agent that beats slowly, as its settings say, is not silent for that.
  registration.silence_max_ =
      std::max<Duration>(std::chrono::milliseconds(context_.config().agent_silence_ms),
                         beats_missed * table_->heartbeat_interval());
  on_answer();
}

}  // namespace nccl_ha
