// Which hosts a command starts its ranks on, and how.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "tools/common/environment.h"
#include "tools/common/host_list.h"
#include "tools/common/remote_ranks.h"

namespace nccl_ha::tools {
namespace {

TEST(CheckHosts, NamesAndAddresses) {
  const auto hosts = parse_hosts("a,b=10.0.0.2,c.example=fe80::1");
  ASSERT_TRUE(hosts) << hosts.error().message();
  EXPECT_EQ((*hosts)[0].address, "a");
  EXPECT_EQ((*hosts)[1].name, "b");
  EXPECT_EQ((*hosts)[1].address, "10.0.0.2");
  EXPECT_EQ((*hosts)[2].address, "fe80::1");
  for (const char* bad : {"a", "", "a,a", "a,", "a,b;rm", "-oProxyCommand=x,b", "a,b=", "a b,c"}) {
    EXPECT_FALSE(parse_hosts(bad)) << bad;
  }
}

TEST(CheckHosts, AddressesMayStandInBrackets) {
  const auto hosts = parse_hosts("[fd00::1],b=[fe80::2%eth0],n[1-2]");
  ASSERT_TRUE(hosts) << hosts.error().message();
  ASSERT_EQ(hosts->size(), 4U);
  EXPECT_EQ((*hosts)[0].name, "fd00::1");
  EXPECT_EQ((*hosts)[0].address, "fd00::1");
  EXPECT_EQ((*hosts)[1].address, "fe80::2%eth0");
  EXPECT_EQ((*hosts)[3].name, "n2");
}

TEST(CheckHosts, RangesStandForMany) {
  const auto hosts = parse_hosts("n[08-10,12]x,h[1-2]=10.0.0.[11-12]");
  ASSERT_TRUE(hosts) << hosts.error().message();
  ASSERT_EQ(hosts->size(), 6U);
  EXPECT_EQ((*hosts)[0].name, "n08x");
  EXPECT_EQ((*hosts)[2].name, "n10x");
  EXPECT_EQ((*hosts)[3].address, "n12x");
  EXPECT_EQ((*hosts)[5].name, "h2");
  EXPECT_EQ((*hosts)[5].address, "10.0.0.12");
  for (const char* bad : {"n[1-", "n[3-1]", "n[a-b]", "n1]", "n[1-2]=10.0.0.1", "n[0-99999]",
                          "a[1-100]b[1-100]", "n[1-2],n2"}) {
    EXPECT_FALSE(parse_hosts(bad)) << bad;
  }
  EXPECT_NE(parse_hosts("").error().what.find("empty"), std::string::npos);
}

TEST(CheckHosts, FilesAndJobs) {
  const std::string file = testing::TempDir() + "nha-hosts-" + std::to_string(getpid());
  const auto with = [&](const char* text) {
    std::ofstream(file) << text;
    return read_hosts(file);
  };
  auto hosts = with("# all\na slots=4\n\nb:2\nc=10.0.0.3 # third\na\nn[1-2]\n");
  ASSERT_TRUE(hosts) << hosts.error().message();
  std::string names;
  for (const NamedHost& host : *hosts) {
    names += host.name + "/" + host.address + " ";
  }
  EXPECT_EQ(names, "a/a b/b c/10.0.0.3 n1/n1 n2/n2 ");
  hosts = with("[fd00::1]:4\n[fd00::2] slots=2\nfd00::3\n");
  ASSERT_TRUE(hosts) << hosts.error().message();
  ASSERT_EQ(hosts->size(), 3U);
  EXPECT_EQ((*hosts)[0].address, "fd00::1");
  EXPECT_EQ((*hosts)[1].address, "fd00::2");
  EXPECT_EQ((*hosts)[2].address, "fd00::3");
  hosts = with("a\n$(reboot)\n");
  ASSERT_FALSE(hosts);
  EXPECT_NE(hosts.error().what.find(file + ":2"), std::string::npos) << hosts.error().what;
  EXPECT_FALSE(with("a\n")) << "one is too few";
  static_cast<void>(with("x\ny\n"));
  const auto job = [&](const std::string& name, const std::string& value) {
    return named_hosts("job", "", [=](const std::string& asked) {
      return asked == name ? std::optional(value) : std::nullopt;
    });
  };
  EXPECT_EQ(job("SLURM_JOB_NODELIST", "gpu[3-5]")->size(), 3U);
  EXPECT_EQ((*job("PBS_NODEFILE", file))[1].name, "y");
  EXPECT_NE(job("HOME", "/").error().what.find("no job"), std::string::npos);
  std::remove(file.c_str());
  EXPECT_FALSE(read_hosts(file));
}

TEST(CheckHosts, TheRemoteCommandIsSafeForAShell) {
  RemoteOptions options;
  options.hosts = *parse_hosts("a,b=10.0.0.2");
  options.shell = "ssh -o BatchMode=yes";
  options.program = "/usr/bin/nccl-ha";
  options.words = {"check", "--json"};
  const auto words = remote_command(options, 1);
  ASSERT_TRUE(words) << words.error().message();
  EXPECT_EQ((*words)[0], "ssh");
  EXPECT_EQ((*words)[3], "b");
  EXPECT_EQ((*words)[4], "--");
  const std::set<std::string> all(words->begin(), words->end());
  for (const char* word : {"RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=a", "MASTER_PORT=29400",
                           "/usr/bin/nccl-ha", "--json"}) {
    EXPECT_TRUE(all.contains(word)) << word;
  }
  options.words.emplace_back("$(reboot)");
  EXPECT_FALSE(remote_command(options, 1));
  options.shell = "  ";
  EXPECT_FALSE(remote_command(options, 0));
}

TEST(CheckHosts, SettingsAreInNoCommandLine) {
  RemoteOptions options;
  options.hosts = *parse_hosts("a,b");
  options.program = "/usr/bin/nccl-ha";
  const char* value = "=rail0, $(reboot)\n'x";
  for (const char* name : {"HA_NCCL_TEST_WORD", "NCCL_TEST_WORD", "MPIB_TEST_WORD"}) {
    setenv(name, value, 1);
  }
  const auto words = remote_command(options, 1);
  ASSERT_TRUE(words) << words.error().message();
  for (const std::string& word : *words) {
    EXPECT_EQ(word.find("TEST_WORD"), std::string::npos) << word;
  }
  int ends[2] = {-1, -1};
  ASSERT_EQ(pipe(ends), 0);
  const std::string settings = remote_settings() + "x";
  ASSERT_EQ(write(ends[1], settings.data(), settings.size()),
            static_cast<ssize_t>(settings.size()));
  close(ends[1]);
  for (const char* name : {"HA_NCCL_TEST_WORD", "NCCL_TEST_WORD", "MPIB_TEST_WORD"}) {
    unsetenv(name);
  }
  EXPECT_TRUE(take_remote_settings(ends[0]));
  for (const char* name : {"HA_NCCL_TEST_WORD", "NCCL_TEST_WORD", "MPIB_TEST_WORD"}) {
    EXPECT_STREQ(getenv(name), value) << name;
    unsetenv(name);
  }
  EXPECT_FALSE(take_remote_settings(ends[0])) << "what follows has no end";
  close(ends[0]);
}

}  // namespace
}  // namespace nccl_ha::tools
