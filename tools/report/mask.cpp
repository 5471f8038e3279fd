#include "tools/report/mask.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

namespace nccl_ha::tools {
namespace {

/// Shorter names would hit other words: they are taken out only where a host stands.
constexpr size_t name_min = 3;
constexpr size_t host_name_max = 253;  // RFC 1035
/// The longest text of an address: IPv6 with an IPv4 at its end.
constexpr size_t address_max = INET6_ADDRSTRLEN - 1;

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

/// Whether an address may begin behind what comes before; `four`: of IPv4 only.
bool may_begin(std::string_view before, bool& four) {
  four = false;
  if (before.empty() ||
      (!is_part_of_name(before.back()) && before.back() != ':' && before.back() != '.')) {
    return true;
  }
  if (before.back() == '-' || before.back() == '_') {
    four = true;  // of a range of addresses, or behind a name
    return true;
  }
  if (before.back() != ':') {
    return false;
  }
  // "eth0:10.1.2.3": of a word that is no group of an address the colon is a mark between two.
  before.remove_suffix(1);
  size_t word = 0;
  bool hexadecimal = true;
  while (word < before.size() && word < address_max &&
         is_part_of_name(before[before.size() - 1 - word])) {
    hexadecimal = hexadecimal &&
                  std::isxdigit(static_cast<unsigned char>(before[before.size() - 1 - word])) != 0;
    ++word;
  }
  four = hexadecimal;
  return true;
}

/// How much of `text` is an address, from its begin; 0: none.
size_t address_at(std::string_view text, bool four) {
  size_t end = 0;
  while (end < text.size() && end < address_max && is_part_of_address(text[end])) {
    ++end;
  }
  if (four) {
    end = std::min(end, text.substr(0, end).find(':'));
  }
  return address_length(text.substr(0, end));
}

/// "(a, pid 7)", "a:7" and a value in quotes.
bool stands_as_host(std::string_view before, std::string_view after) {
  const char left = before.empty() ? ' ' : before.back();
  if (left == '"' && after.starts_with('"')) {
    return true;
  }
  return after.starts_with(", pid ") ||
         (after.size() > 1 && after[0] == ':' && after[1] >= '0' && after[1] <= '9');
}

}  // namespace

void AddressMask::add_host(const std::string& name) {
  if (!name.empty() && name != "host" && name != "localhost") {
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
    const std::string_view before = text.substr(0, at);
    bool four = false;
    if (is_part_of_address(text[at]) && may_begin(before, four)) {
      const size_t length = address_at(text.substr(at), four);
      if (length != 0) {
        out += word_for(std::string(text.substr(at, length)), "address");
        at += length;
        continue;
      }
    }
    const bool begins = before.empty() || (!is_part_of_name(before.back()) &&
                                           before.back() != ':' && before.back() != '.');
    const auto host = std::find_if(hosts_.begin(), hosts_.end(), [&](const std::string& name) {
      if (!begins || text.substr(at, name.size()) != name) {
        return false;
      }
      const std::string_view after = text.substr(at + name.size());
      return (after.empty() || !is_part_of_name(after.front())) &&
             (name.size() >= name_min || stands_as_host(before, after));
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

void AddressMask::add_hosts_of(std::string_view text) {
  constexpr std::string_view mark = ", pid ";
  for (size_t at = text.find(mark); at != std::string_view::npos; at = text.find(mark, at + 1)) {
    const size_t begin = at > host_name_max + 1 ? at - host_name_max - 1 : 0;
    const std::string_view before = text.substr(begin, at - begin);
    if (const size_t open = before.rfind('('); open != std::string_view::npos) {
      const std::string_view name = before.substr(open + 1);
      if (std::ranges::all_of(name, [](char c) { return is_part_of_name(c) || c == '.'; })) {
        add_host(std::string(name));
      }
    }
  }
}

}  // namespace nccl_ha::tools
