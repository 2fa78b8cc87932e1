#include "runtime/process/find_program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <utility>
#include <vector>

#include "cache/rights.h"
#include "runtime/process/own_folder.h"

namespace octile {
namespace {

bool is_program(const std::string& path) {
  const auto file = cache::resolve_links(path);
  struct stat status = {};
  return file && cache::FileOps().stat_at(AT_FDCWD, *file, status) == 0 &&
         S_ISREG(status.st_mode) && (status.st_mode & (S_IXUSR | S_IXGRP | S_IXOTH)) != 0;
}

}  // namespace

tl::expected<std::string, std::string> find_program(std::string_view name) {
  const std::string& folder = own_file().folder;
  if (folder.empty())
    return tl::unexpected(std::string("the folder of Octile's own file is unknown"));
  const std::array places{fmt::format("{}{}", folder, name),
                          fmt::format("{}{}/{}", folder, OCTILE_LIBRARY_TO_PROGRAMS, name)};
  cache::FileOps ops;
  std::vector<std::string> refused;
  for (const std::string& place : places) {
    if (!is_program(place)) continue;
    if (cache::has_more_rights_than_caller()) return trusted_program(ops, place);
    auto checked = check_code(ops, place);
    if (checked) return std::move(*checked);
    refused.push_back(fmt::format("\"{}\" is not started: {}", place, checked.error().sentence));
  }
  if (!refused.empty()) return tl::unexpected(fmt::format("{}", fmt::join(refused, "; ")));
  return tl::unexpected(
      fmt::format("{} is neither at \"{}\" nor at \"{}\"", name, places[0], places[1]));
}

tl::expected<std::string, std::string> trusted_program(cache::FileOps& ops,
                                                       const std::string& program) {
  if (!cache::own_user_is_trusted())
    return tl::unexpected(
        fmt::format("\"{}\" is not started, because this process has more rights than its user, "
                    "who could change a process of {}",
                    program, program.substr(program.rfind('/') + 1)));
  auto file = cache::resolve_links(program);
  if (!file) return tl::unexpected(file.error().sentence);
  if (const auto checked = cache::check_path_unwritable_by_others(ops, *file); !checked)
    return tl::unexpected(
        fmt::format("\"{}\" is not started by a process with more rights than its caller: {}",
                    program, checked.error().sentence));
  return std::move(*file);
}

}  // namespace octile
