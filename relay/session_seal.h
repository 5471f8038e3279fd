// Shows both ends of a session's stream that the other one has the cluster's key or a ticket made
// with it, and that nobody changed, repeated or left out a message.
//
// Who dials says hello with a number drawn at random and the tag of the key that it names; who is
// dialled answers only that, with a number of its own.  From both numbers and that key comes a key
// of this stream, of which each message after the first one carries a tag, over which of the two
// says it, its place in order and itself.  Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "relay/session_message.h"
#include "relay/ticket.h"
#include "runtime/base/aead.h"
#include "runtime/base/keyed_hash.h"

namespace nccl_ha::relay {

class SessionSeal {
 public:
  /// `nonce` is drawn for this stream and no other.  `peer`: the ticket of who is dialled.
  /// `key`: SealKeys::to_dial
  SessionSeal(SealKeys keys, bool dials, const SessionHello::Nonce& nonce, const Ticket& peer = {},
              bool encrypts = false, uint32_t key = 0)
      : keys_(std::move(keys)),
        dials_(dials),
        nonce_(nonce),
        encrypts_(encrypts),
        named_(dials ? keys_.to_dial(peer, key) : std::nullopt) {}

  /// The first message of this side, already as bytes: who is dialled says it after on_hello().
  /// An error: there is no key to say it with.
  Result<std::vector<std::byte>> hello();
  /// The other side's, and its message as it came.  An error: it has no key of ours.
  Result<void> on_hello(const SessionHello& hello, std::span<const std::byte> sealed);
  /// The key that the dialler names is one of ours.
  bool knows(const SessionHello& hello) const { return keys_.find(hello.ticket).has_value(); }
  /// There is a key: from now on all messages of either side are sealed.
  bool open() const { return key_.has_value(); }
  /// For what goes beside the stream, once it is open: encrypted where either side wants it.
  SharedKey shared() const;
  /// Whose ticket the stream is sealed with, once it is open; none: with the cluster's key.
  Ticket ticket() const { return open() ? named_->ticket : Ticket{}; }

  /// A message as it goes out.
  std::vector<std::byte> seal(std::span<const std::byte> message);
  /// One that came in, without what was added; an error: it is not the other side's next.
  Result<std::vector<std::byte>> unseal(std::span<const std::byte> sealed);

 private:
  Tag tag_of(bool from_dialler, uint64_t number, std::span<const std::byte> message) const;

  SealKeys keys_;
  bool dials_;
  SessionHello::Nonce nonce_;
  bool encrypts_;
  std::optional<NamedKey> named_;  ///< by the dialler
  std::optional<HashKey> key_;     ///< of this stream
  uint64_t sent_ = 0;
  uint64_t received_ = 0;
};

}  // namespace nccl_ha::relay
