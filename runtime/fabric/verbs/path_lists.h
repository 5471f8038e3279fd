// The lists in which a port keeps its paths.  One thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/base/linked_queue.h"

namespace nccl_ha::fabric::verbs {

class VerbsPath;

/// A path's places in the lists of its port, so that the frequent ones allocate nothing.
struct PathLinks {
  explicit PathLinks(VerbsPath& its_path) : path(its_path) {}
  VerbsPath& path;
  QueueLink<PathLinks> posted;
  bool refill_listed = false;
  bool state_listed = false;
};

/// Paths with posts that wait for the doorbell, the oldest first.
using PostedList = LinkedQueue<PathLinks, &PathLinks::posted>;

/// Paths that hold back more receives than they may.
class RefillList {
 public:
  bool empty() const { return paths_.empty(); }
  /// No push() allocates while there are no more paths.
  void reserve(size_t paths) { paths_.reserve(paths); }
  void push(PathLinks& one) {
    NHA_DASSERT(!one.refill_listed, "a path is listed once");
    one.refill_listed = true;
    paths_.push_back(&one);
  }
  void remove(PathLinks& one) { std::erase(paths_, &one); }
  /// `refill(VerbsPath&)` lists no path.
  template <class Refill>
  void take_all(const Refill& refill) {
    for (PathLinks* one : paths_) {
      one->refill_listed = false;
      refill(one->path);
    }
    paths_.clear();
  }

 private:
  std::vector<PathLinks*> paths_;
};

/// Paths that went through something rare.  May be walked by index while paths come and go: one
/// that goes leaves a null.
class PathList {
 public:
  bool empty() const { return paths_.empty(); }
  size_t size() const { return paths_.size(); }
  VerbsPath* operator[](size_t at) const { return paths_[at]; }
  auto begin() const { return paths_.begin(); }
  auto end() const { return paths_.end(); }
  void push(VerbsPath& path) { paths_.push_back(&path); }
  void remove(VerbsPath& path) {
    std::replace(paths_.begin(), paths_.end(), &path, static_cast<VerbsPath*>(nullptr));
  }
  template <class Over>
  void drop_if(const Over& over) {
    std::erase_if(paths_, [&](const VerbsPath* path) { return path == nullptr || over(*path); });
  }
  void clear() { paths_.clear(); }

 private:
  std::vector<VerbsPath*> paths_;
};

}  // namespace nccl_ha::fabric::verbs
