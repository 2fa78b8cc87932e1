#include "runtime/compiler/file_digest.h"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <system_error>
#include <vector>

#include "cache/key.h"
#include "runtime/fork.h"

namespace octile {
namespace {

tl::unexpected<Error> unreadable(const std::string& path) {
  return fail(ErrorCode::kNoCompiler, fmt::format("\"{}\" cannot be read: {}", path,
                                                  std::generic_category().message(errno)));
}

// Returns the text that must be unchanged for a remembered digest to be valid. The path comes last,
// because it may contain spaces.
Result<std::string> stat_key(const std::string& path) {
  struct stat info = {};
  if (stat(path.c_str(), &info) != 0) return unreadable(path);
  return fmt::format("{} {}.{:09} {} {}", info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec,
                     info.st_ino, path);
}

Result<std::string> read_and_hash(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             &std::fclose);
  if (file == nullptr) return unreadable(path);
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(),
                                                                              &XXH3_freeState);
  if (state == nullptr) return fail(ErrorCode::kOutOfMemory, "no memory for a digest");
  XXH3_128bits_reset(state.get());
  std::vector<char> buffer(std::size_t{1} << 20);
  while (const std::size_t bytes = std::fread(buffer.data(), 1, buffer.size(), file.get()))
    XXH3_128bits_update(state.get(), buffer.data(), bytes);
  if (std::ferror(file.get()) != 0) return unreadable(path);
  const XXH128_hash_t hash = XXH3_128bits_digest(state.get());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

// A memo line is "<checksum of the rest> <digest> <stat key>".
constexpr std::size_t kHexDigits = 32;

std::string memo_line(const std::string& key, const std::string& digest) {
  const std::string rest = fmt::format("{} {}", digest, key);
  return fmt::format("{} {}\n", cache::digest_hex(rest), rest);
}

std::string find_in_memo(const std::string& memo_file, const std::string& key) {
  std::ifstream in(memo_file);
  for (std::string line; std::getline(in, line);) {
    if (line.size() < 2 * kHexDigits + 2) continue;
    const std::string digest = line.substr(kHexDigits + 1, kHexDigits);
    if (line + "\n" == memo_line(key, digest)) return digest;
  }
  return {};
}

// Appends with one write, which POSIX keeps whole among writers of a local file. A torn line (NFS,
// a full disk) fails its checksum and is ignored.
void add_to_memo(const std::string& memo_file, const std::string& key, const std::string& digest) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(memo_file.c_str(), "ae"),
                                                             &std::fclose);
  if (file == nullptr) return;
  std::fputs(memo_line(key, digest).c_str(), file.get());
}

}  // namespace

Result<std::string> file_digest(const std::string& path, const std::string& memo_file) {
  // Never destroyed: threads may still run when the process exits.
  static auto& remembered = *new std::map<std::string, std::string>;
  const std::scoped_lock lock(process_mutex(ProcessWide::kDigests));
  auto key = stat_key(path);
  if (!key) return key;
  if (const auto found = remembered.find(*key); found != remembered.end()) return found->second;
  if (!memo_file.empty()) {
    if (const std::string digest = find_in_memo(memo_file, *key); !digest.empty())
      return remembered[*key] = digest;
  }
  auto digest = read_and_hash(path);
  if (!digest) return digest;
  if (!memo_file.empty()) add_to_memo(memo_file, *key, *digest);
  return remembered[*key] = *digest;
}

}  // namespace octile
