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
enum class DataType : uint8_t {
  int8,
  uint8,
  int32,
  uint32,
  int64,
  uint64,
  half,
  bfloat16,
  float32,
  float64
};
inline constexpr int data_types = 10;

/// Reductions with exactly predictable results.  avg is a sum that finish_average() divides.
enum class ReduceOp : uint8_t { sum, prod, min, max, avg };
inline constexpr int reduce_ops = 5;

const char* to_text(DataType type);
const char* to_text(ReduceOp op);
std::optional<DataType> parse_type(std::string_view text);
std::optional<ReduceOp> parse_reduce_op(std::string_view text);
/// "int8, uint8, ...": all types; and all reductions.
std::string type_names();
std::string reduce_op_names();
/// Bytes of one element.
size_t type_size(DataType type);

/// Names the stream of one rank in one iteration.
struct StreamKey {
  uint64_t value = 0;
};
StreamKey stream_key(uint64_t seed, uint32_t rank, uint64_t iteration);

/// How stream words become elements.  Integers and copies take the words' bytes as they are.
/// Floating-point elements of a reduction are whole numbers of `bits` bits around zero, few enough
/// that a sum over all ranks is exact whatever the order; those of a product are powers of two with
/// a sign, whose exponents are -`exponent_max` to `exponent_max`.
struct Encoding {
  enum class Kind : uint8_t { raw, whole_numbers, powers_of_two } kind = Kind::raw;
  DataType type = DataType::float32;
  uint8_t bits = 0;
  uint16_t exponent_max = 0;
};
/// The encoding for an operation over `ranks` ranks.
Encoding encoding_for(DataType type, bool reduces, ReduceOp op, uint32_t ranks);

/// Most ranks whose sums of this type are exact.
uint32_t exact_ranks_max(DataType type);

/// Writes bytes [offset, offset + out.size()) of a stream.  For float encodings offset and size are
/// multiples of the element size.
void fill_stream(std::span<std::byte> out, size_t offset, StreamKey key, Encoding encoding);

/// result = first `op` second, element by element; `bytes` is a multiple of the element size and
/// the ranges may only overlap when they are equal.  Integer sums and products wrap around.
void reduce(void* result, const void* first, const void* second, size_t bytes, DataType type,
            ReduceOp op);

/// Divides sums over `ranks` ranks, element by element; integers lose their fraction, as NCCL's do.
void finish_average(std::span<std::byte> sums, DataType type, uint32_t ranks);

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
