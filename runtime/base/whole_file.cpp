#include "runtime/base/whole_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <climits>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "runtime/base/secret.h"

namespace nccl_ha {
namespace {

/// As many as the kernel follows.
constexpr int links_max = 40;
/// Of a file's name in its draft's, which is 21 bytes longer: 255 are possible.
constexpr size_t name_part_max = 200;

Error cannot_write(const std::string& path, int error) {
  return fail(Errc::system, "cannot write " + path, error);
}

/// Closes `fd`.  0 or an errno value.
int write_and_close(int fd, std::span<const std::byte> bytes) {
  int error = 0;
  while (!bytes.empty() && error == 0) {
    const ssize_t wrote = write(fd, bytes.data(), bytes.size());
    if (wrote >= 0) {
      bytes = bytes.subspan(static_cast<size_t>(wrote));
    } else if (errno != EINTR) {
      error = errno;
    }
  }
  return close(fd) != 0 && error == 0 ? errno : error;
}

struct Place {
  std::string folder;  ///< ends in a slash; empty: where the process is
  std::string name;
  std::string path() const { return folder + name; }
};

Place place_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? Place{"", path}
                                    : Place{path.substr(0, slash + 1), path.substr(slash + 1)};
}

/// Where `path` leads to.
struct End {
  Place at;
  bool descriptor = false;  ///< of a process, below /proc: nothing can take its place
};

End follow(const std::string& path) {
  End end{place_of(path)};
  for (int links = 0; links < links_max; ++links) {
    char target[PATH_MAX] = "";
    struct statfs system {};
    end.descriptor = statfs(end.at.folder.empty() ? "." : end.at.folder.c_str(), &system) == 0 &&
                     system.f_type == PROC_SUPER_MAGIC;
    if (end.descriptor || readlink(end.at.path().c_str(), target, sizeof target - 1) < 0) {
      return end;
    }
    end.at = place_of(target[0] == '/' ? target : end.at.folder + target);
  }
  return end;  // what is opened there fails
}

/// What is there, to be written to; -1 with errno set.  A descriptor of this process is duplicated:
/// opened anew it would begin at the file's start.
int open_what_is_there(const std::string& path, const End& end) {
  if (end.descriptor) {
    std::error_code error;
    const auto own = std::filesystem::canonical("/proc/self/fd", error);
    int fd = -1;
    const std::string& name = end.at.name;
    const auto [rest, wrong] = std::from_chars(name.data(), name.data() + name.size(), fd);
    if (wrong == std::errc() && rest == name.data() + name.size() &&
        std::filesystem::canonical(end.at.folder, error) == own && !error) {
      return fcntl(fd, F_DUPFD_CLOEXEC, 0);
    }
  }
  // The kernel says whether it may be written to, and whether links that others made are followed.
  return open(path.c_str(), O_WRONLY | O_NOCTTY | O_CLOEXEC | (end.descriptor ? O_TRUNC : 0));
}

/// A new file beside `at`, which becomes it.  `known`: what is there.  0 or an errno value.
int replace(const Place& at, std::span<const std::byte> bytes, mode_t mode,
            const struct stat* known) {
  const std::string draft =
      fmt::format("{}{}.{:016x}{}", at.folder, at.name.substr(0, name_part_max),
                  kernel_secrets().draw().told(), draft_ending);
  const int fd = open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                      known == nullptr ? mode : 0600);
  if (fd < 0) {
    return errno;
  }
  int error = 0;
  if (known != nullptr &&
      (fchown(fd, known->st_uid, known->st_gid) != 0 || fchmod(fd, known->st_mode & 07777) != 0)) {
    error = errno;
    close(fd);
  } else {
    error = write_and_close(fd, bytes);
  }
  if (error == 0 && rename(draft.c_str(), at.path().c_str()) != 0) {
    error = errno;
  }
  if (error != 0) {
    unlink(draft.c_str());
  }
  return error;
}

/// The disk has no room, or fails: what is there stays, as writing into it would lose it as well.
bool of_disk(int error) {
  return error == ENOSPC || error == EDQUOT || error == EFBIG || error == EIO;
}

}  // namespace

Result<void> write_file(const std::string& path, std::span<const std::byte> bytes, mode_t mode) {
  const End end = follow(path);
  int fd = open_what_is_there(path, end);
  if (fd < 0 && errno == ENOENT && end.at.path() == path) {
    const int error = replace(end.at, bytes, mode, nullptr);
    return error == 0 ? Result<void>() : cannot_write(path, error);
  }
  if (fd < 0 && errno == ENOENT) {
    fd = open(path.c_str(), O_WRONLY | O_CREAT | O_NOCTTY | O_CLOEXEC, mode);  // behind a link
  }
  if (fd < 0) {
    return cannot_write(path, errno);
  }
  struct stat known {};
  struct stat found {};
  int error = fstat(fd, &known) == 0 ? 0 : errno;
  // Links may have changed since they were followed: only what the kernel opened is replaced.
  const bool same = lstat(end.at.path().c_str(), &found) == 0 && found.st_dev == known.st_dev &&
                    found.st_ino == known.st_ino;
  if (error == 0 && S_ISREG(known.st_mode) && !end.descriptor && same) {
    // What is for its owner only is not written into a file that somebody else has put there.
    const bool foreign = (mode & 077) == 0 && known.st_uid != geteuid();
    const int kept = replace(end.at, bytes, mode, foreign ? nullptr : &known);
    if (kept == 0 || of_disk(kept)) {
      close(fd);
      return kept == 0 ? Result<void>() : cannot_write(path, kept);
    }
    error = ftruncate(fd, 0) == 0 ? 0 : errno;
  }
  const int written = write_and_close(fd, error == 0 ? bytes : std::span<const std::byte>());
  error = error == 0 ? written : error;
  return error == 0 ? Result<void>() : cannot_write(path, error);
}

Result<void> write_file(const std::string& path, std::string_view text) {
  return write_file(path, std::as_bytes(std::span(text)));
}

Result<void> replace_file(const std::string& path, std::span<const std::byte> bytes, mode_t mode) {
  const int error = replace(place_of(path), bytes, mode, nullptr);
  return error == 0 ? Result<void>() : cannot_write(path, error);
}

}  // namespace nccl_ha
