#include "runtime/fabric/datagram/frame_seal.h"

#include <algorithm>
#include <string_view>

#include "runtime/fabric/byte_order.h"

namespace nccl_ha::fabric {
namespace {

constexpr std::string_view purpose = "frames of a path";
constexpr size_t number_bytes = sizeof(uint64_t);

HashKey key_of(const HashKey& shared, const WireAddress& from, const WireAddress& to) {
  const auto name = [](const WireAddress& end) {
    std::array<std::byte, 12> bytes;
    put<uint32_t>(bytes.data(), 0, end.path);
    put<uint64_t>(bytes.data(), 4, end.token.told());
    return bytes;
  };
  return derive_key(shared, purpose, name(from), name(to));
}

}  // namespace

FrameSeal::FrameSeal(const SharedKey& shared, const WireAddress& own, const WireAddress& peer)
    : encrypts_(shared.encrypts),
      out_(key_of(shared.key, own, peer)),
      in_(key_of(shared.key, peer, own)) {}

void FrameSeal::close(std::span<const iovec> frame, std::span<std::byte, seal_bytes> seal) {
  put<uint64_t>(seal.data(), 0, ++sent_);
  std::ranges::copy(out_.tag(sent_, frame), seal.begin() + number_bytes);
}

void FrameSeal::close(std::span<std::byte> frame) {
  const auto seal = frame.last<seal_bytes>();
  const auto head = frame.first<header_bytes>();
  const auto payload = frame.subspan(header_bytes, frame.size() - header_bytes - seal_bytes);
  if (!encrypts_) {
    const iovec all{frame.data(), frame.size() - seal_bytes};
    close(std::span(&all, 1), seal);
    return;
  }
  put<uint64_t>(seal.data(), 0, ++sent_);
  std::ranges::copy(out_.seal(sent_, head, payload), seal.begin() + number_bytes);
}

std::optional<std::span<const std::byte>> FrameSeal::open(std::span<const std::byte> frame,
                                                          std::span<std::byte> plain) {
  const auto seal = frame.last<seal_bytes>();
  const auto number = get<uint64_t>(seal.data(), 0);
  const auto tag = seal.last<tag_bytes>();
  const auto clear = encrypts_ ? frame.first(header_bytes) : frame.first(frame.size() - seal_bytes);
  const auto secret = frame.subspan(clear.size(), frame.size() - clear.size() - seal_bytes);
  if (!fresh(number) || !in_.open(number, clear, secret, tag, plain.data())) {
    return std::nullopt;
  }
  mark(number);
  return encrypts_ ? plain.first(secret.size())
                   : frame.subspan(header_bytes, frame.size() - header_bytes - seal_bytes);
}

bool FrameSeal::fresh(uint64_t number) const {
  return number > newest_ || (newest_ - number < numbers && !seen_.test(number % numbers));
}

void FrameSeal::mark(uint64_t number) {
  if (number > newest_ + numbers) {
    seen_.reset();
    newest_ = number;
  }
  for (; newest_ < number; ++newest_) {
    seen_.reset((newest_ + 1) % numbers);
  }
  if (newest_ - number < numbers) {
    seen_.set(number % numbers);
  }
}

}  // namespace nccl_ha::fabric
