#include "tools/agent/keys.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <sstream>

#include "actors/telemetry_packet.h"
#include "runtime/base/check.h"
#include "tools/common/process.h"

namespace nccl_ha::tools {
namespace {

static_assert(TelemetryKeys::key_bytes == crypto_auth_KEYBYTES &&
              telemetry_tag_bytes == crypto_auth_BYTES);

constexpr size_t file_max = 64 * 1024;

const unsigned char* octets(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

Result<void> parse_line(const std::string& line, TelemetryKeys& keys) {
  std::istringstream words(line.substr(0, line.find('#')));
  std::string number_text;
  std::string hex;
  std::string more;
  if (!(words >> number_text)) {
    return {};
  }
  uint32_t number = 0;
  const auto [at, error] =
      std::from_chars(number_text.data(), number_text.data() + number_text.size(), number);
  TelemetryKeys::Key key{};
  size_t length = 0;
  const bool good = error == std::errc{} && at == number_text.data() + number_text.size() &&
                    number != 0 && (words >> hex) && !(words >> more) &&
                    sodium_hex2bin(key.data(), key.size(), hex.data(), hex.size(), nullptr, &length,
                                   nullptr) == 0 &&
                    length == key.size() && hex.size() == 2 * key.size();
  if (!good) {
    return fail(Errc::invalid_argument,
                "a line is 'NUMBER KEY', a number from 1 on and 64 hexadecimal digits");
  }
  keys.add(number, key);
  return {};
}

}  // namespace

Result<TelemetryKeys> TelemetryKeys::read(const std::string& path) {
  if (sodium_init() < 0) {
    return fail(Errc::system, "libsodium cannot be used here");
  }
  const Fd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info {};
  if (!file || fstat(file.get(), &info) != 0) {
    return fail(Errc::system, fmt::format("cannot read the keys in {}", path), errno);
  }
  if (!S_ISREG(info.st_mode) || (info.st_mode & 077) != 0) {
    return fail(Errc::invalid_argument,
                fmt::format("the keys in {} are not used, as others may read them: `chmod 600 {}`",
                            path, path));
  }
  std::string text;
  while (text.size() < file_max && read_some(file.get(), text)) {
  }
  TelemetryKeys keys;
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    if (auto parsed = parse_line(line, keys); !parsed) {
      return fail(Errc::invalid_argument,
                  fmt::format("{}:{}: {}", path, number, parsed.error().what));
    }
  }
  if (keys.empty()) {
    return fail(Errc::invalid_argument, fmt::format("{}: there is no key in it", path));
  }
  return keys;
}

Result<void> TelemetryKeys::make(const std::string& path) {
  if (sodium_init() < 0) {
    return fail(Errc::system, "libsodium cannot be used here");
  }
  Key key{};
  crypto_auth_keygen(key.data());
  std::string hex(2 * key.size() + 1, '\0');
  sodium_bin2hex(hex.data(), hex.size(), key.data(), key.size());
  const std::string line = fmt::format("1 {}\n", hex.c_str());
  const Fd file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file || write(file.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    return fail(Errc::system, fmt::format("cannot write {}", path), errno);
  }
  return {};
}

bool TelemetryKeys::verify(uint32_t key, std::span<const std::byte> covered,
                           std::span<const std::byte> tag) const {
  const auto found = keys_.find(key);
  return found != keys_.end() && tag.size() == crypto_auth_BYTES &&
         crypto_auth_verify(octets(tag), octets(covered), covered.size(), found->second.data()) ==
             0;
}

void TelemetryKeys::sign(uint32_t key, std::span<std::byte> datagram) const {
  const auto found = keys_.find(key);
  NHA_ASSERT(found != keys_.end() && datagram.size() > telemetry_tag_bytes,
             "a key that is there signs a datagram with room for its tag");
  const auto covered = datagram.first(datagram.size() - telemetry_tag_bytes);
  crypto_auth(reinterpret_cast<unsigned char*>(datagram.data() + covered.size()), octets(covered),
              covered.size(), found->second.data());
}

}  // namespace nccl_ha::tools
