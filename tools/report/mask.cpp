#include "tools/report/mask.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

namespace nccl_ha::tools {
namespace {

constexpr size_t name_min = 3;

bool is_part_of_address(char c) {
  return std::isxdigit(static_cast<unsigned char>(c)) != 0 || c == ':' || c == '.';
}
bool is_part_of_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_';
}

bool parses(int family, const std::string& text) {
  std::array<unsigned char, 16> address{};
  return inet_pton(family, text.c_str(), address.data()) == 1;
}

bool is_mac(std::string_view text) {
  if (text.size() != 17) {
    return false;
  }
  for (size_t i = 0; i < text.size(); ++i) {
    if ((i % 3 == 2) != (text[i] == ':') || text[i] == '.') {
      return false;
    }
  }
  return true;
}

/// How much of a run of hexadecimal digits, colons and dots is an address: a port may follow, and
/// so may the end of a sentence.
size_t address_length(std::string_view run) {
  for (size_t length = run.size(); length >= 2; --length) {
    const std::string part(run.substr(0, length));
    if (part.find(':') == std::string::npos && part.find('.') == std::string::npos) {
      return 0;
    }
    if (is_mac(part) || parses(AF_INET, part) || parses(AF_INET6, part)) {
      return length;
    }
  }
  return 0;
}

}  // namespace

void AddressMask::add_host(const std::string& name) {
  if (name.size() >= name_min && name != "host" && name != "localhost") {
    hosts_.insert(name);
  }
}

std::string AddressMask::word_for(const std::string& what, const char* kind) {
  std::string& word = words_[what];
  if (word.empty()) {
    word = fmt::format("{}-{}", kind, ++counts_[kind]);
  }
  return word;
}

std::string AddressMask::mask(std::string_view text) {
  std::string out;
  size_t at = 0;
  while (at < text.size()) {
    const bool begins =
        at == 0 || (!is_part_of_name(text[at - 1]) && text[at - 1] != ':' && text[at - 1] != '.');
    if (begins && is_part_of_address(text[at])) {
      size_t end = at;
      while (end < text.size() && is_part_of_address(text[end])) {
        ++end;
      }
      const size_t length = address_length(text.substr(at, end - at));
      if (length != 0) {
        out += word_for(std::string(text.substr(at, length)), "address");
        at += length;
        continue;
      }
    }
    const auto host = std::find_if(hosts_.begin(), hosts_.end(), [&](const std::string& name) {
      return begins && text.substr(at, name.size()) == name &&
             (at + name.size() == text.size() || !is_part_of_name(text[at + name.size()]));
    });
    if (host != hosts_.end()) {
      out += word_for(*host, "host");
      at += host->size();
      continue;
    }
    out += text[at++];
  }
  return out;
}

}  // namespace nccl_ha::tools
