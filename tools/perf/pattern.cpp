#include "tools/perf/pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <type_traits>

namespace nccl_ha::tools {
namespace {

constexpr uint64_t golden = 0x9e3779b97f4a7c15ULL;

/// The finalizer of splitmix64 (Steele, Lea, Flood 2014): every input bit reaches every output bit.
constexpr uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

constexpr uint64_t word(StreamKey key, uint64_t index) { return mix(key.value + index * golden); }

void fill_raw(std::span<std::byte> out, size_t offset, StreamKey key) {
  size_t done = 0;
  while (done < out.size()) {
    const uint64_t value = word(key, (offset + done) / 8);
    const size_t inside = (offset + done) % 8;
    const size_t take = std::min(8 - inside, out.size() - done);
    if (take == 8) {
      std::memcpy(out.data() + done, &value, 8);
    } else {
      std::memcpy(out.data() + done, reinterpret_cast<const std::byte*>(&value) + inside, take);
    }
    done += take;
  }
}

template <class T>
void fill_float(std::span<std::byte> out, size_t offset, StreamKey key, unsigned bits) {
  constexpr size_t per_word = 8 / sizeof(T);
  constexpr unsigned lane_bits = 64 / per_word;
  const int64_t middle = int64_t{1} << (bits - 1);
  for (size_t done = 0; done < out.size(); done += sizeof(T)) {
    const size_t element = (offset + done) / sizeof(T);
    uint64_t lane = word(key, element / per_word);
    if constexpr (per_word > 1) {
      lane = (lane >> (lane_bits * (element % per_word))) & 0xffffffffULL;
    }
    const T value = static_cast<T>(static_cast<int64_t>(lane >> (lane_bits - bits)) - middle);
    std::memcpy(out.data() + done, &value, sizeof(T));
  }
}

/// Calls f with a value of the type's C++ counterpart.
template <class F>
decltype(auto) with_type(DataType type, F&& f) {
  switch (type) {
    case DataType::int8:
      return f(int8_t{});
    case DataType::uint8:
      return f(uint8_t{});
    case DataType::int32:
      return f(int32_t{});
    case DataType::int64:
      return f(int64_t{});
    case DataType::float32:
      return f(float{});
    case DataType::float64:
      return f(double{});
  }
  __builtin_unreachable();
}

template <class T>
T add(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;  // wraps instead of overflowing
    return static_cast<T>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
  } else {
    return a + b;
  }
}

template <class T, class F>
void apply(void* result, const void* first, const void* second, size_t bytes, F f) {
  auto* out = static_cast<T*>(result);
  const auto* a = static_cast<const T*>(first);
  const auto* b = static_cast<const T*>(second);
  for (size_t i = 0; i < bytes / sizeof(T); ++i) {
    out[i] = f(a[i], b[i]);
  }
}

/// Folds one more contribution into the reference.  Written apart from reduce() on purpose: a
/// mistake there must not hide here.
template <class T>
void fold(std::span<std::byte> total, std::span<const std::byte> more, ReduceOp op) {
  for (size_t at = 0; at < total.size(); at += sizeof(T)) {
    T left{};
    T right{};
    std::memcpy(&left, total.data() + at, sizeof(T));
    std::memcpy(&right, more.data() + at, sizeof(T));
    T value = left;
    if (op == ReduceOp::sum) {
      value = add(left, right);
    } else if ((op == ReduceOp::max) == (right > left)) {
      value = right;
    }
    std::memcpy(total.data() + at, &value, sizeof(T));
  }
}

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte b : bytes) {
    text += fmt::format("{:02x}", std::to_integer<unsigned>(b));
  }
  return text;
}

}  // namespace

const char* to_text(DataType type) {
  switch (type) {
    case DataType::int8:
      return "int8";
    case DataType::uint8:
      return "uint8";
    case DataType::int32:
      return "int32";
    case DataType::int64:
      return "int64";
    case DataType::float32:
      return "float";
    case DataType::float64:
      return "double";
  }
  return "?";
}

const char* to_text(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return "sum";
    case ReduceOp::min:
      return "min";
    case ReduceOp::max:
      return "max";
  }
  return "?";
}

std::optional<DataType> parse_type(std::string_view text) {
  for (const DataType type : {DataType::int8, DataType::uint8, DataType::int32, DataType::int64,
                              DataType::float32, DataType::float64}) {
    if (text == to_text(type)) {
      return type;
    }
  }
  return std::nullopt;
}

std::optional<ReduceOp> parse_reduce_op(std::string_view text) {
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::min, ReduceOp::max}) {
    if (text == to_text(op)) {
      return op;
    }
  }
  return std::nullopt;
}

size_t type_size(DataType type) {
  return with_type(type, [](auto value) { return sizeof(value); });
}

StreamKey stream_key(uint64_t seed, uint32_t rank, uint64_t iteration) {
  return {mix(mix(mix(seed + golden) + rank + 1) + iteration + 1)};
}

Encoding encoding_for(DataType type, bool reduces, uint32_t ranks) {
  if (!reduces || (type != DataType::float32 && type != DataType::float64)) {
    return {};
  }
  // A sum of `ranks` numbers needs log2(ranks) bits more than one of them.
  const auto growth = static_cast<unsigned>(std::bit_width(ranks));
  const unsigned mantissa = type == DataType::float32 ? 24 : 48;
  const unsigned bits = std::max(2U, mantissa > growth ? mantissa - growth : 2U);
  return {type == DataType::float32 ? Encoding::Kind::float32 : Encoding::Kind::float64,
          static_cast<uint8_t>(bits)};
}

void fill_stream(std::span<std::byte> out, size_t offset, StreamKey key, Encoding encoding) {
  switch (encoding.kind) {
    case Encoding::Kind::raw:
      fill_raw(out, offset, key);
      break;
    case Encoding::Kind::float32:
      fill_float<float>(out, offset, key, encoding.bits);
      break;
    case Encoding::Kind::float64:
      fill_float<double>(out, offset, key, encoding.bits);
      break;
  }
}

void reduce(void* result, const void* first, const void* second, size_t bytes, DataType type,
            ReduceOp op) {
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    switch (op) {
      case ReduceOp::sum:
        apply<T>(result, first, second, bytes, [](T a, T b) { return add(a, b); });
        break;
      case ReduceOp::min:
        apply<T>(result, first, second, bytes, [](T a, T b) { return std::min(a, b); });
        break;
      case ReduceOp::max:
        apply<T>(result, first, second, bytes, [](T a, T b) { return std::max(a, b); });
        break;
    }
  });
}

void Checker::reference(std::span<std::byte> out, const Expected& expected, size_t position,
                        uint64_t iteration) const {
  alignas(8) std::array<std::byte, 4096> one;
  const size_t at = expected.stream_offset + position;
  fill_stream(out, at, stream_key(seed_, expected.ranks.front(), iteration), encoding_);
  for (size_t i = 1; i < expected.ranks.size(); ++i) {
    const std::span<std::byte> more(one.data(), out.size());
    fill_stream(more, at, stream_key(seed_, expected.ranks[i], iteration), encoding_);
    with_type(type_, [&](auto zero) { fold<decltype(zero)>(out, more, op_); });
  }
}

std::string Checker::describe(std::span<const std::byte> found, std::span<const std::byte> wanted,
                              const Expected& expected, size_t position, uint64_t iteration) const {
  std::string text = fmt::format("found {}, expected {}", hex(found), hex(wanted));
  // Name the commonest mistake: data of an earlier iteration left in place or delivered again.
  if (iteration > 0) {
    std::array<std::byte, 8> stale;
    const std::span<std::byte> view(stale.data(), found.size());
    reference(view, expected, position, iteration - 1);
    if (std::equal(view.begin(), view.end(), found.begin())) {
      text += " (this is the data of the iteration before)";
    }
  }
  return text;
}

void Checker::check(std::span<const std::byte> buffer, const Expected& expected, uint64_t iteration,
                    CheckResult& result) const {
  const size_t element = type_size(type_);
  alignas(8) std::array<std::byte, 4096> wanted;
  for (size_t position = 0; position < expected.bytes; position += wanted.size()) {
    const size_t length = std::min(wanted.size(), expected.bytes - position);
    reference({wanted.data(), length}, expected, position, iteration);
    const std::byte* found = buffer.data() + expected.offset + position;
    if (std::memcmp(found, wanted.data(), length) == 0) {
      continue;
    }
    for (size_t at = 0; at < length; at += element) {
      const size_t width = std::min(element, length - at);
      if (std::memcmp(found + at, wanted.data() + at, width) == 0) {
        continue;
      }
      if (result.wrong++ == 0) {
        result.first_offset = expected.offset + position + at;
        result.first_finding = describe({found + at, width}, {wanted.data() + at, width}, expected,
                                        position + at, iteration);
      }
    }
  }
}

}  // namespace nccl_ha::tools
