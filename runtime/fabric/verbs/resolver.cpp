#include "runtime/fabric/verbs/resolver.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace nccl_ha::fabric::verbs {
namespace {

bool same_route(const ibv_ah_attr& one, const ibv_ah_attr& other) {
  return one.port_num == other.port_num && one.is_global == other.is_global &&
         one.dlid == other.dlid && one.grh.sgid_index == other.grh.sgid_index &&
         std::memcmp(one.grh.dgid.raw, other.grh.dgid.raw, sizeof one.grh.dgid.raw) == 0;
}

}  // namespace

Resolver::~Resolver() {
  std::lock_guard lock(mutex_);
  ending_ = true;
}

std::shared_ptr<const Resolution> Resolver::ask(const ibv_ah_attr& route) {
  auto question = std::make_shared<Resolution>();
  question->route = route;
  {
    std::lock_guard lock(mutex_);
    const auto same = std::find_if(open_.begin(), open_.end(),
                                   [&](const auto& one) { return same_route(one->route, route); });
    if (same != open_.end()) {
      return *same;
    }
    open_.push_back(question);
  }
  errands_.add([this, question] {
    ibv_ah* handle = nullptr;
    const int error = make(question->route, &handle);
    if (handle != nullptr) {
      static_cast<void>(library_.address_handle.destroy(handle));
    }
    std::lock_guard lock(mutex_);
    std::erase(open_, question);
    question->result.store(error, std::memory_order_release);
  });
  return question;
}

std::shared_ptr<HandleOrder> Resolver::make_handle(const ibv_ah_attr& route) {
  auto order = std::make_shared<HandleOrder>(library_);
  errands_.add([this, route, own = order]() mutable {
    const int error = make(route, &own->made_);
    own->result_.store(error, std::memory_order_release);
    own.reset();  // the last of it ends here, and not where errands wait for each other
  });
  return order;
}

bool Resolver::ending() {
  std::lock_guard lock(mutex_);
  return ending_;
}

int Resolver::make(ibv_ah_attr route, ibv_ah** made) {
  if (ending()) {
    return ECANCELED;
  }
  errno = 0;
  *made = library_.address_handle.create(pd_, &route);
  return *made != nullptr ? 0 : errno != 0 ? errno : EHOSTUNREACH;
}

}  // namespace nccl_ha::fabric::verbs
