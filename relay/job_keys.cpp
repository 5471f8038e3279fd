#include "relay/job_keys.h"

#include <algorithm>
#include <string_view>

#include "runtime/base/keyed_hash.h"
#include "runtime/fabric/byte_order.h"

namespace nccl_ha::relay {
namespace {

constexpr std::string_view purpose_job = "key of a job's communicator";
constexpr std::string_view purpose_name = "name of a key";

}  // namespace

uint32_t name_of_key(const KeyRing::Key& key) {
  const Tag name = make_tag(key, purpose_name, {});
  return std::max(fabric::get<uint32_t>(name.data(), 0), uint32_t{1});
}

std::pair<uint32_t, KeyRing::Key> JobKeys::key_of(uint64_t comm_id) {
  std::array<std::byte, sizeof comm_id> bytes{};
  fabric::put(bytes.data(), 0, comm_id);
  const HashKey key = derive_key(HashKey{}, purpose_job, bytes);
  return {name_of_key(key), key};
}

void JobKeys::add(uint64_t comm_id) {
  const auto made = key_of(comm_id);
  const std::lock_guard lock(mutex_);
  if (comm_id == 0 || std::ranges::find(own_, made.first,
                                        [](const auto& one) { return one.first; }) != own_.end()) {
    return;
  }
  if (own_.size() == own_max) {
    own_.erase(own_.begin() + own_max / 2);
  }
  own_.push_back(made);
  publish();
}

void JobKeys::lend(uint32_t user, const KeyRing& keys, Instant now) {
  const std::lock_guard lock(mutex_);
  bool news = false;
  for (auto one = lent_.begin(); one != lent_.end();) {
    news = std::erase_if(one->second,
                         [&](const auto& entry) { return entry.second.last + lent_for <= now; }) !=
               0 ||
           news;
    one = one->second.empty() ? lent_.erase(one) : std::next(one);
  }
  if (lent_.contains(user) || lent_.size() < users_max) {
    auto& its = lent_[user];
    keys.each([&](uint32_t number, const KeyRing::Key& key) {
      const auto [found, is_new] = its.try_emplace(number, Lent{key, now});
      found->second.last = now;
      news = news || is_new;
    });
    while (its.size() > lent_max) {
      its.erase(
          std::ranges::min_element(its, {}, [](const auto& entry) { return entry.second.last; }));
    }
  }
  if (news) {
    publish();
  }
}

KeyRing JobKeys::own() const {
  const std::lock_guard lock(mutex_);
  KeyRing ring;
  for (const auto& [number, key] : own_) {
    ring.add(number, key);
  }
  return ring;
}

KeyRing JobKeys::of_user(uint32_t user, bool own) const {
  const std::lock_guard lock(mutex_);
  KeyRing ring;
  for (size_t i = 0; own && i < own_.size(); ++i) {
    ring.add(own_[i].first, own_[i].second);
  }
  if (const auto found = lent_.find(user); found != lent_.end()) {
    for (const auto& [number, lent] : found->second) {
      ring.add(number, lent.key);
    }
  }
  return ring;
}

std::shared_ptr<const KeyRing> JobKeys::current() const {
  const std::lock_guard lock(mutex_);
  return current_;
}

/// Of a number that two have, which only who wants to harm makes, this process's own counts, and
/// then that of the key that has that name.
void JobKeys::publish() {
  KeyRing all;
  for (const auto& [number, key] : own_) {
    all.add(number, key);
  }
  for (const auto& [user, its] : lent_) {
    for (const auto& [number, lent] : its) {
      if (all.find(number) == nullptr && name_of_key(lent.key) == number) {
        all.add(number, lent.key);
      }
    }
  }
  current_ = std::make_shared<const KeyRing>(std::move(all));
}

}  // namespace nccl_ha::relay
