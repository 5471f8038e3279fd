// The buffers and connections of one rank.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/base/result.h"
#include "tools/common/bootstrap.h"
#include "tools/common/net_library.h"
#include "tools/perf/plan.h"

namespace nccl_ha::tools {

/// Page-aligned memory of one rank, one area per Buffer.
class BufferSet {
 public:
  static Result<std::unique_ptr<BufferSet>> allocate(std::array<size_t, buffers> sizes);
  ~BufferSet();
  BufferSet(const BufferSet&) = delete;
  BufferSet& operator=(const BufferSet&) = delete;

  std::byte* data(Buffer buffer) const { return areas_[static_cast<size_t>(buffer)].data(); }
  std::span<std::byte> span(Buffer buffer) const { return areas_[static_cast<size_t>(buffer)]; }

 private:
  BufferSet() = default;
  std::array<std::span<std::byte>, buffers> areas_;
};

/// One direction of a connection to a peer, with every buffer registered on it.
struct Link {
  uint32_t peer = 0;
  uint32_t channel = 0;
  bool sends = false;
  void* comm = nullptr;
  std::array<void*, buffers> mhandles{};
  std::array<bool, buffers> registered{};
};

/// All connections of one rank.  Destroying it without close() leaves them to the process's end, as
/// is right after a failure.
class LinkSet {
 public:
  /// Connects this rank as `pairs` says (from, to), `channels` times each, and registers the
  /// buffers.  All ranks call it together.  Polls connect and accept in turn, as NCCL does.
  static Result<std::unique_ptr<LinkSet>> open(
      World& world, NetApi& api, int device,
      const std::vector<std::pair<uint32_t, uint32_t>>& pairs, uint32_t channels,
      const BufferSet& memory, bool spin);

  /// Deregisters and closes everything, in NCCL's order: memory first, then the connections.
  Result<void> close();

  const Link* find(uint32_t peer, uint32_t channel, bool sends) const;

 private:
  explicit LinkSet(NetApi& api) : api_(api) {}
  Result<void> register_buffers(const BufferSet& memory);

  NetApi& api_;
  std::vector<Link> links_;
};

}  // namespace nccl_ha::tools
