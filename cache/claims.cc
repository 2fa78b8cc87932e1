#include "cache/claims.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <limits>
#include <utility>

#include "cache/json.h"

namespace octile::cache {
namespace {

constexpr const char* kClaimsName = "claims";
constexpr std::size_t kMostBytes = 4096;  // of a claim, which has about 150
// The server's time is not asked for again within this number of seconds, so that looking at many
// claims touches a file once. It makes a claim look younger by as much.
constexpr double kSameTimeSeconds = 1;

std::span<const std::uint8_t> claim_bytes(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

std::string line_of(const ProcessIdentity& self, const std::string& rank) {
  return Json::object()
             .add("version", 1)
             .add("rank", rank)
             .add("host", self.host)
             .add("place", self.place)
             .add("process", self.number)
             .add("started", self.started)
             .dump_ascii() +
         "\n";
}

struct Content {
  bool has_owner = false;
  ProcessIdentity owner;
  std::string rank, word;
};

// A claim that cannot be read has an owner of whom nothing is known.
Content content_of(std::string_view text) {
  Content content;
  const std::size_t end = std::min(text.find('\n'), text.size());
  const auto line = parse_object(text.substr(0, end), "claim");
  if (!line) return content;
  content.has_owner = true;
  const auto text_of = [&](const char* name) {
    const Json* found = line->find(name);
    const std::string* value = found == nullptr ? nullptr : found->string();
    return value == nullptr ? std::string() : *value;
  };
  const auto number_of = [&](const char* name) {
    const Json* found = line->find(name);
    return found == nullptr ? 0 : found->integer().value_or(0);
  };
  content.owner = {text_of("place"), text_of("host"), number_of("process"), number_of("started")};
  content.rank = text_of("rank");
  std::string_view rest = text.substr(std::min(end + 1, text.size()));
  content.word = rest.substr(0, std::min(rest.find('\n'), rest.size()));
  return content;
}

}  // namespace

Claims::Claims(const std::string& root, std::string rank, ProcessIdentity self,
               ClaimOptions options, std::shared_ptr<FileOps> ops)
    : ops_(or_system(std::move(ops))),
      root_(root, true, ops_),
      rank_(std::move(rank)),
      self_(std::move(self)),
      options_([&] {
        if (!options.clock) {
          options.clock = [] {
            const std::chrono::duration<double> now =
                std::chrono::steady_clock::now().time_since_epoch();
            return now.count();
          };
        }
        return std::move(options);
      }()),
      line_(line_of(self_, rank_)),
      beaten_(options_.clock()),
      asked_(-std::numeric_limits<double>::infinity()) {}

IoResult<OpenFile> Claims::open_folder() const {
  return root_.open_in_root(kClaimsName, Root::Missing::kCreate);
}

std::string Claims::path_of(const std::string& name) const {
  return fmt::format("{}/{}/{}", root_.path(), kClaimsName, name);
}

IoResult<ClaimState> Claims::claim(const std::string& question, int g) {
  const auto folder = open_folder();
  if (!folder) return tl::unexpected(folder.error());
  const std::string name = fmt::format("{}.{}", question, g);
  const auto made = make(*folder, name);
  if (!made) return tl::unexpected(made.error());
  if (!*made) {
    const auto mine = open_.find(question);
    if (mine == open_.end() || mine->second != name) return state_of(*folder, name);
  }
  open_.insert_or_assign(question, name);
  return ClaimState::kMine;
}

// Returns false if the file exists. One whose owner cannot be written stays as it is and is
// nobody's soon.
IoResult<bool> Claims::make(const OpenFile& folder, const std::string& name) const {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  const int fd = retry_interrupted([&] { return ops_->open_at(folder.fd(), name, kFlags, 0644); });
  if (fd == -EEXIST) return false;
  if (fd < 0) return io_failure("create", path_of(name), fd);
  OpenFile file(*ops_, fd);
  const ssize_t written = retry_interrupted([&] { return ops_->write(fd, claim_bytes(line_)); });
  if (written < 0) return io_failure("write", path_of(name), written);
  if (const int closed = file.close(); closed < 0)
    return io_failure("close", path_of(name), closed);
  return true;
}

IoResult<ClaimState> Claims::state_of(const OpenFile& folder, const std::string& name) {
  const auto bytes = read_file(*ops_, folder.fd(), name, kMostBytes, path_of(name));
  if (!bytes) return tl::unexpected(bytes.error());
  const Content content = content_of({reinterpret_cast<const char*>(bytes->data()), bytes->size()});
  if (content.word == kReleased) return ClaimState::kGone;
  if (has_ended(*ops_, content.owner, self_)) return ClaimState::kGone;
  const auto touched = modified_ns(folder, name);
  if (!touched) return tl::unexpected(touched.error());
  const auto now = server_ns(folder);
  if (!now) return tl::unexpected(now.error());
  const double age = 1e-9 * static_cast<double>(*now - *touched);
  if (age > (content.has_owner ? options_.lease_seconds : options_.ownerless_seconds))
    return ClaimState::kGone;
  return content.word == kFailed ? ClaimState::kFailed : ClaimState::kTaken;
}

// Opens the file, for which a client of NFS asks the server.
IoResult<std::int64_t> Claims::modified_ns(const OpenFile& folder, const std::string& name) const {
  struct stat status = {};
  const auto file =
      open_regular(*ops_, folder.fd(), name, O_RDONLY, 0, path_of(name), nullptr, &status);
  if (!file) return tl::unexpected(file.error());
  return status.st_mtim.tv_sec * std::int64_t{1'000'000'000} + status.st_mtim.tv_nsec;
}

IoResult<std::int64_t> Claims::server_ns(const OpenFile& folder) {
  const double now = options_.clock();
  if (now - asked_ < kSameTimeSeconds) return server_ns_;
  const std::string name = "now." + rank_;
  if (const auto made = make(folder, name); !made) return tl::unexpected(made.error());
  const int touched = retry_interrupted([&] { return ops_->touch_at(folder.fd(), name); });
  if (touched < 0) return io_failure("touch", path_of(name), touched);
  auto server = modified_ns(folder, name);
  if (!server) return server;
  asked_ = now;
  server_ns_ = *server;
  return server_ns_;
}

void Claims::beat() {
  const double now = options_.clock();
  if (open_.empty() || now - beaten_ < options_.beat_seconds) return;
  beaten_ = now;
  const auto folder = open_folder();
  if (!folder) return;  // the next beat tries again
  for (const auto& [question, name] : open_) (void)ops_->touch_at(folder->fd(), name);
}

void Claims::close(const std::string& question, std::string_view word) {
  const auto claimed = open_.extract(question);
  if (claimed.empty() || word.empty()) return;
  const auto folder = open_folder();
  if (!folder) return;  // the lease ends it
  const std::string& name = claimed.mapped();
  const auto file =
      open_regular(*ops_, folder->fd(), name, O_WRONLY | O_APPEND, 0, path_of(name), nullptr);
  if (file) (void)ops_->write(file->fd(), claim_bytes(std::string(word) + "\n"));
}

void Claims::let_go() {
  while (!open_.empty()) close(open_.begin()->first, kReleased);
}

}  // namespace octile::cache
