// What an unknown peer must not guess: tokens, nonces, numbers that packets begin with.  A source
// of their own fills them, never the generator of jitter, of which four outputs tell all others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace nccl_ha {

/// A number that only its owner and whom it told know.  Who has it may do what it stands for.
class Secret {
 public:
  /// None.
  constexpr Secret() = default;
  /// One that a message of its owner has.
  static constexpr Secret heard(uint64_t bits) { return Secret(bits); }
  /// For a message to whom it is meant for; not for logs.
  constexpr uint64_t told() const { return bits_; }
  constexpr explicit operator bool() const { return bits_ != 0; }
  friend constexpr bool operator==(Secret, Secret) = default;
  friend constexpr bool operator<(Secret one, Secret other) { return one.bits_ < other.bits_; }

 private:
  friend class SecretSource;
  constexpr explicit Secret(uint64_t bits) : bits_(bits) {}
  uint64_t bits_ = 0;
};

class SecretSource {
 public:
  /// Never fails.
  virtual void fill(std::span<std::byte> out) = 0;
  /// Never none.
  Secret draw();
  /// The lowest `count` of a number, up to 32.
  uint32_t bits(unsigned count);

 protected:
  ~SecretSource() = default;
};

/// The kernel's random bytes, asked for with each call so that nothing is kept which a fork or a
/// dump could show; where it gives none, a hash keyed by those that it gave the program at its
/// start (AT_RANDOM).  Any thread.
SecretSource& kernel_secrets();

}  // namespace nccl_ha
