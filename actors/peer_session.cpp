#include "actors/peer_session.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "runtime/base/log.h"

namespace nccl_ha {
namespace {

/// With more than that on its way to the kernel, connections take turns.
constexpr size_t session_backlog_max = 65536;
/// What waits for one connection, at most, before writes are refused.
constexpr size_t outbox_bytes_max = 1 << 20;
constexpr Duration drain_interval = std::chrono::milliseconds(1);
/// How long an accepted session may be without a connection.
constexpr Duration idle_limit = std::chrono::seconds(5);

}  // namespace

// --- a connection's part

Result<void> SessionStream::write(std::span<const std::byte> bytes) {
  if (ended_ || !open_) {
    return fail(Errc::closed, "the stream is not open");
  }
  return session_->write(*this, bytes);
}

bool SessionStream::all_arrived() const {
  return ended_ || session_ == nullptr || session_->all_arrived(*this);
}

uint64_t SessionStream::session() const {
  return session_ != nullptr && session_->state().asks() ? session_->number() : 0;
}

void SessionStream::shutdown_then_close() {
  owner_ = nullptr;
  leave();
}

Result<sockaddr_storage> SessionStream::local_address() {
  return session_ == nullptr || session_->stream_ == nullptr
             ? fail(Errc::closed, "the stream is not open")
             : session_->stream_->local_address();
}

Result<sockaddr_storage> SessionStream::peer_address() {
  return session_ == nullptr || session_->stream_ == nullptr
             ? fail(Errc::closed, "the stream is not open")
             : session_->stream_->peer_address();
}

const SharedKey* SessionStream::shared_key() const {
  return session_ == nullptr || session_->stream_ == nullptr ? nullptr
                                                             : session_->stream_->shared_key();
}

void SessionStream::leave() {
  if (session_ != nullptr && !std::exchange(ended_, true)) {
    session_->leave(*this);
  }
}

// The owner may destroy this in each of these, so that telling it is the last thing done.

void SessionStream::open() {
  open_ = true;
  if (owner_ != nullptr) {
    owner_->on_stream_open(*this);
  }
}

void SessionStream::hear(std::span<const std::byte> bytes) {
  if (owner_ != nullptr) {
    owner_->on_stream_data(*this, bytes);
  }
}

void SessionStream::end(const Error& error) {
  ended_ = true;
  if (owner_ != nullptr) {
    owner_->on_stream_closed(*this, error);
  }
}

// --- all of a worker

std::shared_ptr<PeerSessions> PeerSessions::of(Context& context) {
  return context.shared().find_or_make<PeerSessions>(
      [&] { return std::make_shared<PeerSessions>(context); });
}

Result<std::unique_ptr<Stream>> PeerSessions::connect(const Route& route, uint64_t after,
                                                      StreamOwner* owner) {
  auto stream = std::make_unique<SessionStream>(owner);
  if (auto placed = place(*stream, route, after); !placed) {
    return placed.error();
  }
  return std::unique_ptr<Stream>(std::move(stream));
}

/// In the youngest that may be joined, best one that is shared already, or in a new one.
Result<void> PeerSessions::place(SessionStream& stream, const Route& route, uint64_t after,
                                 bool asks) {
  std::erase_if(dialled_, [](const auto& one) {
    const auto session = one.lock();
    return session == nullptr || session->state().is_over();
  });
  std::shared_ptr<PeerSession> chosen;
  for (const auto& one : dialled_) {
    const auto session = one.lock();
    if (!session->leads_over(route)) {
      continue;
    }
    asks = asks && !session->state().is_refused();
    const bool better =
        chosen == nullptr || session->state().is_shared() || !chosen->state().is_shared();
    if (session->number() > after && better && session->may_join()) {
      chosen = session;
    }
  }
  if (chosen == nullptr || !asks) {
    chosen = std::make_shared<PeerSession>(context_, route, asks);
    if (auto dialled = chosen->dial(); !dialled) {
      return dialled;
    }
    dialled_.push_back(chosen);
  }
  chosen->join(stream);
  return {};
}

// --- the session

PeerSession::PeerSession(Context& context, const Route& route, bool asks)
    : context_(context),
      all_(PeerSessions::of(context)),
      route_(route),
      number_(all_->next_number()),
      state_(ha::SessionState::dialled(asks, context.now())),
      accepted_(false) {
  timer_.bind([](void* self) { static_cast<PeerSession*>(self)->on_timer(); }, this);
}

PeerSession::PeerSession(Context& context, std::unique_ptr<Stream> stream, ControlReader read,
                         Host& host)
    : context_(context),
      all_(PeerSessions::of(context)),
      number_(all_->next_number()),
      state_(ha::SessionState::accepted()),
      stream_(std::move(stream)),
      reader_(std::move(read)),
      host_(&host),
      accepted_(true) {
  timer_.bind([](void* self) { static_cast<PeerSession*>(self)->on_timer(); }, this);
  stream_->set_owner(this);
  unheard_.begin(context_.moment());
}

PeerSession::~PeerSession() { context_.timers().cancel(timer_); }

Result<void> PeerSession::dial() {
  const auto* from =
      route_.from.ss_family == 0 ? nullptr : reinterpret_cast<const sockaddr*>(&route_.from);
  auto stream = context_.peer_streams().connect_tcp(reinterpret_cast<const sockaddr*>(&route_.to),
                                                    from, this);
  if (!stream) {
    return stream.error();
  }
  stream_ = std::move(*stream);
  keys_ = context_.peer_streams().current_keys();
  unheard_.begin(context_.moment());
  return {};
}

Duration PeerSession::unheard() {
  return stream_ == nullptr ? Duration(0)
                            : unheard_.lasts(stream_->all_arrived(), context_.moment());
}

/// A connection is sealed by the keys of its time, also where others began before.
bool PeerSession::may_join() {
  return state_.may_join(unheard(), context_.moment().ran_since(heard_), context_.now()) &&
         keys_ == context_.peer_streams().current_keys();
}

/// It hears that it is open later, as of any stream that is dialled.
void PeerSession::join(SessionStream& stream) {
  stream.session_ = shared_from_this();
  waiting_.push_back(&stream);
  context_.request_stream_turns(1000);
  arm();
}

std::unique_ptr<Stream> PeerSession::begin() {
  static_cast<void>(post(0, encode_share()));
  static_cast<void>(state_.add());
  auto first = std::make_unique<SessionStream>(nullptr);
  first->session_ = shared_from_this();
  first->number_ = 0;
  first->open_ = true;
  streams_[0] = first.get();
  return first;
}

void PeerSession::read_on() {
  const auto self = shared_from_this();
  read();
}

void PeerSession::leave_host() {
  host_ = nullptr;
  if (!is_used() && !state_.is_over()) {
    close();
  }
}

// --- writing

Result<void> PeerSession::write(SessionStream& stream, std::span<const std::byte> message) {
  if (state_.is_over()) {
    return fail(Errc::closed, "the stream is not open");
  }
  if (!stream.number_) {
    std::erase(silent_, &stream);
    stream.number_ = state_.take_number();
    streams_[*stream.number_] = &stream;
  }
  return send(*stream.number_, message);
}

/// `last`: nothing else is said of the connection, so that it is not limited.
Result<void> PeerSession::send(uint32_t number, std::span<const std::byte> message, bool last) {
  if (outboxes_.empty() && stream_->backlog() <= session_backlog_max) {
    return post(number, message);
  }
  Outbox& box = outboxes_[number];
  if (box.bytes > outbox_bytes_max && !last) {
    return fail(Errc::again, "the peer does not read its control stream");
  }
  box.messages.emplace_back(message.begin(), message.end());
  box.bytes += message.size();
  drain();
  arm();
  return {};
}

Result<void> PeerSession::post(uint32_t number, std::span<const std::byte> message) {
  unheard_.on_write(stream_->all_arrived(), context_.moment());
  if (number == 0) {
    return stream_->write(message);
  }
  std::vector<std::byte> frame = encode_of(number);
  frame.insert(frame.end(), message.begin(), message.end());
  return stream_->write(frame);
}

/// A message of each connection in turn.
void PeerSession::drain() {
  while (!outboxes_.empty() && stream_->backlog() <= session_backlog_max) {
    auto next = outboxes_.upper_bound(last_turn_);
    next = next == outboxes_.end() ? outboxes_.begin() : next;
    last_turn_ = next->first;
    Outbox& box = next->second;
    static_cast<void>(post(next->first, box.messages.front()));
    box.bytes -= box.messages.front().size();
    box.messages.pop_front();
    if (box.messages.empty()) {
      outboxes_.erase(next);
    }
  }
}

bool PeerSession::all_arrived(const SessionStream& stream) {
  if (!state_.is_shared()) {
    return stream_->all_arrived();
  }
  const bool waits = stream.number_ && outboxes_.contains(*stream.number_);
  return !waits && unheard() <= ha::SessionState::unheard_max;
}

// --- connections come and go

void PeerSession::open_next() {
  SessionStream& next = *waiting_.front();
  waiting_.erase(waiting_.begin());
  if (!state_.add()) {
    if (auto placed = all_->place(next, route_, number_); !placed) {
      next.end(placed.error());
    }
  } else if (state_.is_shared()) {
    silent_.push_back(&next);
    next.open();
  } else {
    next.number_ = state_.take_number();
    streams_[*next.number_] = &next;
    next.open();
  }
}

void PeerSession::open_waiting() {
  while (state_.is_shared() && !waiting_.empty()) {
    open_next();
  }
}

/// To younger sessions, or streams of their own.
void PeerSession::send_waiting_on(bool asks) {
  while (!waiting_.empty()) {
    SessionStream& next = *waiting_.front();
    waiting_.erase(waiting_.begin());
    if (auto placed = all_->place(next, route_, number_, asks); !placed) {
      next.end(placed.error());
    }
  }
}

void PeerSession::leave(SessionStream& stream) {
  std::erase(waiting_, &stream);
  std::erase(silent_, &stream);
  if (stream.number_) {
    streams_.erase(*stream.number_);
  }
  if (state_.is_over()) {
    return;  // the others are being told
  }
  if (stream.open_) {
    state_.remove();
  }
  if (stream.number_ && state_.is_shared()) {
    static_cast<void>(send(*stream.number_, encode_over(), true));
  }
  look_whether_unused();
}

/// Called from destructors: no other part is told anything here.
void PeerSession::look_whether_unused() {
  if (state_.is_over() || is_used()) {
    return;
  }
  if (accepted_ && host_ != nullptr) {
    idle_until_ = idle_until_.value_or(context_.now() + idle_limit);
    arm();
  } else if (waiting_.empty()) {
    close();
  } else {
    arm();
  }
}

/// What was written still goes out.
void PeerSession::close() {
  for (auto& [number, box] : std::exchange(outboxes_, {})) {
    for (const auto& message : box.messages) {
      static_cast<void>(post(number, message));
    }
  }
  state_.end();
  context_.timers().cancel(timer_);
  stream_->shutdown_then_close();
  stream_.reset();
}

/// Each part hears of it as of its own stream's end.
void PeerSession::end(const Error& error) {
  if (state_.is_over()) {
    return;
  }
  state_.end();
  context_.timers().cancel(timer_);
  outboxes_.clear();
  stream_.reset();
  while (!streams_.empty()) {
    SessionStream& one = *streams_.begin()->second;
    streams_.erase(streams_.begin());
    one.end(error);
  }
  for (std::vector<SessionStream*>* others : {&silent_, &waiting_}) {
    while (!others->empty()) {
      SessionStream& one = *others->front();
      others->erase(others->begin());
      one.end(error);
    }
  }
}

// --- the stream

void PeerSession::on_stream_open(Stream& stream) {
  (void)stream;
  const auto self = shared_from_this();
  state_.on_open(context_.now());
  heard_ = context_.moment();
  unheard_.on_heard(heard_);
  open_next();
  if (!state_.is_over()) {
    arm();
  }
}

void PeerSession::on_stream_data(Stream& stream, std::span<const std::byte> bytes) {
  (void)stream;
  const auto self = shared_from_this();
  heard_ = context_.moment();
  unheard_.on_heard(heard_);
  if (state_.phase() == ha::SessionState::Phase::alone) {
    hear_first(bytes);
    return;
  }
  static_cast<void>(reader_.feed(bytes));
  read();
}

/// Where it ended before the peer had answered, that was about the first connection.
void PeerSession::on_stream_closed(Stream& stream, const Error& error) {
  (void)stream;
  const auto self = shared_from_this();
  if (state_.phase() == ha::SessionState::Phase::asking) {
    state_.on_answer(ha::SessionState::Answer::absent);
    send_waiting_on();
  }
  end(error);
}

void PeerSession::read() {
  while (state_.is_shared() || state_.phase() == ha::SessionState::Phase::asking) {
    const auto part = reader_.next();
    if (!part) {
      break;
    }
    if (state_.is_shared()) {
      take(*part);
    } else {
      on_answer(part->message);
    }
  }
  if (reader_.broken() && state_.is_shared()) {
    end(fail(Errc::remote, "the peer does not speak our control protocol"));
  } else if (reader_.broken() && state_.phase() == ha::SessionState::Phase::asking) {
    state_.on_answer(ha::SessionState::Answer::another);
    send_waiting_on();
    hear_first(reader_.rest());  // which finds the same
  }
  look_whether_sound();
}

void PeerSession::on_answer(const ControlReader::Message& message) {
  using Answer = ha::SessionState::Answer;
  state_.on_answer(message.type == ControlType::share    ? Answer::shares
                   : message.type == ControlType::absent ? Answer::absent
                                                         : Answer::another);
  if (state_.is_shared()) {
    open_waiting();
    return;
  }
  send_waiting_on();
  hear_first(message.bytes);
  if (!state_.is_over()) {
    hear_first(reader_.rest());
  }
}

void PeerSession::hear_first(std::span<const std::byte> bytes) {
  if (const auto first = streams_.find(0); first != streams_.end() && !bytes.empty()) {
    first->second->hear(bytes);
  }
}

void PeerSession::take(const SessionReader::Part& part) {
  using Meaning = ha::SessionState::Meaning;
  const ControlType type = part.message.type;
  const bool introduces =
      type == ControlType::hello || type == ControlType::rejoin || type == ControlType::probe;
  const auto found = streams_.find(part.connection);
  const Meaning meaning = state_.judge(part.connection, found != streams_.end(), introduces);
  if (meaning == Meaning::wrong || type == ControlType::share) {
    end(fail(Errc::remote, "the peer names a connection that its stream cannot have"));
  } else if (meaning == Meaning::fresh) {
    on_fresh(part);
  } else if (meaning == Meaning::full) {
    static_cast<void>(send(part.connection, encode_over(), true));
  } else if (meaning == Meaning::known && type != ControlType::over) {
    found->second->hear(part.message.bytes);
  } else if (meaning == Meaning::known) {
    SessionStream& one = *found->second;
    streams_.erase(found);
    state_.remove();
    outboxes_.erase(part.connection);
    one.end(fail(Errc::closed, "the peer has ended the connection's part of the stream"));
    look_whether_unused();
  }
}

void PeerSession::on_fresh(const SessionReader::Part& part) {
  auto stream = std::make_unique<SessionStream>(nullptr);
  stream->session_ = shared_from_this();
  stream->number_ = part.connection;
  stream->open_ = true;
  streams_[part.connection] = stream.get();
  if (host_ != nullptr) {
    host_->on_connection(std::move(stream), part.message);
  }
  if (is_used()) {
    idle_until_.reset();  // it was let in
  }
}

void PeerSession::look_whether_sound() {
  if (const char* broken = state_.broken(); broken != nullptr && !state_.is_over()) {
    NHA_LOG_ERROR("a fault of this program, please report it: it does not hold that {}", broken);
    end(fail(Errc::internal, broken));
  }
}

// --- time

void PeerSession::on_timer() {
  const auto self = shared_from_this();
  const Instant now = context_.now();
  open_waiting();
  const auto due = state_.answer_due();
  if (due && !is_used()) {
    send_waiting_on();  // the first one has gone before it was answered
    close();
  } else if (due && now >= *due) {
    send_waiting_on(false);
  }
  if (idle_until_ && !is_used() && now >= *idle_until_ && !state_.is_over()) {
    close();
  }
  if (!state_.is_over()) {
    drain();
    look_whether_sound();
    arm();
  }
}

void PeerSession::arm() {
  if (state_.is_over()) {
    return;
  }
  std::optional<Instant> due;
  const auto look_at = [&](Instant then) { due = due ? std::min(*due, then) : then; };
  if (state_.is_shared() && !waiting_.empty()) {
    look_at(context_.now());
  }
  if (const auto answer = state_.answer_due(); answer && !waiting_.empty()) {
    look_at(is_used() ? *answer : context_.now());
  }
  if (!outboxes_.empty()) {
    look_at(context_.now() + drain_interval);
  }
  if (idle_until_ && !is_used()) {
    look_at(*idle_until_);
  }
  if (due && timer_.armed()) {
    due = std::min(*due, timer_.deadline());  // what is written later does not put it off
  }
  if (due) {
    context_.timers().arm(timer_, *due);
  } else {
    context_.timers().cancel(timer_);
  }
}

}  // namespace nccl_ha
