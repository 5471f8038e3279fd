#include "runtime/base/key_ring.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <sstream>

namespace nccl_ha {
namespace {

constexpr size_t key_file_max = 64 * 1024;

int digit(char one) {
  return one >= '0' && one <= '9'   ? one - '0'
         : one >= 'a' && one <= 'f' ? one - 'a' + 10
         : one >= 'A' && one <= 'F' ? one - 'A' + 10
                                    : -1;
}

bool parse_key(const std::string& hex, KeyRing::Key& key) {
  if (hex.size() != 2 * key.size()) {
    return false;
  }
  for (size_t i = 0; i < key.size(); ++i) {
    const int high = digit(hex[2 * i]);
    const int low = digit(hex[2 * i + 1]);
    if (high < 0 || low < 0) {
      return false;
    }
    key[i] = static_cast<std::byte>(16 * high + low);
  }
  return true;
}

bool parse_key_line(const std::string& line, KeyRing& keys) {
  std::istringstream words(line.substr(0, line.find('#')));
  std::string number_text;
  std::string hex;
  std::string more;
  if (!(words >> number_text)) {
    return true;
  }
  uint32_t number = 0;
  const char* end = number_text.data() + number_text.size();
  const auto [at, error] = std::from_chars(number_text.data(), end, number);
  KeyRing::Key key{};
  if (error != std::errc{} || at != end || number == 0 || keys.find(number) != nullptr ||
      !(words >> hex) || (words >> more) || !parse_key(hex, key)) {
    return false;
  }
  keys.add(number, key);
  return true;
}

}  // namespace

Result<KeyRing> KeyRing::parse(std::string_view text, const std::string& path) {
  KeyRing keys;
  std::istringstream lines{std::string(text)};
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    if (!parse_key_line(line, keys)) {
      return fail(Errc::invalid_argument,
                  fmt::format("{}:{}: a line is 'NUMBER KEY', a number from 1 on that no other key "
                              "has and 64 hexadecimal digits",
                              path, number));
    }
  }
  if (keys.size() == 0 || keys.size() > keys_max) {
    return fail(Errc::invalid_argument,
                fmt::format("{}: there are {} keys in it, from 1 to {} are possible", path,
                            keys.size(), keys_max));
  }
  return keys;
}

Result<KeyRing> KeyRing::read(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  struct stat info {};
  if (file < 0 || fstat(file, &info) != 0) {
    const int error = errno;
    if (file >= 0) {
      close(file);
    }
    return fail(Errc::system, fmt::format("cannot read the keys in {}", path), error);
  }
  std::string text(key_file_max, '\0');
  ssize_t length = -1;
  const bool safe = S_ISREG(info.st_mode) && (info.st_mode & 077) == 0 &&
                    (info.st_uid == geteuid() || info.st_uid == 0);
  if (safe) {
    length = ::read(file, text.data(), text.size());
  }
  const int error = errno;
  close(file);
  if (!safe) {
    return fail(Errc::invalid_argument,
                fmt::format("the keys in {} are not used, as others may read them or "
                            "they are another user's: `chmod 600 {}`",
                            path, path));
  }
  if (length < 0) {
    return fail(Errc::system, fmt::format("cannot read the keys in {}", path), error);
  }
  text.resize(static_cast<size_t>(length));
  return parse(text, path);
}

}  // namespace nccl_ha
