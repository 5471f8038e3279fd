// What goes over a stream between two processes that have a key in common: both show it, then every
// record carries a tag, and with encryption nobody else can read it.
//
// Who dials speaks first, little-endian: u32 magic, u16 version, u16 flags (1: encrypt), u32 number
// of the key, 32 bytes drawn for this stream, a tag by the key over all that.  Who is dialled says
// nothing before that tag is right, and answers with the same, tagged by the key of this stream,
// which comes from the common key and both greetings.  Records follow both ways: u16 length, so
// many bytes, a tag over both and the record's place.  Either side's wish to encrypt holds for
// both.  Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/base/aead.h"
#include "runtime/base/key_ring.h"
#include "runtime/base/result.h"

namespace nccl_ha {

class StreamSeal {
 public:
  using Nonce = std::array<std::byte, 32>;
  static constexpr size_t greeting_bytes = 12 + sizeof(Nonce) + tag_bytes;
  static constexpr size_t record_max = 16384;  ///< bytes that one carries

  /// `nonce` is drawn for this stream and no other.
  StreamSeal(std::shared_ptr<const KeyRing> keys, bool dials, bool encrypts, const Nonce& nonce);

  /// The first words of who dials.
  std::vector<std::byte> greet();
  /// Both have shown the key.
  bool open() const { return shared_.has_value(); }
  const SharedKey* shared() const { return shared_ ? &*shared_ : nullptr; }

  std::vector<std::byte> close(std::span<const std::byte> bytes);
  /// What was closed last, so many bytes, did not leave this process and never will.
  void take_back(size_t bytes) { out_->count -= (bytes + record_max - 1) / record_max; }
  struct Heard {
    std::vector<std::byte> bytes;   ///< for whoever the stream is for
    std::vector<std::byte> answer;  ///< to be sent
  };
  /// What came.  An error: it is not from who has the key, or not what that one sent next; nothing
  /// may be heard after it.
  Result<Heard> hear(std::span<const std::byte> bytes);

 private:
  struct Direction {
    Aead key;
    uint64_t count = 0;
  };
  std::vector<std::byte> greeting(const HashKey& key) const;
  Result<void> on_greeting(std::span<const std::byte, greeting_bytes> greeting, Heard& heard);
  void agree(std::span<const std::byte> other);

  const std::shared_ptr<const KeyRing> keys_;
  const bool dials_;
  const bool encrypts_;
  const Nonce nonce_;
  uint32_t number_ = 0;  ///< of the common key
  std::vector<std::byte> input_;
  std::optional<SharedKey> shared_;
  std::optional<Direction> out_;
  std::optional<Direction> in_;
};

}  // namespace nccl_ha
