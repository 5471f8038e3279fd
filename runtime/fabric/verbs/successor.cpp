#include "runtime/fabric/verbs/successor.h"

#include <endian.h>

#include <algorithm>
#include <utility>

#include "runtime/base/data_turn.h"
#include "runtime/base/own_thread.h"

namespace nccl_ha::fabric::verbs {

NicIdentity identity_of(const UsablePort& port) {
  return {port.device->name(), be64toh(port.device->attributes().node_guid), port.info.pci_path};
}

std::optional<size_t> successor_of(const NicIdentity& before, std::span<const NicIdentity> now) {
  const auto first = [&](const auto& is) -> std::optional<size_t> {
    const auto found = std::ranges::find_if(now, is);
    return found == now.end() ? std::nullopt
                              : std::optional(static_cast<size_t>(found - now.begin()));
  };
  const auto same_guid = [&](const NicIdentity& one) {
    return one.guid != 0 && one.guid == before.guid;
  };
  const auto same_slot = [&](const NicIdentity& one) { return one.pci_path == before.pci_path; };
  const auto same_name = [&](const NicIdentity& one) { return one.name == before.name; };
  // Software devices over one interface, and parts of one, may share their GUID.
  auto found =
      first([&](const auto& one) { return same_guid(one) && same_slot(one) && same_name(one); });
  if (!found) {
    found = first([&](const auto& one) { return same_guid(one) && same_slot(one); });
  }
  if (!found) {
    found = first(same_guid);
  }
  if (!found) {
    found = first([&](const auto& one) {
      return (one.guid == 0 || before.guid == 0) && same_slot(one) && same_name(one);
    });
  }
  return found;
}

SuccessorSearch::SuccessorSearch(const Library& library, Open open) : open_(std::move(open)) {
  if (library.waited == nullptr) {
    conductor_ = std::make_unique<Conductor>(library, nullptr);
  }
}

SuccessorSearch::~SuccessorSearch() {
  constexpr Duration patience = std::chrono::milliseconds(100);
  if (conductor_ && !conductor_->drain(patience)) {
    static_cast<void>(keep_code_loaded());  // which its thread comes back to
    static_cast<void>(conductor_.release());
  }
}

std::vector<UsablePort> SuccessorSearch::look() {
  if (!conductor_) {
    const DataTurn exception(false);
    return open_();
  }
  if (!look_) {
    look_ = std::make_shared<Look>();
    conductor_->add(
        Conductor::Rank::make, [look = look_, open = open_] { look->found = open(); },
        [look = look_] { look->over.result.store(0, std::memory_order_release); });
    return {};
  }
  return look_->over.over() ? std::move(std::exchange(look_, nullptr)->found)
                            : std::vector<UsablePort>();
}

}  // namespace nccl_ha::fabric::verbs
