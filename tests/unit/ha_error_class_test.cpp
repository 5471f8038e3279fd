#include <gtest/gtest.h>

#include "ha/error_class.h"

namespace nccl_ha::ha {
namespace {

TEST(ErrorClass, OnlyThePathsOwnTroublesAreWorthAnotherPath) {
  using fabric::CompletionStatus;
  EXPECT_EQ(classify(CompletionStatus::retry_exceeded), ErrorClass::path);
  EXPECT_EQ(classify(CompletionStatus::flushed), ErrorClass::path);
  EXPECT_EQ(classify(CompletionStatus::device_fault), ErrorClass::path);
  EXPECT_EQ(classify(CompletionStatus::remote_access), ErrorClass::memory);
  EXPECT_EQ(classify(CompletionStatus::local_protection), ErrorClass::memory);
  EXPECT_EQ(classify(CompletionStatus::length_error), ErrorClass::program);
}

TEST(ErrorClass, AShortageIsWhatALimitIsRaisedFor) {
  for (const int error : {EMFILE, ENFILE, ENOMEM}) {
    EXPECT_TRUE(is_shortage(error)) << error;
  }
  for (const int error : {0, EINVAL, EIO, EHOSTUNREACH, ETIMEDOUT, ENODEV}) {
    EXPECT_FALSE(is_shortage(error)) << error;
  }
}

}  // namespace
}  // namespace nccl_ha::ha
