// What the actors of one worker share: at most one object of each type, made by the first that
// needs it, gone with the last that keeps it.  Any thread; who may use an object, its type says.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

namespace nccl_ha {

class SharedObjects {
 public:
  /// Null when nobody keeps one.
  template <class T>
  std::shared_ptr<T> find() const {
    const std::lock_guard lock(mutex_);
    for (const Entry& entry : entries_) {
      if (entry.type == type_of<T>()) {
        return std::static_pointer_cast<T>(entry.object.lock());
      }
    }
    return nullptr;
  }
  /// In place of one that is gone.
  template <class T>
  void put(const std::shared_ptr<T>& object) {
    const std::lock_guard lock(mutex_);
    std::erase_if(entries_, [](const Entry& entry) { return entry.type == type_of<T>(); });
    entries_.push_back({type_of<T>(), object});
  }
  /// Both in one, for what several threads ask for: they get the same.
  template <class T, class Make>
  std::shared_ptr<T> find_or_make(Make&& make) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<T> object = find<T>();
    if (object == nullptr) {
      object = make();
      put(object);
    }
    return object;
  }

 private:
  struct Entry {
    const void* type;
    std::weak_ptr<void> object;
  };
  /// An address of its own for each type; works without run-time type information.
  template <class T>
  static const void* type_of() {
    static char tag;
    return &tag;
  }
  mutable std::recursive_mutex mutex_;
  std::vector<Entry> entries_;  // a handful: looked through at the start of a connection
};

}  // namespace nccl_ha
