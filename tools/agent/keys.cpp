#include "tools/agent/keys.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sodium.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "actors/telemetry_packet.h"
#include "runtime/base/check.h"
#include "runtime/base/random.h"
#include "tools/common/process.h"

namespace nccl_ha::tools {
namespace {

static_assert(sizeof(KeyRing::Key) == crypto_auth_KEYBYTES &&
              telemetry_tag_bytes == crypto_auth_BYTES);

const unsigned char* octets(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

/// Where it finds no random bytes the library ends the process: looked for before.
Result<void> begin_sodium() {
  char byte = 0;
  if (auto random = os_random(&byte, 1); !random) {
    return random;
  }
  if (sodium_init() < 0) {
    return fail(Errc::system, "libsodium cannot be used here");
  }
  return {};
}

}  // namespace

Result<TelemetryKeys> TelemetryKeys::read(const std::string& path) {
  if (auto ready = begin_sodium(); !ready) {
    return ready.error();
  }
  auto read = KeyRing::read(path);
  if (!read) {
    return read.error();
  }
  return TelemetryKeys(std::move(*read));
}

Result<void> TelemetryKeys::make(const std::string& path) {
  if (auto ready = begin_sodium(); !ready) {
    return ready;
  }
  std::array<unsigned char, crypto_auth_KEYBYTES> key{};
  crypto_auth_keygen(key.data());
  std::string hex(2 * key.size() + 1, '\0');
  sodium_bin2hex(hex.data(), hex.size(), key.data(), key.size());
  const std::string line = fmt::format("1 {}\n", hex.c_str());
  // The folder of the services' settings is there when they have run.
  std::error_code told_by_open;
  std::filesystem::create_directory(std::filesystem::path(path).parent_path(), told_by_open);
  const Fd file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file || write(file.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    return fail(Errc::system, fmt::format("cannot write {}", path), errno);
  }
  return {};
}

bool TelemetryKeys::verify(uint32_t key, std::span<const std::byte> covered,
                           std::span<const std::byte> tag) const {
  const KeyRing::Key* found = keys_.find(key);
  return found != nullptr && tag.size() == crypto_auth_BYTES &&
         crypto_auth_verify(octets(tag), octets(covered), covered.size(), octets(*found)) == 0;
}

void TelemetryKeys::sign(uint32_t key, std::span<std::byte> datagram) const {
  const KeyRing::Key* found = keys_.find(key);
  NHA_ASSERT(found != nullptr && datagram.size() > telemetry_tag_bytes,
             "a key that is there signs a datagram with room for its tag");
  const auto covered = datagram.first(datagram.size() - telemetry_tag_bytes);
  crypto_auth(reinterpret_cast<unsigned char*>(datagram.data() + covered.size()), octets(covered),
              covered.size(), octets(*found));
}

}  // namespace nccl_ha::tools
