#include "tools/lab/state.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "tools/lab/guest_port.h"

namespace nccl_ha::tools::lab {
namespace {

namespace fs = std::filesystem;

/// A socket's path has 107 characters; the directory and a file name take part of them.
constexpr size_t name_max = 32;
constexpr size_t answer_max = 1 << 20;
/// More than a lab takes to tell several guests' emulators.
constexpr time_t answer_seconds = 60;

fs::path root_directory() {
  if (geteuid() == 0) {
    return "/run/nccl-ha-lab";
  }
  if (const char* runtime = getenv("XDG_RUNTIME_DIR"); runtime != nullptr && *runtime == '/') {
    return fs::path(runtime) / "nccl-ha-lab";
  }
  return fmt::format("/tmp/nccl-ha-lab-{}", geteuid());
}

/// The directory above all labs; nobody else's.
Result<fs::path> own_root() {
  const fs::path root = root_directory();
  if (mkdir(root.c_str(), 0700) != 0 && errno != EEXIST) {
    return fail(Errc::system, fmt::format("cannot make {}", root.string()), errno);
  }
  struct stat found {};
  if (lstat(root.c_str(), &found) != 0 || !S_ISDIR(found.st_mode) || found.st_uid != geteuid()) {
    return fail(Errc::system,
                fmt::format("{} is not a directory of this user; remove it", root.string()));
  }
  return root;
}

bool valid_name(const std::string& name) {
  return !name.empty() && name.size() <= name_max && name != "." && name != ".." &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
         });
}

/// A lock that belongs to an open file: children that inherit it hold it too, until they exec.
struct flock whole_file() {
  struct flock range {};
  range.l_type = F_WRLCK;
  range.l_whence = SEEK_SET;
  return range;
}

Fd open_lock(const fs::path& path, int flags) {
  return Fd(open((path / "lock").c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | flags, 0600));
}

/// The lock of a lab's directory, or none when the lab runs or there is no such directory.
Fd lock_directory(const fs::path& path, int flags) {
  Fd lock = open_lock(path, flags);
  auto range = whole_file();
  if (lock && fcntl(lock.get(), F_OFD_SETLK, &range) != 0) {
    lock.reset();
  }
  return lock;
}

/// Only looks, so that it never stands in the way of a lab that starts.
bool is_locked(const fs::path& path) {
  const Fd lock = open_lock(path, 0);
  auto range = whole_file();
  return lock && fcntl(lock.get(), F_OFD_GETLK, &range) == 0 && range.l_type != F_UNLCK;
}

}  // namespace

Result<LabDirectory> LabDirectory::create(const std::string& name) {
  if (!valid_name(name)) {
    return fail(Errc::invalid_argument,
                fmt::format("'{}' is no name for a lab: use up to {} letters, digits, '-', '_' "
                            "and '.'",
                            name, name_max));
  }
  auto root = own_root();
  if (!root) {
    return root.error();
  }
  fs::path path = *root / name;
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return fail(Errc::system, fmt::format("cannot make {}", path.string()), errno);
  }
  Fd lock = lock_directory(path, O_CREAT);
  if (!lock) {
    return fail(
        Errc::invalid_argument,
        fmt::format("a lab '{}' runs already; give this one another name with --name", name));
  }
  std::error_code ignored;
  for (const auto& left : fs::directory_iterator(path, ignored)) {
    if (left.path().filename() != "lock") {
      fs::remove_all(left.path(), ignored);
    }
  }
  return LabDirectory(std::move(path), std::move(lock));
}

LabDirectory::~LabDirectory() {
  if (lock_) {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
}

std::vector<KnownLab> known_labs() {
  std::vector<KnownLab> labs;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(root_directory(), ignored)) {
    if (entry.is_directory(ignored)) {
      labs.push_back({entry.path().filename(), entry.path(), is_locked(entry.path())});
    }
  }
  std::sort(labs.begin(), labs.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return labs;
}

std::vector<std::string> remove_crashed_labs(const std::string& name) {
  std::vector<std::string> removed;
  for (const KnownLab& lab : known_labs()) {
    if (!name.empty() && lab.name != name) {
      continue;
    }
    const Fd lock = lock_directory(lab.path, 0);
    std::error_code error;
    if (lock && fs::remove_all(lab.path, error) > 0 && !error) {
      removed.push_back(lab.name);
    }
  }
  return removed;
}

Result<KnownLab> running_lab(const std::string& name) {
  if (auto port = find_guest_port()) {
    return KnownLab{name, std::move(*port), true};
  }
  std::vector<KnownLab> running;
  std::string names;
  for (KnownLab& lab : known_labs()) {
    if (lab.running) {
      names += (names.empty() ? "" : ", ") + lab.name;
      running.push_back(std::move(lab));
    }
  }
  if (running.empty()) {
    return fail(Errc::invalid_argument,
                fmt::format("no lab of this user runs{}; start one with `nccl-ha lab run`",
                            name.empty() ? "" : fmt::format(", so no '{}'", name)));
  }
  // A program on a host means its own lab.
  const char* own = std::getenv("NHA_LAB");
  const std::string wanted = name.empty() && own != nullptr ? own : name;
  if (wanted.empty() && running.size() == 1) {
    return running.front();
  }
  for (const KnownLab& lab : running) {
    if (lab.name == wanted) {
      return lab;
    }
  }
  return fail(Errc::invalid_argument,
              wanted.empty() ? fmt::format("several labs run; say which with --lab: {}", names)
                             : fmt::format("no lab '{}' runs; running: {}", wanted, names));
}

namespace {

/// What the lab said, on one line.
Result<std::string> ask_through_socket(const KnownLab& lab, const std::string& line) {
  const std::string path = lab.path / "control";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd || path.size() >= sizeof address.sun_path) {
    return fail(Errc::system, "cannot make a socket to the lab", errno);
  }
  path.copy(address.sun_path, path.size());
  const timeval limit{answer_seconds, 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      send(fd.get(), line.data(), line.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(line.size())) {
    return fail(Errc::system, fmt::format("lab '{}' cannot be reached", lab.name), errno);
  }
  std::string text;
  char buffer[4096];
  ssize_t got = 0;
  while ((got = recv(fd.get(), buffer, sizeof buffer, 0)) > 0 && text.size() < answer_max) {
    text.append(buffer, static_cast<size_t>(got));
  }
  return text;
}

}  // namespace

Result<nlohmann::json> ask_lab(const KnownLab& lab, const nlohmann::json& request) {
  const std::string line = request.dump() + "\n";
  const bool guest = fs::is_character_file(lab.path);
  auto text = guest ? ask_through(lab.path, line) : ask_through_socket(lab, line);
  if (!text) {
    return text.error();
  }
  auto answer = nlohmann::json::parse(*text, nullptr, false);
  if (!answer.is_object()) {
    return fail(Errc::remote,
                fmt::format("lab '{}' gave no answer: it ended, or is stuck", lab.name));
  }
  if (answer.contains("error")) {
    return fail(Errc::invalid_argument, answer["error"].is_string()
                                            ? answer["error"].get<std::string>()
                                            : answer["error"].dump());
  }
  return answer;
}

}  // namespace nccl_ha::tools::lab
