// Reading the symbol tables of an ELF file without loading it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/result.h"

namespace nccl_ha::tools {

/// One defined symbol.
struct ElfSymbol {
  std::string name;
  uint64_t address = 0;  ///< relative to the load base
  uint64_t size = 0;
  bool is_function = false;
  bool is_object = false;
};

/// Which table to read.
enum class ElfTable : uint8_t {
  full,     ///< .symtab: also local symbols; stripped files have none
  dynamic,  ///< .dynsym: what dlsym sees
};

/// All defined symbols of a 64-bit little-endian shared object whose name is in `names`.  Every
/// offset in the file is checked against its length; errors name the file and what is wrong with
/// it: missing, not a regular file, not ELF, not a shared object, another machine, cut short.
Result<std::vector<ElfSymbol>> find_elf_symbols(const std::string& file, ElfTable table,
                                                const std::vector<std::string>& names);

/// The one symbol of that name in the full table; none or several are errors.
Result<ElfSymbol> find_single_symbol(const std::string& file, const std::string& name);

/// A version that a file needs another one to have: GLIBC_2.34 of libc.so.6.
struct NeededVersion {
  std::string library;
  std::string version;
  std::vector<std::string> symbols;  ///< that it is needed for
};

/// All of them, of a file as above.  Errors as above.
Result<std::vector<NeededVersion>> needed_versions(const std::string& file);

}  // namespace nccl_ha::tools
