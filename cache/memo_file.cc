#include "cache/memo_file.h"

#include <fmt/format.h>

#include <cstdint>
#include <span>
#include <utility>

namespace octile::cache {

MemoFile::MemoFile(const std::string& root, std::string name, std::shared_ptr<FileOps> file_ops,
                   std::string folder)
    : ops_(or_system(std::move(file_ops))),
      root_(root, true, ops_),
      name_(std::move(name)),
      folder_(std::move(folder)),
      path_(fmt::format("{}/{}{}{}", root_.path(), folder_, folder_.empty() ? "" : "/", name_)) {}

IoResult<OpenFile> MemoFile::open_folder(Root::Missing missing) const {
  return folder_.empty() ? root_.open(missing) : root_.open_in_root(folder_, missing);
}

IoResult<std::string> MemoFile::read() const {
  const auto folder = open_folder(Root::Missing::kFail);
  if (!folder) return tl::unexpected(folder.error());
  const auto bytes =
      read_file(*ops_, folder->fd(), name_, kMaxMemoBytes, path_, unwritable_by_others(path_));
  if (!bytes) return tl::unexpected(bytes.error());
  return std::string(bytes->begin(), bytes->end());
}

IoResult<void> MemoFile::replace(std::string_view text) const {
  if (text.size() > kMaxMemoBytes) {
    return tl::unexpected(IoError{
        0, fmt::format("{}: {} bytes; allowed: at most {}", path_, text.size(), kMaxMemoBytes)});
  }
  const auto folder = open_folder(Root::Missing::kCreate);
  if (!folder) return tl::unexpected(folder.error());
  const std::span bytes(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
  return replace_file(*ops_, *folder, name_, name_, bytes, path_);
}

}  // namespace octile::cache
