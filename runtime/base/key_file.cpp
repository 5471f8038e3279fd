#include "runtime/base/key_file.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

namespace nccl_ha {

Result<KeyFile::Version> KeyFile::version() const {
  struct stat info {};
  if (stat(path_.c_str(), &info) != 0) {
    return fail(Errc::system, fmt::format("cannot read the keys in {}", path_), errno);
  }
  return Version{info.st_ino, info.st_size,
                 int64_t{info.st_ctim.tv_sec} * 1'000'000'000 + info.st_ctim.tv_nsec, info.st_mode,
                 info.st_uid};
}

Result<std::shared_ptr<KeyFile>> KeyFile::open(const std::string& path) {
  std::shared_ptr<KeyFile> made(new KeyFile(path));
  if (auto read = made->refresh(); !read) {
    return read.error();
  }
  return made;
}

void KeyFile::set(KeyRing keys) {
  auto made = std::make_shared<const KeyRing>(std::move(keys));
  const std::lock_guard lock(mutex_);
  keys_ = std::move(made);
}

Result<void> KeyFile::refresh() {
  if (path_.empty()) {
    return {};
  }
  const auto now = version();
  if (!now) {
    return now.error();
  }
  {
    const std::lock_guard lock(mutex_);
    if (*now == version_) {
      return {};
    }
  }
  auto keys = KeyRing::read(path_);
  if (!keys && keys.error().code == Errc::system) {
    return keys.error();  // it says nothing of the file, which is read again next time
  }
  {
    const std::lock_guard lock(mutex_);
    version_ = *now;
  }
  if (!keys) {
    return keys.error();
  }
  set(std::move(*keys));
  return {};
}

}  // namespace nccl_ha
