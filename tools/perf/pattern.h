// The data `nccl-ha perf` sends and how it is checked.
//
// Every rank owns one endless stream of bytes per iteration.  A byte depends on the rank, the
// iteration and its position, so a chunk that is shifted, swapped with another, left over from an
// earlier iteration or delivered twice does not pass.  The check computes what must be there from
// the streams alone; it knows nothing of the messages that carried the data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nccl_ha::tools {

/// Element types of a reduction; for operations that only copy they give the element size.
enum class DataType : uint8_t { int8, uint8, int32, int64, float32, float64 };

/// Reductions with exactly predictable results.
enum class ReduceOp : uint8_t { sum, min, max };

const char* to_text(DataType type);
const char* to_text(ReduceOp op);
std::optional<DataType> parse_type(std::string_view text);
std::optional<ReduceOp> parse_reduce_op(std::string_view text);
/// Bytes of one element.
size_t type_size(DataType type);

/// Names the stream of one rank in one iteration.
struct StreamKey {
  uint64_t value = 0;
};
StreamKey stream_key(uint64_t seed, uint32_t rank, uint64_t iteration);

/// How stream words become elements.  Integers and copies take the words' bytes as they are.
/// Floating-point elements of a reduction are whole numbers of `bits` bits around zero, few enough
/// that a sum over all ranks is exact whatever the order.
struct Encoding {
  enum class Kind : uint8_t { raw, float32, float64 } kind = Kind::raw;
  uint8_t bits = 0;
};
/// The encoding for an operation over `ranks` ranks.
Encoding encoding_for(DataType type, bool reduces, uint32_t ranks);

/// Writes bytes [offset, offset + out.size()) of a stream.  For float encodings offset and size are
/// multiples of the element size.
void fill_stream(std::span<std::byte> out, size_t offset, StreamKey key, Encoding encoding);

/// result = first `op` second, element by element; `bytes` is a multiple of the element size and
/// the ranges may only overlap when they are equal.  Integer sums wrap around.
void reduce(void* result, const void* first, const void* second, size_t bytes, DataType type,
            ReduceOp op);

/// What a part of an output buffer must hold: bytes [stream_offset, stream_offset + bytes) of one
/// stream, or of several reduced element by element.
struct Expected {
  size_t offset = 0;         ///< where the part begins in the output buffer
  size_t bytes = 0;          ///< its length
  size_t stream_offset = 0;  ///< position in the streams
  std::vector<uint32_t> ranks;
};

/// Outcome of a check.
struct CheckResult {
  uint64_t wrong = 0;         ///< elements that differ
  size_t first_offset = 0;    ///< byte offset of the first of them in the output buffer
  std::string first_finding;  ///< what was found and what was expected there
};

/// Compares an output buffer with what it must hold.
class Checker {
 public:
  Checker(uint64_t seed, DataType type, ReduceOp op, Encoding encoding)
      : seed_(seed), type_(type), op_(op), encoding_(encoding) {}

  /// Adds the findings in one part to `result`.
  void check(std::span<const std::byte> buffer, const Expected& expected, uint64_t iteration,
             CheckResult& result) const;

 private:
  void reference(std::span<std::byte> out, const Expected& expected, size_t position,
                 uint64_t iteration) const;
  std::string describe(std::span<const std::byte> found, std::span<const std::byte> wanted,
                       const Expected& expected, size_t position, uint64_t iteration) const;

  uint64_t seed_;
  DataType type_;
  ReduceOp op_;
  Encoding encoding_;
};

}  // namespace nccl_ha::tools
