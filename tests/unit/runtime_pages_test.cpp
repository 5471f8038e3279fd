// Memory that shares no page with anything else.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "actors/connection/lane.h"
#include "actors/cts_entry.h"
#include "actors/eager.h"
#include "runtime/base/pages.h"

namespace nccl_ha {
namespace {

TEST(Pages, HaveNoNeighboursOnThem) {
  std::vector<Pages> all;
  for (const size_t size : {1UL, page_bytes - 1, page_bytes, page_bytes + 1, 100'000UL}) {
    const Pages& one = all.emplace_back(size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(one.data()) % page_bytes, 0U);
    EXPECT_EQ(one.size(), size);
    EXPECT_EQ(std::count(one.data(), one.data() + size, std::byte{0}),
              static_cast<ptrdiff_t>(size));
  }
  const auto first_page = [](const Pages& of) {
    return reinterpret_cast<uintptr_t>(of.data()) / page_bytes;
  };
  for (const Pages& one : all) {
    const uintptr_t end = first_page(one) + (one.size() + page_bytes - 1) / page_bytes;
    for (const Pages& other : all) {
      EXPECT_TRUE(&one == &other || first_page(other) < first_page(one) ||
                  first_page(other) >= end);
    }
  }
  const std::byte* before = all[0].data();
  const Pages moved = std::move(all[0]);
  EXPECT_EQ(moved.data(), before);
}

// Rings, tables and boxes are registered where they are.
static_assert(alignof(CtsRing) == page_bytes && sizeof(CtsRing) % page_bytes == 0);
static_assert(alignof(DataTables) == page_bytes && sizeof(DataTables) % page_bytes == 0);
static_assert(alignof(ControlBox) == page_bytes && sizeof(ControlBox) % page_bytes == 0);

}  // namespace
}  // namespace nccl_ha
