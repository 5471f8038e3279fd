#include "tools/perf/links.h"

#include <errno.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>

namespace nccl_ha::tools {
namespace {

/// Every area gets at least this much, so that an empty message has an address too.
constexpr size_t area_bytes_min = 4096;

/// A connection on its way.
struct Pending {
  uint32_t peer = 0;
  uint32_t channel = 0;
  bool sends = false;
  void* listen_comm = nullptr;  ///< receiving side
  NetHandle handle{};           ///< sending side; connect may keep its state in it
  void* comm = nullptr;
};

const char* buffer_name(int buffer) {
  static constexpr const char* names[] = {"input", "output", "work", "slot"};
  return names[buffer];
}

/// One attempt on every connection that is not up yet; returns how many are still missing.
Result<size_t> poll_pending(NetApi& api, int device, std::vector<Pending>& pending) {
  size_t missing = 0;
  for (Pending& p : pending) {
    if (p.comm != nullptr) {
      continue;
    }
    auto comm = p.sends ? api.connect(device, p.handle) : api.accept(p.listen_comm);
    if (!comm) {
      return fail(Errc::remote,
                  fmt::format("{} rank {}: {}", p.sends ? "connecting to" : "accepting", p.peer,
                              comm.error().what));
    }
    p.comm = *comm;
    missing += p.comm == nullptr ? 1 : 0;
    if (p.comm != nullptr && !p.sends) {
      if (auto closed = api.close_listen(p.listen_comm); !closed) {
        return closed.error();
      }
    }
  }
  return missing;
}

std::string describe_missing(const std::vector<Pending>& pending) {
  for (const Pending& p : pending) {
    if (p.comm == nullptr) {
      return fmt::format("still {} rank {}, channel {}", p.sends ? "connecting to" : "accepting",
                         p.peer, p.channel);
    }
  }
  return "all connections are up";
}

}  // namespace

Result<std::unique_ptr<BufferSet>> BufferSet::allocate(std::array<size_t, buffers> sizes) {
  std::unique_ptr<BufferSet> set(new BufferSet);
  for (size_t i = 0; i < sizes.size(); ++i) {
    const size_t bytes = std::max(sizes[i], area_bytes_min);
    void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
      return fail(Errc::no_memory,
                  fmt::format("no memory for {} bytes of {} buffer: lower --maxbytes", bytes,
                              buffer_name(static_cast<int>(i))),
                  errno);
    }
    set->areas_[i] = {static_cast<std::byte*>(at), bytes};
  }
  return set;
}

BufferSet::~BufferSet() {
  for (const auto& area : areas_) {
    if (!area.empty()) {
      munmap(area.data(), area.size());
    }
  }
}

Result<std::unique_ptr<LinkSet>> LinkSet::open(
    World& world, NetApi& api, int device, const std::vector<std::pair<uint32_t, uint32_t>>& pairs,
    uint32_t channels, const BufferSet& memory, bool spin) {
  std::vector<Pending> pending;
  // Every rank publishes the handles of what it listens for, in the order of `pairs`.
  std::string mine;
  for (const auto& [from, to] : pairs) {
    for (uint32_t channel = 0; channel < channels; ++channel) {
      if (to != world.rank()) {
        continue;
      }
      NetHandle handle{};
      auto listening = api.listen(device, handle);
      if (!listening) {
        return listening.error();
      }
      pending.push_back({from, channel, false, *listening, {}, nullptr});
      mine.append(reinterpret_cast<const char*>(handle.data()), handle.size());
    }
  }
  auto handles = world.all_gather(mine);
  if (!handles) {
    return handles.error();
  }
  std::map<uint32_t, size_t> taken;  // per listening rank
  for (const auto& [from, to] : pairs) {
    for (uint32_t channel = 0; channel < channels; ++channel) {
      const size_t at = sizeof(NetHandle) * taken[to]++;
      if (from != world.rank()) {
        continue;
      }
      if ((*handles)[to].size() < at + sizeof(NetHandle)) {
        return fail(Errc::internal, fmt::format("rank {} published too few handles", to));
      }
      Pending p{to, channel, true, nullptr, {}, nullptr};
      std::memcpy(p.handle.data(), (*handles)[to].data() + at, sizeof(NetHandle));
      pending.push_back(p);
    }
  }
  for (uint32_t pass = 1;; ++pass) {
    auto missing = poll_pending(api, device, pending);
    if (!missing) {
      return missing.error();
    }
    if (*missing == 0) {
      break;
    }
    if (!spin) {
      sched_yield();
    }
    if (pass % 256 == 0) {
      if (auto checked = world.check(); !checked) {
        return fail(checked.code(),
                    fmt::format("{} ({})", checked.error().what, describe_missing(pending)));
      }
    }
  }
  std::unique_ptr<LinkSet> set(new LinkSet(api));
  for (const Pending& p : pending) {
    set->links_.push_back({p.peer, p.channel, p.sends, p.comm, {}, {}});
  }
  if (auto registered = set->register_buffers(memory); !registered) {
    return registered.error();
  }
  return set;
}

Result<void> LinkSet::register_buffers(const BufferSet& memory) {
  for (Link& link : links_) {
    for (int i = 0; i < buffers; ++i) {
      const auto area = memory.span(static_cast<Buffer>(i));
      auto mhandle = api_.register_memory(link.comm, area.data(), area.size());
      if (!mhandle) {
        return fail(mhandle.code(), fmt::format("registering {} bytes of {} buffer: {}",
                                                area.size(), buffer_name(i), mhandle.error().what));
      }
      link.mhandles[static_cast<size_t>(i)] = *mhandle;
      link.registered[static_cast<size_t>(i)] = true;
    }
  }
  return {};
}

Result<void> LinkSet::close() {
  for (Link& link : links_) {
    for (size_t i = 0; i < link.mhandles.size(); ++i) {
      if (!link.registered[i]) {
        continue;
      }
      link.registered[i] = false;
      if (auto done = api_.deregister_memory(link.comm, link.mhandles[i]); !done) {
        return done;
      }
    }
    auto closed = link.sends ? api_.close_send(link.comm) : api_.close_recv(link.comm);
    if (!closed) {
      return closed;
    }
  }
  links_.clear();
  return {};
}

const Link* LinkSet::find(uint32_t peer, uint32_t channel, bool sends) const {
  for (const Link& link : links_) {
    if (link.peer == peer && link.channel == channel && link.sends == sends) {
      return &link;
    }
  }
  return nullptr;
}

}  // namespace nccl_ha::tools
