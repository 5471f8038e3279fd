// Finding plugins and symbols in files, good and bad.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>

#include "tests/support/temporary_folder.h"
#include "tools/common/elf_symbols.h"
#include "tools/common/nccl_conf.h"
#include "tools/common/net_library.h"
#include "tools/common/plugin_search.h"

namespace nccl_ha::tools {
namespace {

/// A file that is removed again.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& content) {
    std::ofstream file(path_, std::ios::binary);
    EXPECT_TRUE(file << content << std::flush) << "no temporary file can be made";
  }
  const std::string& path() const { return path_; }

 private:
  const tests::TemporaryFolder folder_;
  const std::string path_ = folder_.path() + "/file";
};

// This test program itself is a good ELF file with a full symbol table.  With sanitizers it is
// large, so that tests that need many bad ones change a copy.

std::string own_head(size_t length) {
  std::string bytes(length, '\0');
  std::ifstream("/proc/self/exe", std::ios::binary)
      .read(bytes.data(), static_cast<std::streamsize>(length));
  return bytes;
}

/// The size of it.
size_t copy_own_to(const TemporaryFile& file) {
  std::filesystem::copy_file("/proc/self/exe", file.path(),
                             std::filesystem::copy_options::overwrite_existing);
  return std::filesystem::file_size(file.path());
}

extern "C" {
__attribute__((used, visibility("default"))) int nha_library_test_marker = 42;
}

void expect_refused(const std::string& file, const std::string& why) {
  const auto found = find_elf_symbols(file, ElfTable::full, {"x"});
  ASSERT_FALSE(found.ok()) << file;
  EXPECT_NE(found.error().message().find(why), std::string::npos) << found.error().message();
  EXPECT_NE(found.error().message().find(file), std::string::npos) << found.error().message();
}

TEST(ElfSymbols, finds_a_symbol_with_kind_and_size) {
  const auto symbol = find_single_symbol("/proc/self/exe", "nha_library_test_marker");
  ASSERT_TRUE(symbol.ok()) << symbol.error().message();
  EXPECT_EQ(symbol->size, sizeof(int));
  EXPECT_TRUE(symbol->is_object);
  EXPECT_FALSE(symbol->is_function);
}

TEST(ElfSymbols, a_missing_symbol_is_an_error_that_counts) {
  const auto symbol = find_single_symbol("/proc/self/exe", "nha_no_such_symbol");
  ASSERT_FALSE(symbol.ok());
  EXPECT_NE(symbol.error().what.find("0 symbols named nha_no_such_symbol"), std::string::npos);
}

TEST(ElfSymbols, says_what_is_wrong_with_a_file) {
  expect_refused("/no/such/file", "No such file");
  expect_refused("/tmp", "not a file");
  const TemporaryFile empty("");
  expect_refused(empty.path(), "empty");
  const TemporaryFile text("hello, I am a text file and quite long enough for a header........");
  expect_refused(text.path(), "not an ELF file");
}

TEST(ElfSymbols, other_machines_and_kinds_are_refused) {
  std::string bytes = own_head(4096);
  bytes[4] = 1;  // 32 bit
  const TemporaryFile narrow(bytes);
  expect_refused(narrow.path(), "64-bit");
  bytes[4] = 2;
  std::string foreign = bytes;
  foreign[18] = 8;  // MIPS
  const TemporaryFile mips(foreign);
  expect_refused(mips.path(), "another kind of processor");
  std::string object = bytes;
  object[16] = 1;  // relocatable
  const TemporaryFile relocatable(object);
  expect_refused(relocatable.path(), "object file");
}

TEST(ElfSymbols, a_file_cut_short_anywhere_is_never_read_beyond_its_end) {
  const TemporaryFile file("");
  const size_t whole = copy_own_to(file);
  const size_t step = whole / 40 + 1;
  int refused = 0;
  for (size_t length = 1 + (whole - 2) / step * step; length < whole; length -= step) {
    std::filesystem::resize_file(file.path(), length);
    refused += find_single_symbol(file.path(), "nha_library_test_marker").ok() ? 0 : 1;
  }
  EXPECT_GE(refused, 38);
}

TEST(ElfSymbols, damaged_headers_do_no_harm) {
  const TemporaryFile file("");
  ASSERT_GT(copy_own_to(file), 64U);
  const std::string head = own_head(64);
  int refused = 0;
  std::fstream bytes(file.path(), std::ios::binary | std::ios::in | std::ios::out);
  for (size_t at = 16; at < head.size(); ++at) {  // every byte of the file header after the magic
    const auto put = [&](char byte) {
      bytes.seekp(static_cast<std::streamoff>(at)).put(byte).flush();
      ASSERT_TRUE(bytes.good());
    };
    put(static_cast<char>(0xff));
    // Some bytes do not matter; none makes a reader leave the file.
    refused += find_elf_symbols(file.path(), ElfTable::full, {"main"}).ok() ? 0 : 1;
    put(head[at]);
  }
  EXPECT_GE(refused, 12) << "kind and processor of the file, place, size and count of its sections";
  const auto again = find_elf_symbols(file.path(), ElfTable::full, {"main"});
  EXPECT_TRUE(again.ok()) << "all was put back: " << again.error().message();
}

TEST(ElfSymbols, needed_versions_name_their_symbols) {
  const auto versions = needed_versions("/proc/self/exe");
  ASSERT_TRUE(versions.ok()) << versions.error().message();
  bool found = false;
  for (const NeededVersion& one : *versions) {
    found = found ||
            (one.library == "libc.so.6" && one.version.starts_with("GLIBC_") &&
             std::find(one.symbols.begin(), one.symbols.end(), "mkdtemp") != one.symbols.end());
  }
  EXPECT_TRUE(found) << "this program calls mkdtemp of libc.so.6";
}

TEST(ElfSymbols, version_tables_of_damaged_files_are_refused) {
  const TemporaryFile file("");
  const size_t whole = copy_own_to(file);
  std::filesystem::resize_file(file.path(), whole / 2);
  EXPECT_FALSE(needed_versions(file.path()).ok()) << "the section table is gone";
  const TemporaryFile text("hello, I am a text file and quite long enough for a header........");
  EXPECT_FALSE(needed_versions(text.path()).ok());
}

TEST(PluginSearch, finds_the_plugin_of_a_build_and_of_an_installation) {
  const tests::TemporaryFolder temporary;
  const std::filesystem::path root = temporary.path();
  const std::string bin = root / "bin";
  std::filesystem::create_directories(bin);
  EXPECT_FALSE(plugin_beside(bin)) << "there is none";
  const auto folders = plugin_folders(bin);
  ASSERT_EQ(folders.front(), bin);
  ASSERT_NE(std::find(folders.begin(), folders.end(), root / "lib"), folders.end());
  ASSERT_NE(std::find(folders.begin(), folders.end(), root / "lib64"), folders.end());
  // The last folder first, so that each that is added comes before those that are there.
  for (size_t i = folders.size(); i-- > 0;) {
    std::filesystem::create_directories(folders[i]);
    const std::string file = folders[i] + "/libnccl-net-ha.so";
    std::ofstream(file) << "x";
    const auto found = plugin_beside(bin);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->file, file);
  }
}

TEST(PluginSearch, tries_the_names_that_nccl_tries) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(nccl_file_names("ha"), (Names{"ha", "libnccl-net-ha.so"}));
  EXPECT_EQ(nccl_file_names("libnccl-net-ha.so"), Names{"libnccl-net-ha.so"});
  EXPECT_EQ(nccl_file_names("/x/y.so"), Names{"/x/y.so"});
}

TEST(PluginSearch, a_library_for_another_system_is_no_missing_one) {
  const tests::TemporaryFolder folder;
  std::string foreign = own_head(4096);
  foreign[18] = 8;  // MIPS
  const std::string file = folder.path() + "/libnccl-net-nha-foreign.so";
  std::ofstream(file, std::ios::binary) << foreign;
  EXPECT_NE(misfit_of(file).find("another kind of processor"), std::string::npos);
  EXPECT_EQ(misfit_of("/proc/self/exe"), "");
  EXPECT_EQ(misfit_of(folder.path() + "/none.so"), "");
  for (const std::string& name : {std::string("nha-foreign"), file}) {
    const PluginSight sight = look_for_plugin([&](const std::string& variable) {
      return variable == "NCCL_NET_PLUGIN"   ? std::optional(name)
             : variable == "LD_LIBRARY_PATH" ? std::optional(folder.path())
                                             : std::nullopt;
    });
    EXPECT_TRUE(sight.misfit);
    EXPECT_NE(sight.text().find("another kind of processor"), std::string::npos) << sight.text();
    EXPECT_NE(sight.remedy().find("built for this system"), std::string::npos) << sight.remedy();
  }
}

TEST(PluginSearch, networks_that_are_not_the_plugins) {
  PluginSight sight;
  EXPECT_FALSE(sight.other_network()) << "not set";
  for (const char* own : {"HA", "ha"}) {
    sight.network = own;
    EXPECT_FALSE(sight.other_network()) << own;
  }
  for (const char* other : {"Socket", "IB", "AWS Libfabric"}) {
    sight.network = other;
    EXPECT_TRUE(sight.other_network()) << other;
  }
}

class NcclConfFiles : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) const {
    const std::string file = folder_.path() + "/" + name;
    std::ofstream(file) << text;
    return file;
  }
  NcclConf read() const {
    return read_nccl_conf(
        [this](const std::string& name) -> std::optional<std::string> {
          const auto found = set_.find(name);
          return found == set_.end() ? std::nullopt : std::optional(found->second);
        },
        folder_.path(), folder_.path() + "/system");
  }
  std::string value(const NcclConf& conf, const std::string& name) const {
    for (const ConfVariable& one : conf.variables) {
      if (one.name == name) {
        return one.value;
      }
    }
    return "(none)";
  }

  const tests::TemporaryFolder folder_;
  std::map<std::string, std::string> set_;
};

TEST_F(NcclConfFiles, the_first_that_sets_a_variable_counts) {
  write(".nccl.conf", "# NCCL_NET=IB\nNCCL_NET=Socket\nNCCL_X\nA=1=2\n");
  const std::string system = write("system", "NCCL_NET=HA\nHA_NCCL_IFNAME==eth0\nB=\nC=3");
  set_["HA_NCCL_IFNAME"] = "";
  NcclConf conf = read();
  EXPECT_EQ(value(conf, "NCCL_NET"), "Socket");
  EXPECT_EQ(value(conf, "A"), "1=2");
  EXPECT_EQ(value(conf, "B"), "");
  EXPECT_EQ(value(conf, "C"), "3") << "without a newline at the end";
  EXPECT_EQ(value(conf, "HA_NCCL_IFNAME"), "(none)") << "the environment has set it, to nothing";
  EXPECT_EQ(conf.file_of("C"), system);
  EXPECT_EQ(conf.file_of("HA_NCCL_IFNAME"), "");
  EXPECT_TRUE(conf.problems.empty());
  set_["NCCL_CONF_FILE"] = write("named", "D=4\n");
  conf = read();
  EXPECT_EQ(value(conf, "D"), "4");
  EXPECT_EQ(value(conf, "NCCL_NET"), "HA") << "in place of the user's own file";
}

TEST_F(NcclConfFiles, what_has_no_effect_is_told) {
  write("system", "NCCL_NET = HA\n =x\nNCCL_DEBUG=INFO\n");
  NcclConf conf = read();
  ASSERT_EQ(conf.problems.size(), 2U);
  EXPECT_NE(conf.problems[0].find("'NCCL_NET = HA' has no effect"), std::string::npos)
      << conf.problems[0];
  EXPECT_EQ(conf.variables.size(), 1U);
  set_["NCCL_CONF_FILE"] = folder_.path() + "/none";
  conf = read();
  ASSERT_EQ(conf.problems.size(), 3U);
  EXPECT_NE(conf.problems[0].find("cannot be read"), std::string::npos) << conf.problems[0];
}

TEST(NetLibrary, names_come_apart_at_the_colon) {
  EXPECT_EQ(split_plugin_name("a.so").file, "a.so");
  EXPECT_EQ(split_plugin_name("dir/a.so:sym").file, "dir/a.so");
  EXPECT_EQ(split_plugin_name("dir/a.so:sym").symbol, "sym");
  EXPECT_EQ(split_plugin_name("dir:x/a.so").file, "dir:x/a.so");
  EXPECT_EQ(split_plugin_name("ha").symbol, "");
}

void expect_open_fails(const std::string& name, int abi, const std::string& why) {
  const auto opened = NetLibrary::open(name, abi);
  ASSERT_FALSE(opened.ok()) << name;
  EXPECT_NE(opened.error().message().find(why), std::string::npos) << opened.error().message();
}

TEST(NetLibrary, wrong_files_give_clear_errors) {
  expect_open_fails("/no/such/plugin.so", 0, "/no/such/plugin.so");
  expect_open_fails("nha-no-such-plugin", 0, "libnccl-net-nha-no-such-plugin.so");
  expect_open_fails("/etc/passwd", 0, "not an ELF file");
  // A library that is no plugin: the names looked for are listed.
  expect_open_fails("libm.so.6", 0, "ncclNetPlugin_v12, ncclNetPlugin_v11");
  expect_open_fails("libm.so.6", 0, "ncclNetPlugin_v6");
  expect_open_fails("libm.so.6:ncclNetPlugin_v8", 0, "no symbol ncclNetPlugin_v8");
  expect_open_fails("libm.so.6:cos", 0, "--abi");
  expect_open_fails("libm.so.6", 5, "--abi 5");
}

TEST(NetApi, an_incomplete_table_is_refused_by_the_missing_call) {
  abi::NetV8 table{};
  table.name = "partial";
  const auto api = NetApi::make(&table, 8);
  ASSERT_FALSE(api.ok());
  EXPECT_NE(api.error().what.find("no init"), std::string::npos) << api.error().what;
  EXPECT_FALSE(NetApi::make(&table, 13).ok());
}

std::optional<Result<KnownNet>> partial_or_refused(const std::string& name) {
  static abi::NetV8 table{};
  table.name = "partial";
  if (name == "refused") {
    return Result<KnownNet>(fail(Errc::invalid_argument, "for a test"));
  }
  return name == "partial" ? std::optional(Result<KnownNet>(KnownNet{&table, 8, "somewhere"}))
                           : std::nullopt;
}

TEST(NetLibrary, a_program_may_know_plugins_that_are_no_files) {
  know_nets(&partial_or_refused);
  expect_open_fails("partial", 0, "somewhere: ");
  expect_open_fails("partial", 7, "'partial' of somewhere has ABI v8 only");
  expect_open_fails("refused", 0, "for a test");
  expect_open_fails("nha-no-such-plugin", 0, "libnccl-net-nha-no-such-plugin.so");
  know_nets(nullptr);
  expect_open_fails("partial", 0, "libnccl-net-partial.so");
}

}  // namespace
}  // namespace nccl_ha::tools
