#include "tools/common/elf_symbols.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

namespace nccl_ha::tools {
namespace {

#if defined(__x86_64__)
constexpr uint16_t this_machine = EM_X86_64;
#elif defined(__aarch64__)
constexpr uint16_t this_machine = EM_AARCH64;
#else
constexpr uint16_t this_machine = EM_NONE;
#endif

/// A file mapped for reading.
class MappedFile {
 public:
  MappedFile() = default;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile() {
    if (data_ != nullptr) {
      munmap(data_, size_);
    }
  }

  Result<void> open(const std::string& file) {
    const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
      return fail(Errc::invalid_argument, fmt::format("cannot open {}", file), errno);
    }
    struct stat status {};
    const bool regular = fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
    if (!regular) {
      ::close(fd);
      return fail(Errc::invalid_argument, fmt::format("{} is not a file", file));
    }
    size_ = static_cast<size_t>(status.st_size);
    void* at = size_ == 0 ? MAP_FAILED : mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
    const int error = size_ == 0 ? 0 : errno;
    ::close(fd);
    if (at == MAP_FAILED) {
      return size_ == 0 ? fail(Errc::invalid_argument, fmt::format("{} is empty", file))
                        : fail(Errc::system, fmt::format("cannot map {}", file), error);
    }
    data_ = at;
    return {};
  }

  /// Copies a T from `offset`; nothing when it does not lie within the file.
  template <class T>
  std::optional<T> at(uint64_t offset) const {
    if (offset > size_ || size_ - offset < sizeof(T)) {
      return std::nullopt;
    }
    T value;
    std::memcpy(&value, static_cast<const std::byte*>(data_) + offset, sizeof(T));
    return value;
  }

  /// The zero-terminated text at `offset` that ends before `end`; empty when there is none.
  std::string_view text(uint64_t offset, uint64_t end) const {
    end = std::min<uint64_t>(end, size_);
    if (offset >= end) {
      return {};
    }
    const char* begin = static_cast<const char*>(data_) + offset;
    const void* stop = std::memchr(begin, 0, end - offset);
    return stop == nullptr
               ? std::string_view()
               : std::string_view(begin,
                                  static_cast<size_t>(static_cast<const char*>(stop) - begin));
  }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

Result<Elf64_Ehdr> read_header(const MappedFile& map, const std::string& file) {
  const auto wrong = [&](std::string_view why) {
    return fail(Errc::invalid_argument,
                fmt::format("{} is not a usable shared object: {}", file, why));
  };
  const auto ident = map.at<std::array<unsigned char, EI_NIDENT>>(0);
  if (!ident || std::memcmp(ident->data(), ELFMAG, SELFMAG) != 0) {
    return wrong("it is not an ELF file");
  }
  const auto header = map.at<Elf64_Ehdr>(0);
  if (!header || (*ident)[EI_CLASS] != ELFCLASS64 || (*ident)[EI_DATA] != ELFDATA2LSB) {
    return wrong("it is not a 64-bit little-endian ELF file");
  }
  if (header->e_machine != this_machine) {
    return wrong("it was built for another kind of processor");
  }
  if (header->e_type != ET_DYN) {
    return wrong("it is an object file or a program");
  }
  if (header->e_shentsize != sizeof(Elf64_Shdr) && header->e_shnum != 0) {
    return wrong("its section table has an unknown layout");
  }
  return *header;
}

}  // namespace

Result<std::vector<ElfSymbol>> find_elf_symbols(const std::string& file, ElfTable table,
                                                const std::vector<std::string>& names) {
  MappedFile map;
  if (auto opened = map.open(file); !opened) {
    return opened.error();
  }
  const auto header = read_header(map, file);
  if (!header) {
    return header.error();
  }
  const auto cut = [&] {
    return fail(Errc::invalid_argument, fmt::format("{} is damaged: it ends before its symbol "
                                                    "table does",
                                                    file));
  };
  const uint32_t wanted_type = table == ElfTable::full ? SHT_SYMTAB : SHT_DYNSYM;
  std::vector<ElfSymbol> found;
  for (uint64_t index = 0; index < header->e_shnum; ++index) {
    const auto section = map.at<Elf64_Shdr>(header->e_shoff + index * sizeof(Elf64_Shdr));
    if (!section) {
      return cut();
    }
    if (section->sh_type != wanted_type) {
      continue;
    }
    const auto strings =
        section->sh_link < header->e_shnum
            ? map.at<Elf64_Shdr>(header->e_shoff + section->sh_link * sizeof(Elf64_Shdr))
            : std::nullopt;
    if (!strings || strings->sh_offset + strings->sh_size < strings->sh_offset) {
      return cut();
    }
    const uint64_t strings_end = strings->sh_offset + strings->sh_size;
    for (uint64_t i = 0; i < section->sh_size / sizeof(Elf64_Sym); ++i) {
      const auto symbol = map.at<Elf64_Sym>(section->sh_offset + i * sizeof(Elf64_Sym));
      if (!symbol) {
        return cut();
      }
      const std::string_view name = map.text(strings->sh_offset + symbol->st_name, strings_end);
      if (symbol->st_shndx == SHN_UNDEF ||
          std::find(names.begin(), names.end(), name) == names.end()) {
        continue;
      }
      const auto type = ELF64_ST_TYPE(symbol->st_info);
      found.push_back({std::string(name), symbol->st_value, symbol->st_size, type == STT_FUNC,
                       type == STT_OBJECT});
    }
  }
  return found;
}

namespace {

/// The version tables of a mapped file whose header is known to be good.
class VersionReader {
 public:
  VersionReader(const MappedFile& map, const Elf64_Ehdr& header) : map_(map), header_(header) {}

  /// False: something lies outside of the file.
  bool read() {
    const bool whole = header_.e_shnum == 0 || section(header_.e_shnum - 1U);
    return whole && read_needs() && read_symbols();
  }
  std::vector<NeededVersion> take() { return std::move(versions_); }

 private:
  std::optional<Elf64_Shdr> section(uint64_t index) const {
    return index < header_.e_shnum
               ? map_.at<Elf64_Shdr>(header_.e_shoff + index * sizeof(Elf64_Shdr))
               : std::nullopt;
  }
  /// The first of a type, with the string table that it names.
  bool find(uint32_t type, Elf64_Shdr* found, Elf64_Shdr* strings) const {
    for (uint64_t i = 0; i < header_.e_shnum; ++i) {
      const auto one = section(i);
      if (one && one->sh_type == type) {
        const auto linked = section(one->sh_link);
        *found = *one;
        *strings = linked.value_or(Elf64_Shdr{});
        return linked.has_value();
      }
    }
    return false;
  }
  std::string_view text(const Elf64_Shdr& strings, uint64_t offset) const {
    return map_.text(strings.sh_offset + offset, strings.sh_offset + strings.sh_size);
  }

  bool read_needs() {
    Elf64_Shdr table;
    Elf64_Shdr strings;
    if (!find(SHT_GNU_verneed, &table, &strings)) {
      return true;  // a file that needs none
    }
    uint64_t at = table.sh_offset;
    for (uint32_t i = 0; i < table.sh_info; ++i) {
      const auto need = map_.at<Elf64_Verneed>(at);
      if (!need) {
        return false;
      }
      uint64_t aux_at = at + need->vn_aux;
      for (uint32_t j = 0; j < need->vn_cnt; ++j) {
        const auto aux = map_.at<Elf64_Vernaux>(aux_at);
        if (!aux) {
          return false;
        }
        indices_.push_back(aux->vna_other);
        versions_.push_back({std::string(text(strings, need->vn_file)),
                             std::string(text(strings, aux->vna_name)),
                             {}});
        aux_at += aux->vna_next;
      }
      at += need->vn_next;
    }
    return true;
  }

  bool read_symbols() {
    Elf64_Shdr symbols;
    Elf64_Shdr strings;
    Elf64_Shdr indices;
    Elf64_Shdr unused;
    if (!find(SHT_DYNSYM, &symbols, &strings) || !find(SHT_GNU_versym, &indices, &unused)) {
      return true;
    }
    for (uint64_t i = 0; i < symbols.sh_size / sizeof(Elf64_Sym); ++i) {
      const auto symbol = map_.at<Elf64_Sym>(symbols.sh_offset + i * sizeof(Elf64_Sym));
      const auto index = map_.at<Elf64_Versym>(indices.sh_offset + i * sizeof(Elf64_Versym));
      if (!symbol || !index) {
        return false;
      }
      const auto found = std::find(indices_.begin(), indices_.end(), *index);
      if (symbol->st_shndx == SHN_UNDEF && found != indices_.end()) {
        versions_[static_cast<size_t>(found - indices_.begin())].symbols.emplace_back(
            text(strings, symbol->st_name));
      }
    }
    return true;
  }

  const MappedFile& map_;
  const Elf64_Ehdr header_;
  std::vector<uint16_t> indices_;  ///< what symbols call the version of the same place by
  std::vector<NeededVersion> versions_;
};

}  // namespace

Result<std::vector<NeededVersion>> needed_versions(const std::string& file) {
  MappedFile map;
  if (auto opened = map.open(file); !opened) {
    return opened.error();
  }
  const auto header = read_header(map, file);
  if (!header) {
    return header.error();
  }
  VersionReader reader(map, *header);
  if (!reader.read()) {
    return fail(Errc::invalid_argument,
                fmt::format("{} is damaged: it ends before its version tables do", file));
  }
  return reader.take();
}

Result<ElfSymbol> find_single_symbol(const std::string& file, const std::string& name) {
  auto found = find_elf_symbols(file, ElfTable::full, {name});
  if (!found) {
    return found.error();
  }
  if (found->size() != 1) {
    return fail(
        Errc::invalid_argument,
        fmt::format("{} holds {} symbols named {}, expected exactly one{}", file, found->size(),
                    name, found->empty() ? " (it may be stripped, or of another release)" : ""));
  }
  return found->front();
}

}  // namespace nccl_ha::tools
