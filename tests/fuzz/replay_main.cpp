// Runs a fuzz target without libFuzzer: every file of its corpus, then seeded mutations of them, so
// that the presets with GCC (and its sanitizers) exercise the same entry point in a second or two.
//
// usage: NAME_fuzz CORPUS_DIR [MUTATIONS]
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <system_error>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Input = std::vector<uint8_t>;

std::vector<Input> read_corpus(const std::string& folder) {
  std::vector<std::filesystem::path> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.is_regular_file()) {
      names.push_back(entry.path());
    }
  }
  std::sort(names.begin(), names.end());  // the order of a directory is not repeatable
  std::vector<Input> corpus;
  for (const auto& name : names) {
    std::ifstream file(name, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return corpus;
}

// The target must not read past the end: each input lies in a block of exactly its size, so that
// the address sanitizer sees one byte too far.
void run(const Input& input) {
  const Input exact(input.begin(), input.end());
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

void mutate(Input& input, std::mt19937_64& random) {
  const uint64_t edits = 1 + random() % 4;
  for (uint64_t i = 0; i < edits; ++i) {
    const auto at = static_cast<std::ptrdiff_t>(input.empty() ? 0 : random() % input.size());
    switch (random() % 5) {
      case 0:  // flip a bit
        if (!input.empty()) {
          input[static_cast<size_t>(at)] ^= static_cast<uint8_t>(1U << (random() % 8));
        }
        break;
      case 1:  // extreme byte
        if (!input.empty()) {
          input[static_cast<size_t>(at)] = (random() & 1U) != 0 ? 0xff : 0x00;
        }
        break;
      case 2:  // cut the end off
        input.resize(static_cast<size_t>(at));
        break;
      case 3:  // insert
        input.insert(input.begin() + at, static_cast<uint8_t>(random()));
        break;
      default:  // remove
        if (!input.empty()) {
          input.erase(input.begin() + at);
        }
        break;
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s CORPUS_DIR [MUTATIONS]\n", argv[0]);
    return 2;
  }
  const std::vector<Input> corpus = read_corpus(argv[1]);
  if (corpus.empty()) {
    std::fprintf(stderr, "%s: no files there, so there is nothing to replay\n", argv[1]);
    return 1;
  }
  const uint64_t mutations_max = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 100000;
  // The n-th mutation is always the same; a slow build only gets fewer of them.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  run({});
  for (const Input& input : corpus) {
    run(input);
  }
  std::mt19937_64 random(1);
  uint64_t mutations = 0;
  while (mutations < mutations_max && std::chrono::steady_clock::now() < deadline) {
    ++mutations;
    Input input = corpus[random() % corpus.size()];
    mutate(input, random);
    run(input);
  }
  std::printf("replayed %zu files and %llu mutations\n", corpus.size(),
              static_cast<unsigned long long>(mutations));
  return 0;
}
