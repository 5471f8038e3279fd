// Messages of a connection's control stream (TCP), framed and bounds-checked.
//
//   0 u32 magic   4 u16 type   6 u16 length of what follows the header (at most
//   control_payload_max) 8 u32 number   12 u32 confirmed: the peer has taken all numbers below
//
// Numbered messages (ha/control_sequencer.h) travel over the paths too, so that they get
// through when the network beneath the stream is the one that failed.  The handshake and messages
// of connections without failover have number 0.
//
// The connector speaks first.  Whoever does not send a well-formed hello with the nonce of a listen
// is not authenticated and is rejected.  The hello names the versions that its sender speaks, and
// the answer the newest that both do, which is the connection's from then on, on each of its
// streams and paths.  Newer versions may add fields at a hello's end only.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "actors/frame_reader.h"
#include "ha/ledger.h"
#include "ha/rails.h"
#include "ha/shadow.h"
#include "runtime/base/result.h"
#include "runtime/base/secret.h"
#include "runtime/fabric/device.h"
#include "runtime/fabric/path.h"

namespace nccl_ha {

inline constexpr uint32_t control_magic = 0x4148434E;
inline constexpr uint16_t control_version = 18;
inline constexpr uint16_t first_version_with_range = 17;  ///< hellos before name one version
/// Streams may be shared (docs/sessions.md).
inline constexpr uint16_t first_version_with_sessions = 18;
inline constexpr size_t control_header_bytes = FrameReader::header_bytes;
inline constexpr size_t control_payload_max = 6144;

inline constexpr size_t paths_max = 8;    ///< that a handshake makes
inline constexpr size_t shadows_max = 4;  ///< paths over NICs that stand by, made later
/// The same over other rails of the device, beside so many paths of a handshake.
constexpr size_t rail_lanes_max(size_t paths) { return 12 - paths; }
inline constexpr size_t lanes_max = 16;
static_assert(paths_max + rail_lanes_max(paths_max) + shadows_max == lanes_max);

/// Versions of this protocol, from the oldest to the newest that a process speaks.
struct VersionRange {
  uint16_t oldest = 0;
  uint16_t newest = 0;
  bool has(uint16_t version) const { return version >= oldest && version <= newest; }
};
/// A version speaks with the one before it.
inline constexpr VersionRange own_versions{
    std::max<uint16_t>(first_version_with_range, control_version - 1), control_version};
/// The newest that this process and the peer speak; nullopt: none.
std::optional<uint16_t> common_version(const VersionRange& peer);
/// For who looks after both hosts.
std::string no_common_version(const VersionRange& peer);

enum class ControlType : uint16_t {
  hello = 1,
  welcome = 2,
  reject = 3,
  close = 4,
  failure = 5,
  // Of one path, the n-th of the connection (docs/failover-protocol.md):
  suspect = 6,     ///< receiver: my side of it failed
  down = 7,        ///< sender: I have closed my side
  fenced = 8,      ///< receiver: mine is closed too, and this had arrived
  rebuild = 9,     ///< sender: a new one begins here
  rebuilt = 10,    ///< receiver: and ends here
  confirm = 11,    ///< nothing but its header
  rejoin = 12,     ///< first on a stream that takes the place of the connection's
  retire = 13,     ///< last on a stream whose place was taken: its end means nothing
  probe = 14,      ///< first on a stream that only asks whether the connection is known there
  present = 15,    ///< it is: the answer to rejoin and probe
  absent = 16,     ///< it is not; or nothing listens with the nonce of a hello
  ask = 17,        ///< over a stream: answered by `confirm` at once, to show that the peer runs
  link_back = 18,  ///< receiver: a NIC of mine where paths may end has its link again
  end = 19,        ///< receiver: a place of mine where paths may end has another address, or is new
  // Of a stream that several connections share (docs/sessions.md):
  share = 20,  ///< to who dialled: others may be set up in it
  of = 21,     ///< the message behind it is of the connection with this one's number
  over = 22,   ///< the connection's part of the stream ends
};

/// A process among all that its host has run.
struct ProcessId {
  uint32_t pid = 0;
  uint64_t started = 0;  ///< clock ticks after the host's start
  bool operator==(const ProcessId&) const = default;
};

/// Where one end of a connection takes a new control stream, and answers whether it is still there.
struct RejoinPoint {
  uint16_t port = 0;  ///< 0: nowhere
  Secret token;
  ProcessId process;
  /// Its own address of the control stream: the peer sees another one behind address translation.
  uint8_t family = 0;  ///< 4 or 6; 0: unknown
  std::array<uint8_t, 16> address{};
};

/// rejoin and probe: whom it is for
struct RejoinCall {
  Secret token;
  ProcessId process;
  bool shares = false;  ///< other connections may follow in the stream
};

/// A path's opaque address with its length.
struct PathAddress {
  uint16_t length = 0;
  std::array<std::byte, fabric::path_address_max> bytes{};
  std::span<const std::byte> view() const { return std::span(bytes).first(length); }
  static std::optional<PathAddress> from(std::span<const std::byte> view);
};

/// Memory as a path's NIC names it.
struct RemoteTable {
  uint64_t address = 0;
  uint32_t key = 0;
  bool operator==(const RemoteTable&) const = default;
};

/// One end of a path.
struct PathEnd {
  PathAddress address;           ///< empty: there is no path at this end yet
  std::string missing;           ///< why, never empty then
  uint64_t control_address = 0;  ///< where control messages for this end may be written; 0: nowhere
  uint32_t control_key = 0;
  RemoteTable table;  ///< what the peer writes on this path: clear-to-sends or DataTables
};

struct Hello {
  VersionRange versions = own_versions;  ///< without a common one nothing is known but the nonce
  uint64_t nonce = 0;                    ///< from the handle of the listen
  RejoinPoint rejoin;
  uint32_t attempt = 0;       ///< of the connector's to make this connection; they count up
  fabric::FabricKind kind{};  ///< of all paths
  uint8_t traffic_class = 0;  ///< the sender decides both, for both directions
  uint8_t service_level = 0;
  bool backup = false;         ///< paths may be replaced: failover is on
  uint8_t shadows = 0;         ///< paths over other NICs that it would make, at most
  ha::RailTerms rails;         ///< of its device
  std::string host;            ///< for logs
  std::vector<PathEnd> paths;  ///< 1 to paths_max
  bool shares = false;         ///< other connections may follow in the stream
};

/// What both sides call the connection that begins with it, and no other one.
uint64_t connection_key(const Hello& hello);

struct Welcome {
  uint16_t version = control_version;  ///< the connection's; not of ours: nothing else is known
  RejoinPoint rejoin;
  bool takes_eager = false;  ///< eager messages may come: the processor reaches all of its memory
  bool backup = false;       ///< both sides want it
  uint8_t shadows = 0;       ///< as many as both sides want
  std::string host;
  std::vector<PathEnd> paths;   ///< as many as in the hello, in its order
  std::vector<ha::Rail> rails;  ///< where a shadow may end, at most ha::rails_max
  ha::RailAgreement agreed;
  /// Which of `rails` the device's are, from the second one on: as many as were agreed on.
  std::array<uint8_t, ha::device_rails_max - 1> rail_ends{};
};

/// reject and failure
struct Refusal {
  Errc code = Errc::remote;
  std::string text;
};

/// What the peer said went wrong, as an error of this side.  It may have had it from here.
Error from_peer(std::string_view text);
/// The same without saying who reports it, for a message that may go back there.
std::string_view without_reporter(std::string_view text);

struct CloseNotice {
  /// Every group below was received whole; of a sender: every send of it was done.
  uint64_t groups_completed = 0;
  /// Of a sender: every eager message below has arrived.
  uint64_t eager_arrived = 0;
};

/// suspect and down
struct PathNotice {
  uint8_t path = 0;
  uint32_t epoch = 0;
  bool rejected = false;  ///< of a shadow: the device there does not take the connection's memory
  bool unproven = false;  ///< down: the sender's device may still write what had come over the path
  std::string why;
};

/// fenced
struct FenceReport {
  uint8_t path = 0;
  uint32_t epoch = 0;
  ha::ArrivalReport arrived;  ///< at most report_groups_max groups
};
inline constexpr size_t report_groups_max = 64;
inline constexpr size_t report_positions_max = 8;

/// rebuild and rebuilt
struct PathOffer {
  uint8_t path = 0;
  uint32_t epoch = 0;
  uint8_t rail = 0;  ///< rebuild on another NIC: which of the welcome's rails it is for
  PathEnd end;
};

/// link_back
struct LinkNotice {
  uint8_t rail = 0;  ///< which of the welcome's rails
};

/// end
struct EndNotice {
  uint8_t place = 0;  ///< which of the welcome's rails, or the next one
  ha::Rail rail;
};

std::vector<std::byte> encode_confirm();
std::vector<std::byte> encode_retire();
std::vector<std::byte> encode_ask();
std::vector<std::byte> encode_share();
std::vector<std::byte> encode_of(uint32_t connection);
std::vector<std::byte> encode_over();
/// rejoin or probe
std::vector<std::byte> encode(ControlType type, const RejoinCall& call);
/// present or absent
std::vector<std::byte> encode(ControlType type, const ProcessId& process);
std::optional<RejoinCall> decode_call(std::span<const std::byte> payload);
std::optional<ProcessId> decode_process(std::span<const std::byte> payload);
std::vector<std::byte> encode(const Hello& hello);
std::vector<std::byte> encode(const Welcome& welcome);
std::vector<std::byte> encode(ControlType type, const Refusal& refusal);
std::vector<std::byte> encode(const CloseNotice& notice);
std::vector<std::byte> encode(ControlType type, const PathNotice& notice);
std::vector<std::byte> encode(const FenceReport& report);
std::vector<std::byte> encode(ControlType type, const PathOffer& offer);
std::vector<std::byte> encode(const LinkNotice& notice);
std::vector<std::byte> encode(const EndNotice& notice);

std::optional<Hello> decode_hello(std::span<const std::byte> payload);
std::optional<Welcome> decode_welcome(std::span<const std::byte> payload);
std::optional<Refusal> decode_refusal(std::span<const std::byte> payload);
std::optional<CloseNotice> decode_close(std::span<const std::byte> payload);
std::optional<PathNotice> decode_notice(std::span<const std::byte> payload);
std::optional<FenceReport> decode_report(std::span<const std::byte> payload);
std::optional<PathOffer> decode_offer(std::span<const std::byte> payload);
std::optional<LinkNotice> decode_link_back(std::span<const std::byte> payload);
std::optional<EndNotice> decode_end(std::span<const std::byte> payload);

/// Writes number and confirmation into an encoded message.
void set_numbers(std::span<std::byte> frame, uint32_t number, uint32_t confirmed);

/// Cuts a byte stream into messages.  Bounded memory; the first malformed header ends it for good.
class ControlReader {
 public:
  struct Message {
    ControlType type;
    std::span<const std::byte> payload;
    uint32_t number = 0;
    uint32_t confirmed = 0;
    std::span<const std::byte> bytes;  ///< all of it, valid as the payload is
  };
  /// Appends; false when the stream is not ours (wrong magic, type or length).
  bool feed(std::span<const std::byte> bytes) { return frames_.feed(bytes); }
  /// The next whole message; its payload is valid until the next call of feed() or next().
  std::optional<Message> next();
  bool broken() const { return frames_.broken(); }
  /// What is behind the messages that were given out, whole or not.
  std::span<const std::byte> rest() const { return frames_.rest(); }

 private:
  static constexpr FrameReader::Rules rules{control_magic, static_cast<uint16_t>(ControlType::over),
                                            control_payload_max};
  FrameReader frames_{rules};
};

}  // namespace nccl_ha
