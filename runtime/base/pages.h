// Memory with pages of its own.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

namespace nccl_ha {

/// rdma-core keeps the pages of what is registered out of forked processes (ibv_fork_init), and so
/// whatever lies on the same pages: a child that reads it dies far from here.  What this library
/// registers of its own begins on such a boundary and ends before one.
inline constexpr size_t page_bytes = 4096;

/// Bytes that are 0 at first.  Moves; throws std::bad_alloc.
class Pages {
 public:
  Pages() = default;
  explicit Pages(size_t size)
      : bytes_(static_cast<std::byte*>(::operator new(whole(size), std::align_val_t(page_bytes)))),
        size_(size) {
    std::uninitialized_value_construct_n(bytes_.get(), whole(size));
  }

  std::byte* data() { return bytes_.get(); }
  const std::byte* data() const { return bytes_.get(); }
  size_t size() const { return size_; }

 private:
  struct Release {
    void operator()(std::byte* bytes) const {
      ::operator delete(bytes, std::align_val_t(page_bytes));
    }
  };
  static size_t whole(size_t size) { return (size + page_bytes - 1) / page_bytes * page_bytes; }

  std::unique_ptr<std::byte[], Release> bytes_;
  size_t size_ = 0;
};

}  // namespace nccl_ha
