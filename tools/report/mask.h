// Takes addresses and names of hosts out of text, the same one always by the same word.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>

namespace nccl_ha::tools {

class AddressMask {
 public:
  /// A name to take out wherever it stands by itself; one of less than three characters would hit
  /// other words, and is taken out only before a process's number and as a value in quotes.
  void add_host(const std::string& name);
  /// The same of every peer that a label names, as "(HOST, pid N)".
  void add_hosts_of(std::string_view text);
  /// IPv4 and IPv6 addresses, MAC addresses, GIDs and the hosts' names become address-1, host-1...
  std::string mask(std::string_view text);

 private:
  std::string word_for(const std::string& what, const char* kind);

  std::set<std::string, std::greater<>> hosts_;
  std::map<std::string, std::string> words_;
  std::map<std::string, size_t> counts_;
};

}  // namespace nccl_ha::tools
