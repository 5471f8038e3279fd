#include "actors/control.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "runtime/base/keyed_hash.h"

namespace nccl_ha {
namespace {

constexpr size_t text_max = 600;
constexpr size_t host_max = 64;
constexpr size_t missing_max = 120;  // eight of them fit into a hello
constexpr std::string_view peer_reports = "the peer reports: ";

class Writer {
 public:
  explicit Writer(ControlType type) {
    number<uint32_t>(control_magic);
    number<uint16_t>(static_cast<uint16_t>(type));
    number<uint16_t>(0);
    number<uint64_t>(0);  // set_numbers()
  }
  template <class T>
  void number(T value) {
    const size_t at = out_.size();
    out_.resize(at + sizeof value);
    std::memcpy(out_.data() + at, &value, sizeof value);
  }
  void text(const std::string& value, size_t max) {
    const size_t length = std::min(value.size(), max);
    number<uint16_t>(static_cast<uint16_t>(length));
    const auto* bytes = reinterpret_cast<const std::byte*>(value.data());
    out_.insert(out_.end(), bytes, bytes + length);
  }
  void paths(const std::vector<PathEnd>& paths) {
    number<uint8_t>(static_cast<uint8_t>(paths.size()));
    for (const PathEnd& one : paths) {
      path(one);
    }
  }
  void path(const PathEnd& path) {
    number<uint16_t>(path.address.length);
    out_.insert(out_.end(), path.address.bytes.begin(),
                path.address.bytes.begin() + path.address.length);
    if (path.address.length == 0) {
      text(path.missing, missing_max);
    }
    number(path.control_address);
    number(path.control_key);
    number(path.table.address);
    number(path.table.key);
  }
  void process(const ProcessId& process) {
    number(process.pid);
    number(process.started);
  }
  void rejoin(const RejoinPoint& point) {
    number(point.port);
    number(point.token.told());
    process(point.process);
    number(point.family);
    number(point.address);
  }
  void rails(const std::vector<ha::Rail>& rails) {
    number<uint8_t>(static_cast<uint8_t>(rails.size()));
    for (const ha::Rail& one : rails) {
      rail(one);
    }
  }
  void rail(const ha::Rail& rail) {
    number(rail.kind);
    number(rail.number);
    number(static_cast<uint8_t>(rail.primary));
    number(rail.distance);
    number(rail.family);
    number(rail.prefix_len);
    number(rail.address);
  }
  void terms(const ha::RailTerms& terms) {
    number(static_cast<uint8_t>(terms.mode));
    number(terms.rails);
    number(terms.lanes);
    number(terms.prefix_len);
    number(terms.family);
    number(terms.address);
  }
  void agreement(const Welcome& welcome) {
    number(static_cast<uint8_t>(welcome.agreed.path_class));
    number(welcome.agreed.rails);
    number(welcome.agreed.lanes);
    number(welcome.rail_ends);
  }
  std::vector<std::byte> finish() {
    const auto length = static_cast<uint16_t>(out_.size() - control_header_bytes);
    std::memcpy(out_.data() + 6, &length, sizeof length);
    return std::move(out_);
  }

 private:
  std::vector<std::byte> out_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> in) : in_(in) {}
  template <class T>
  T number() {
    T value{};
    if (in_.size() < sizeof value) {
      ok_ = false;
      return value;
    }
    std::memcpy(&value, in_.data(), sizeof value);
    in_ = in_.subspan(sizeof value);
    return value;
  }
  std::span<const std::byte> bytes(size_t max) {
    const size_t length = number<uint16_t>();
    if (!ok_ || length > max || length > in_.size()) {
      ok_ = false;
      return {};
    }
    const auto result = in_.first(length);
    in_ = in_.subspan(length);
    return result;
  }
  std::string text(size_t max) {
    const auto raw = bytes(max);
    std::string result(reinterpret_cast<const char*>(raw.data()), raw.size());
    // It ends up in log lines: nothing a terminal would act on.
    std::replace_if(
        result.begin(), result.end(),
        [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }, '?');
    return result;
  }
  std::vector<PathEnd> paths() {
    const size_t count = number<uint8_t>();
    std::vector<PathEnd> result;
    if (count == 0 || count > paths_max) {
      ok_ = false;
    }
    for (size_t i = 0; ok_ && i < count; ++i) {
      result.push_back(path());
    }
    return result;
  }
  PathEnd path() {
    PathEnd end;
    end.address = PathAddress::from(bytes(fabric::path_address_max)).value_or(PathAddress{});
    if (end.address.length == 0) {
      end.missing = text(missing_max);
    }
    end.control_address = number<uint64_t>();
    end.control_key = number<uint32_t>();
    end.table.address = number<uint64_t>();
    end.table.key = number<uint32_t>();
    return end;
  }
  ProcessId process() {
    ProcessId process;
    process.pid = number<uint32_t>();
    process.started = number<uint64_t>();
    return process;
  }
  RejoinPoint rejoin() {
    RejoinPoint point;
    point.port = number<uint16_t>();
    point.token = Secret::heard(number<uint64_t>());
    point.process = process();
    point.family = number<uint8_t>();
    point.address = number<std::array<uint8_t, 16>>();
    ok_ = ok_ && (point.family == 0 || point.family == 4 || point.family == 6);
    return point;
  }
  std::vector<ha::Rail> rails() {
    std::vector<ha::Rail> result(below(ha::rails_max + 1));
    for (ha::Rail& one : result) {
      one = rail();
    }
    return result;
  }
  ha::Rail rail() {
    ha::Rail rail;
    rail.kind = number<uint8_t>();
    rail.number = number<uint16_t>();
    rail.primary = flag();
    rail.distance = number<uint8_t>();
    rail.family = number<uint8_t>();
    rail.prefix_len = below(129);
    rail.address = number<std::array<uint8_t, 16>>();
    ok_ = ok_ && (rail.family == 0 || rail.family == 4 || rail.family == 6);
    return rail;
  }
  ha::RailTerms terms() {
    ha::RailTerms terms;
    terms.mode = static_cast<ha::RailMode>(below(ha::rail_modes));
    terms.rails = below(ha::device_rails_max + 1);
    terms.lanes = below(lanes_max + 1);
    terms.prefix_len = below(129);
    terms.family = number<uint8_t>();
    terms.address = number<std::array<uint8_t, 16>>();
    ok_ = ok_ && terms.rails != 0 && terms.lanes != 0 &&
          (terms.family == 0 || terms.family == 4 || terms.family == 6);
    return terms;
  }
  /// After the rails.
  void agreement(Welcome& welcome) {
    welcome.agreed.path_class = static_cast<ha::PathClass>(below(2));
    welcome.agreed.rails = below(ha::device_rails_max);
    welcome.agreed.lanes = below(lanes_max + 1);
    welcome.rail_ends = number<std::array<uint8_t, ha::device_rails_max - 1>>();
    const size_t lanes = size_t{welcome.agreed.rails} * welcome.agreed.lanes;
    ok_ = ok_ && (welcome.agreed.rails == 0) == (lanes == 0) &&
          lanes + welcome.paths.size() + welcome.shadows <= lanes_max &&
          welcome.agreed.rails + welcome.shadows <= shadows_max;
    for (size_t i = 0; ok_ && i < welcome.agreed.rails; ++i) {
      ok_ = welcome.rail_ends[i] < welcome.rails.size();
    }
  }
  /// Anything else than 0 and 1 is bad.
  bool flag() {
    const auto value = number<uint8_t>();
    ok_ = ok_ && value <= 1;
    return value == 1;
  }
  uint8_t below(size_t limit) {
    const auto value = number<uint8_t>();
    ok_ = ok_ && value < limit;
    return value;
  }
  bool good() const { return ok_; }
  bool done() const { return ok_ && in_.empty(); }

 private:
  std::span<const std::byte> in_;
  bool ok_ = true;
};

}  // namespace

std::optional<uint16_t> common_version(const VersionRange& peer) {
  const uint16_t newest = std::min(own_versions.newest, peer.newest);
  return own_versions.has(newest) && peer.has(newest) ? std::optional(newest) : std::nullopt;
}

std::string no_common_version(const VersionRange& peer) {
  return fmt::format(
      "protocol versions {} to {} here, {} to {} there; install the same nccl-ha on both hosts, or "
      "two that share a version",
      own_versions.oldest, own_versions.newest, peer.oldest, peer.newest);
}

std::optional<PathAddress> PathAddress::from(std::span<const std::byte> view) {
  PathAddress address;
  if (view.size() > address.bytes.size()) {
    return std::nullopt;
  }
  address.length = static_cast<uint16_t>(view.size());
  std::copy(view.begin(), view.end(), address.bytes.begin());
  return address;
}

void set_numbers(std::span<std::byte> frame, uint32_t number, uint32_t confirmed) {
  std::memcpy(frame.data() + 8, &number, sizeof number);
  std::memcpy(frame.data() + 12, &confirmed, sizeof confirmed);
}

std::string_view without_reporter(std::string_view text) {
  while (text.starts_with(peer_reports)) {
    text.remove_prefix(peer_reports.size());
  }
  return text;
}

uint64_t connection_key(const Hello& hello) {
  // One listen may serve several connectors, one process may have several connections to it.
  // Logs show it, and it must not show the token.
  HashKey secret{};
  const std::array<uint64_t, 2> parts = {hello.nonce, hello.rejoin.token.told()};
  static_assert(sizeof parts <= sizeof secret);
  std::memcpy(secret.data(), parts.data(), sizeof parts);
  const Tag tag = make_tag(secret, "name of a connection",
                           std::as_bytes(std::span(&hello.rejoin.process.pid, 1)));
  uint64_t key = 0;
  std::memcpy(&key, tag.data(), sizeof key);
  return key == 0 ? 1 : key;
}

Error from_peer(std::string_view text) {
  return fail(Errc::remote, std::string(peer_reports) + std::string(without_reporter(text)));
}

std::vector<std::byte> encode_confirm() { return Writer(ControlType::confirm).finish(); }

std::vector<std::byte> encode_retire() { return Writer(ControlType::retire).finish(); }

std::vector<std::byte> encode_ask() { return Writer(ControlType::ask).finish(); }

std::vector<std::byte> encode_share() { return Writer(ControlType::share).finish(); }

std::vector<std::byte> encode_of(uint32_t connection) {
  std::vector<std::byte> frame = Writer(ControlType::of).finish();
  set_numbers(frame, connection, 0);
  return frame;
}

std::vector<std::byte> encode_over() { return Writer(ControlType::over).finish(); }

std::vector<std::byte> encode(ControlType type, const RejoinCall& call) {
  Writer out(type);
  out.number(call.token.told());
  out.process(call.process);
  if (call.shares) {  // which versions without sessions never hear
    out.number(uint8_t{1});
  }
  return out.finish();
}

std::vector<std::byte> encode(ControlType type, const ProcessId& process) {
  Writer out(type);
  out.process(process);
  return out.finish();
}

std::optional<RejoinCall> decode_call(std::span<const std::byte> payload) {
  Reader in(payload);
  RejoinCall call;
  call.token = Secret::heard(in.number<uint64_t>());
  call.process = in.process();
  if (!in.done()) {
    call.shares = in.flag();
  }
  return in.done() ? std::optional(call) : std::nullopt;
}

std::optional<ProcessId> decode_process(std::span<const std::byte> payload) {
  Reader in(payload);
  const ProcessId process = in.process();
  return in.done() ? std::optional(process) : std::nullopt;
}

std::vector<std::byte> encode(const Hello& hello) {
  Writer out(ControlType::hello);
  out.number(hello.versions.newest);  // where older ones name their only one
  out.number(hello.nonce);
  out.number(hello.versions.oldest);
  out.rejoin(hello.rejoin);
  out.number(hello.attempt);
  out.number(static_cast<uint8_t>(hello.kind));
  out.number(hello.traffic_class);
  out.number(hello.service_level);
  out.number(static_cast<uint8_t>(hello.backup));
  out.number(hello.shadows);
  out.terms(hello.rails);
  out.text(hello.host, host_max);
  out.paths(hello.paths);
  if (hello.versions.newest >= first_version_with_sessions) {
    out.number(static_cast<uint8_t>(hello.shares));
  }
  return out.finish();
}

std::vector<std::byte> encode(const Welcome& welcome) {
  Writer out(ControlType::welcome);
  out.number(welcome.version);
  out.rejoin(welcome.rejoin);
  out.number(static_cast<uint8_t>(welcome.takes_eager));
  out.number(static_cast<uint8_t>(welcome.backup));
  out.number(welcome.shadows);
  out.text(welcome.host, host_max);
  out.paths(welcome.paths);
  out.rails(welcome.rails);
  out.agreement(welcome);
  return out.finish();
}

std::vector<std::byte> encode(ControlType type, const Refusal& refusal) {
  Writer out(type);
  out.number(static_cast<uint8_t>(refusal.code));
  out.text(refusal.text, text_max);
  return out.finish();
}

std::vector<std::byte> encode(const CloseNotice& notice) {
  Writer out(ControlType::close);
  out.number(notice.groups_completed);
  out.number(notice.eager_arrived);
  return out.finish();
}

std::vector<std::byte> encode(ControlType type, const PathNotice& notice) {
  Writer out(type);
  out.number(notice.path);
  out.number(notice.epoch);
  out.number(static_cast<uint8_t>(notice.rejected));
  out.number(static_cast<uint8_t>(notice.unproven));
  out.text(notice.why, text_max);
  return out.finish();
}

std::vector<std::byte> encode(const FenceReport& report) {
  Writer out(ControlType::fenced);
  out.number(report.path);
  out.number(report.epoch);
  out.number(report.arrived.completed);
  out.number(static_cast<uint8_t>(report.arrived.groups.size()));
  for (const ha::ArrivalReport::Group& group : report.arrived.groups) {
    out.number(static_cast<uint8_t>(group.whole));
    out.number(static_cast<uint8_t>(group.chunks.size()));
    for (const uint16_t chunks : group.chunks) {
      out.number(chunks);
    }
  }
  return out.finish();
}

std::vector<std::byte> encode(const LinkNotice& notice) {
  Writer out(ControlType::link_back);
  out.number(notice.rail);
  return out.finish();
}

std::vector<std::byte> encode(const EndNotice& notice) {
  Writer out(ControlType::end);
  out.number(notice.place);
  out.rail(notice.rail);
  return out.finish();
}

std::vector<std::byte> encode(ControlType type, const PathOffer& offer) {
  Writer out(type);
  out.number(offer.path);
  out.number(offer.epoch);
  out.number(offer.rail);
  out.path(offer.end);
  return out.finish();
}

std::optional<Hello> decode_hello(std::span<const std::byte> payload) {
  Reader in(payload);
  Hello hello;
  VersionRange& versions = hello.versions;
  versions.newest = in.number<uint16_t>();
  hello.nonce = in.number<uint64_t>();
  versions.oldest =
      versions.newest < first_version_with_range ? versions.newest : in.number<uint16_t>();
  if (!in.good() || versions.oldest > versions.newest) {
    return std::nullopt;
  }
  if (!common_version(versions)) {
    return hello;  // the rest may look different; the caller will refuse it by its versions
  }
  hello.rejoin = in.rejoin();
  hello.attempt = in.number<uint32_t>();
  hello.kind = fabric::FabricKind{in.number<uint8_t>()};  // whether it is known, the provider says
  hello.traffic_class = in.number<uint8_t>();
  hello.service_level = in.number<uint8_t>();
  hello.backup = in.flag();
  hello.shadows = in.number<uint8_t>();
  hello.rails = in.terms();
  hello.host = in.text(host_max);
  hello.paths = in.paths();
  if (versions.newest >= first_version_with_sessions) {
    hello.shares = in.flag();
  }
  const bool whole = versions.newest > own_versions.newest ? in.good() : in.done();
  return whole ? std::optional(hello) : std::nullopt;
}

std::optional<Welcome> decode_welcome(std::span<const std::byte> payload) {
  Reader in(payload);
  Welcome welcome;
  welcome.version = in.number<uint16_t>();
  if (in.good() && !own_versions.has(welcome.version)) {
    return welcome;
  }
  welcome.rejoin = in.rejoin();
  welcome.takes_eager = in.flag();
  welcome.backup = in.flag();
  welcome.shadows = in.below(shadows_max + 1);
  welcome.host = in.text(host_max);
  welcome.paths = in.paths();
  welcome.rails = in.rails();
  in.agreement(welcome);
  return in.done() ? std::optional(welcome) : std::nullopt;
}

std::optional<Refusal> decode_refusal(std::span<const std::byte> payload) {
  Reader in(payload);
  Refusal refusal;
  const auto code = in.number<uint8_t>();
  refusal.code =
      code == static_cast<uint8_t>(Errc::invalid_usage) ? Errc::invalid_usage : Errc::remote;
  refusal.text = in.text(text_max);
  return in.done() ? std::optional(refusal) : std::nullopt;
}

std::optional<CloseNotice> decode_close(std::span<const std::byte> payload) {
  Reader in(payload);
  CloseNotice notice;
  notice.groups_completed = in.number<uint64_t>();
  notice.eager_arrived = in.number<uint64_t>();
  return in.done() ? std::optional(notice) : std::nullopt;
}

std::optional<PathNotice> decode_notice(std::span<const std::byte> payload) {
  Reader in(payload);
  PathNotice notice;
  notice.path = in.below(lanes_max);
  notice.epoch = in.number<uint32_t>();
  notice.rejected = in.flag();
  notice.unproven = in.flag();
  notice.why = in.text(text_max);
  return in.done() ? std::optional(notice) : std::nullopt;
}

std::optional<FenceReport> decode_report(std::span<const std::byte> payload) {
  Reader in(payload);
  FenceReport report;
  report.path = in.below(lanes_max);
  report.epoch = in.number<uint32_t>();
  report.arrived.completed = in.number<uint64_t>();
  report.arrived.groups.resize(in.below(report_groups_max + 1));
  for (ha::ArrivalReport::Group& group : report.arrived.groups) {
    group.whole = in.flag();
    group.chunks.resize(in.below(report_positions_max + 1));
    for (uint16_t& chunks : group.chunks) {
      chunks = in.number<uint16_t>();
    }
    if (!in.good()) {
      return std::nullopt;
    }
  }
  return in.done() ? std::optional(std::move(report)) : std::nullopt;
}

std::optional<PathOffer> decode_offer(std::span<const std::byte> payload) {
  Reader in(payload);
  PathOffer offer;
  offer.path = in.below(lanes_max);
  offer.epoch = in.number<uint32_t>();
  offer.rail = in.number<uint8_t>();
  offer.end = in.path();
  return in.done() ? std::optional(offer) : std::nullopt;
}

std::optional<LinkNotice> decode_link_back(std::span<const std::byte> payload) {
  Reader in(payload);
  LinkNotice notice;
  notice.rail = in.below(ha::rails_max);
  return in.done() ? std::optional(notice) : std::nullopt;
}

std::optional<EndNotice> decode_end(std::span<const std::byte> payload) {
  Reader in(payload);
  EndNotice notice;
  notice.place = in.below(ha::rails_max);
  notice.rail = in.rail();
  return in.done() ? std::optional(notice) : std::nullopt;
}

std::optional<ControlReader::Message> ControlReader::next() {
  const auto frame = frames_.next();
  return frame ? std::optional(Message{static_cast<ControlType>(frame->type), frame->payload,
                                       static_cast<uint32_t>(frame->number),
                                       static_cast<uint32_t>(frame->number >> 32), frame->bytes})
               : std::nullopt;
}

}  // namespace nccl_ha
