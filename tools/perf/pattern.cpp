#include "tools/perf/pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "tools/perf/half.h"

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
    case DataType::uint32:
      return f(uint32_t{});
    case DataType::int64:
      return f(int64_t{});
    case DataType::uint64:
      return f(uint64_t{});
    case DataType::half:
      return f(Half{});
    case DataType::bfloat16:
      return f(Bfloat16{});
    case DataType::float32:
      return f(float{});
    case DataType::float64:
      return f(double{});
  }
  __builtin_unreachable();
}

/// Bits of the largest whole number up to which all are exact; 0 for integers, which wrap around.
template <class T>
constexpr unsigned mantissa_bits() {
  if constexpr (std::is_same_v<T, Half>) {
    return 11;
  } else if constexpr (std::is_same_v<T, Bfloat16>) {
    return 8;
  } else if constexpr (std::is_same_v<T, float>) {
    return 24;
  } else {
    return std::is_same_v<T, double> ? 48 : 0;  // 53, and numbers that print well
  }
}

/// Largest exponent of two whose inverse is a normal number as well.
template <class T>
constexpr uint32_t exponent_limit() {
  if constexpr (std::is_same_v<T, Half>) {
    return 14;
  } else {
    return std::is_same_v<T, double> ? 1022 : 126;
  }
}

/// The nearest T of a number that a float holds, or a double where T is one.
template <class T>
T from_double(double value) {
  if constexpr (std::is_same_v<T, double>) {
    return value;
  } else {
    return static_cast<T>(static_cast<float>(value));
  }
}

template <class T>
T element_of(uint64_t lane, unsigned lane_bits, const Encoding& encoding) {
  if (encoding.kind == Encoding::Kind::whole_numbers) {
    const int64_t middle = int64_t{1} << (encoding.bits - 1);
    return from_double<T>(
        static_cast<double>(static_cast<int64_t>(lane >> (lane_bits - encoding.bits)) - middle));
  }
  const uint64_t choices = 2 * uint64_t{encoding.exponent_max} + 1;
  const auto exponent =
      static_cast<int>((lane >> 1) % choices) - static_cast<int>(encoding.exponent_max);
  const double size = std::ldexp(1.0, exponent);
  return from_double<T>((lane & 1) != 0 ? -size : size);
}

template <class T>
void fill_numbers(std::span<std::byte> out, size_t offset, StreamKey key,
                  const Encoding& encoding) {
  constexpr size_t per_word = 8 / sizeof(T);
  constexpr unsigned lane_bits = 64 / per_word;
  for (size_t done = 0; done < out.size(); done += sizeof(T)) {
    const size_t element = (offset + done) / sizeof(T);
    uint64_t lane = word(key, element / per_word);
    if constexpr (per_word > 1) {
      lane = (lane >> (lane_bits * (element % per_word))) & ((uint64_t{1} << lane_bits) - 1);
    }
    const T value = element_of<T>(lane, lane_bits, encoding);
    std::memcpy(out.data() + done, &value, sizeof(T));
  }
}

/// Integers wrap around instead of overflowing.
template <class T, class F>
T calculate(T a, T b, F f) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(f(static_cast<uint64_t>(a), static_cast<uint64_t>(b)));
  } else {
    return static_cast<T>(f(a, b));
  }
}
template <class T>
T add(T a, T b) {
  return calculate(a, b, [](auto x, auto y) { return x + y; });
}
template <class T>
T multiply(T a, T b) {
  return calculate(a, b, [](auto x, auto y) { return x * y; });
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
    if (op == ReduceOp::sum || op == ReduceOp::avg) {
      value = add(left, right);
    } else if (op == ReduceOp::prod) {
      value = multiply(left, right);
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
    case DataType::uint32:
      return "uint32";
    case DataType::int64:
      return "int64";
    case DataType::uint64:
      return "uint64";
    case DataType::half:
      return "half";
    case DataType::bfloat16:
      return "bfloat16";
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
    case ReduceOp::prod:
      return "prod";
    case ReduceOp::min:
      return "min";
    case ReduceOp::max:
      return "max";
    case ReduceOp::avg:
      return "avg";
  }
  return "?";
}

namespace {

template <class Name>
std::optional<Name> parse_name(std::string_view text, int count) {
  for (int i = 0; i < count; ++i) {
    if (text == to_text(static_cast<Name>(i))) {
      return static_cast<Name>(i);
    }
  }
  return std::nullopt;
}

template <class Name>
std::string all_names(int count) {
  std::string all;
  for (int i = 0; i < count; ++i) {
    all += fmt::format("{}{}", i == 0 ? "" : ", ", to_text(static_cast<Name>(i)));
  }
  return all;
}

}  // namespace

std::optional<DataType> parse_type(std::string_view text) {
  return parse_name<DataType>(text, data_types);
}

std::optional<ReduceOp> parse_reduce_op(std::string_view text) {
  return parse_name<ReduceOp>(text, reduce_ops);
}

std::string type_names() { return all_names<DataType>(data_types); }
std::string reduce_op_names() { return all_names<ReduceOp>(reduce_ops); }

size_t type_size(DataType type) {
  return with_type(type, [](auto value) { return sizeof(value); });
}

StreamKey stream_key(uint64_t seed, uint32_t rank, uint64_t iteration) {
  return {mix(mix(mix(seed + golden) + rank + 1) + iteration + 1)};
}

Encoding encoding_for(DataType type, bool reduces, ReduceOp op, uint32_t ranks) {
  return with_type(type, [&](auto zero) -> Encoding {
    using T = decltype(zero);
    if (!reduces || mantissa_bits<T>() == 0) {
      return {};
    }
    Encoding encoding;
    encoding.type = type;
    if (op == ReduceOp::prod) {
      encoding.kind = Encoding::Kind::powers_of_two;
      encoding.exponent_max = static_cast<uint16_t>(exponent_limit<T>() / ranks);
      return encoding;
    }
    // A sum of `ranks` numbers needs log2(ranks) bits more than one of them.
    const auto growth = static_cast<unsigned>(std::bit_width(ranks));
    encoding.kind = Encoding::Kind::whole_numbers;
    encoding.bits = static_cast<uint8_t>(
        std::max(2U, mantissa_bits<T>() > growth ? mantissa_bits<T>() - growth : 2U));
    return encoding;
  });
}

uint32_t exact_ranks_max(DataType type) {
  return with_type(type, [](auto zero) -> uint32_t {
    constexpr unsigned bits = mantissa_bits<decltype(zero)>();
    // Elements of the least width, 2 bits, go down to -2.
    return bits == 0 || bits > 31 ? UINT32_MAX : 1U << (bits - 1);
  });
}

void fill_stream(std::span<std::byte> out, size_t offset, StreamKey key, Encoding encoding) {
  if (encoding.kind == Encoding::Kind::raw) {
    fill_raw(out, offset, key);
    return;
  }
  with_type(encoding.type, [&](auto zero) {
    if constexpr (mantissa_bits<decltype(zero)>() != 0) {
      fill_numbers<decltype(zero)>(out, offset, key, encoding);
    }
  });
}

void reduce(void* result, const void* first, const void* second, size_t bytes, DataType type,
            ReduceOp op) {
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    switch (op) {
      case ReduceOp::sum:
      case ReduceOp::avg:
        apply<T>(result, first, second, bytes, [](T a, T b) { return add(a, b); });
        break;
      case ReduceOp::prod:
        apply<T>(result, first, second, bytes, [](T a, T b) { return multiply(a, b); });
        break;
      case ReduceOp::min:
        apply<T>(result, first, second, bytes, [](T a, T b) { return b < a ? b : a; });
        break;
      case ReduceOp::max:
        apply<T>(result, first, second, bytes, [](T a, T b) { return a < b ? b : a; });
        break;
    }
  });
}

void finish_average(std::span<std::byte> sums, DataType type, uint32_t ranks) {
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    for (size_t at = 0; at < sums.size(); at += sizeof(T)) {
      T value{};
      std::memcpy(&value, sums.data() + at, sizeof(T));
      if constexpr (std::is_integral_v<T>) {
        using Wide = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
        value = static_cast<T>(static_cast<Wide>(value) / static_cast<Wide>(ranks));
      } else {
        // Of 16 bits: the quotient of two floats, rounded twice, is still the nearest.
        using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;
        value = static_cast<T>(static_cast<Wide>(value) / static_cast<Wide>(ranks));
      }
      std::memcpy(sums.data() + at, &value, sizeof(T));
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
  if (op_ == ReduceOp::avg && expected.ranks.size() > 1) {
    finish_average(out, type_, static_cast<uint32_t>(expected.ranks.size()));
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
