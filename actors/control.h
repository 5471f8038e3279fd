// Messages of a connection's control stream (TCP), framed and bounds-checked.
//
//   0 u32 magic   4 u16 type   6 u16 length of what follows (at most control_payload_max)
//
// The connector speaks first.  Whoever does not send a well-formed hello with the listener's nonce
// is a stranger and is turned away.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/fabric/path.h"
#include "runtime/fabric/provider.h"
#include "runtime/result.h"

namespace nccl_ha {

inline constexpr uint32_t control_magic = 0x4148434E;
inline constexpr uint16_t control_version = 3;
inline constexpr size_t control_header_bytes = 8;
inline constexpr size_t control_payload_max = 2048;

inline constexpr size_t paths_max = 8;  ///< of one connection

enum class ControlType : uint16_t { hello = 1, welcome = 2, reject = 3, close = 4, failure = 5 };

/// A path's opaque address with its length.
struct PathAddress {
  uint16_t length = 0;
  std::array<std::byte, fabric::path_address_max> bytes{};
  std::span<const std::byte> view() const { return std::span(bytes).first(length); }
  static std::optional<PathAddress> from(std::span<const std::byte> view);
};

struct Hello {
  uint16_t version = control_version;
  uint64_t nonce = 0;        ///< from the listener's handle
  uint64_t cts_address = 0;  ///< where the receiver writes its clear-to-send entries
  uint32_t cts_key = 0;
  uint32_t process = 0;                                    ///< pid, for logs
  fabric::FabricKind kind = fabric::FabricKind::datagram;  ///< of all paths
  uint8_t traffic_class = 0;  ///< the sender decides both, for both directions
  uint8_t service_level = 0;
  std::string host;                ///< for logs
  std::vector<PathAddress> paths;  ///< 1 to paths_max
};

struct Welcome {
  uint16_t version = control_version;
  uint32_t process = 0;
  uint64_t sizes_address = 0;  ///< where the sender writes SizeRecords
  uint32_t sizes_key = 0;
  std::string host;
  std::vector<PathAddress> paths;  ///< as many as in the hello, in its order
};

/// reject and failure
struct Refusal {
  Errc code = Errc::remote;
  std::string text;
};

struct CloseNotice {
  uint64_t groups_completed = 0;  ///< receiver only: every group below was received whole
};

std::vector<std::byte> encode(const Hello& hello);
std::vector<std::byte> encode(const Welcome& welcome);
std::vector<std::byte> encode(ControlType type, const Refusal& refusal);
std::vector<std::byte> encode(const CloseNotice& notice);

std::optional<Hello> decode_hello(std::span<const std::byte> payload);
std::optional<Welcome> decode_welcome(std::span<const std::byte> payload);
std::optional<Refusal> decode_refusal(std::span<const std::byte> payload);
std::optional<CloseNotice> decode_close(std::span<const std::byte> payload);

/// Cuts a byte stream into messages.  Bounded memory; the first malformed header ends it for good.
class ControlReader {
 public:
  struct Message {
    ControlType type;
    std::span<const std::byte> payload;
  };
  /// Appends; false when the stream is not ours (wrong magic, type or length).
  bool feed(std::span<const std::byte> bytes);
  /// The next whole message; its payload is valid until the next call of feed() or next().
  std::optional<Message> next();
  bool broken() const { return broken_; }

 private:
  std::vector<std::byte> buffer_;
  size_t consumed_ = 0;
  bool broken_ = false;
};

}  // namespace nccl_ha
