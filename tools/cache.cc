// octile cache: what is in the cache folders.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <vector>

#include "cache/file_name.h"
#include "runtime/api/boundary.h"
#include "tools/command.h"
#include "tools/common/kernel_report.h"
#include "tools/common/text_table.h"

namespace octile::tools {
namespace {

struct Options {
  CLI::App* list = nullptr;
  CLI::App* show = nullptr;
  CLI::App* path = nullptr;
  std::string digest;
  bool source = false;
  bool json = false;
};

// Digits of a digest that a listing shows; `show` takes any prefix that names one entry.
constexpr std::size_t kShownDigits = 12;

std::string digest_of(const cache::Listing& listing) {
  const auto name = cache::parse_file_name(std::filesystem::path(listing.path).filename().string());
  return name ? name->stem.identity : std::string();
}

// Everything but source and cubin.
Json to_json(const cache::Listing& listing) {
  Json object{{"digest", digest_of(listing)}, {"path", listing.path}, {"bytes", listing.bytes}};
  if (!listing.entry) {
    object["damaged"] = listing.entry.error();
    return object;
  }
  const cache::Entry& e = *listing.entry;
  const cache::Metadata& m = e.metadata;
  object.update({{"name", e.identity.entry_name},
                 {"architecture", e.identity.architecture},
                 {"problem", m.problem},
                 {"config", m.config},
                 {"toolchain", e.toolchain.text()},
                 {"options", e.identity.options},
                 {"threads", m.threads},
                 {"cluster", m.cluster_size},
                 {"registers", m.registers},
                 {"smem_bytes", m.static_smem_bytes + m.dynamic_smem_bytes},
                 {"spill_store_bytes", m.spill_store_bytes},
                 {"spill_load_bytes", m.spill_load_bytes},
                 {"stack_bytes", m.stack_bytes},
                 {"parameter_bytes", m.parameter_bytes},
                 {"compile_ms", m.compile_ms},
                 {"cubin_bytes", e.cubin.size()},
                 {"source_bytes", e.identity.source.size()},
                 {"date", m.date}});
  return object;
}

void print_list(const std::vector<cache::Listing>& entries) {
  TextTable table({"<digest", "<architecture", "size", "<date", "<problem"});
  std::int64_t bytes = 0;
  for (const cache::Listing& listing : entries) {
    bytes += listing.bytes;
    const std::string digest = digest_of(listing).substr(0, kShownDigits);
    const std::string size = bytes_text(static_cast<double>(listing.bytes));
    if (listing.entry) {
      table.add_row({digest, listing.entry->identity.architecture, size,
                     listing.entry->metadata.date, listing.entry->metadata.problem});
    } else {
      table.add_row({digest, "-", size, "-", "damaged: " + listing.entry.error()});
    }
  }
  if (!entries.empty()) fmt::print("{}\n", table.render());
  fmt::print("  {} entr{}, {}\n", entries.size(), entries.size() == 1 ? "y" : "ies",
             bytes_text(static_cast<double>(bytes)));
}

Status list(const std::vector<cache::Listing>& entries, bool json) {
  if (!json) {
    print_list(entries);
    return {};
  }
  Json all = Json::array();
  for (const cache::Listing& listing : entries) all.push_back(to_json(listing));
  print_json(all);
  return {};
}

Result<const cache::Listing*> find(const std::vector<cache::Listing>& entries,
                                   const std::string& prefix) {
  const cache::Listing* found = nullptr;
  int matches = 0;
  for (const cache::Listing& listing : entries) {
    if (!digest_of(listing).starts_with(prefix)) continue;
    found = &listing;
    ++matches;
  }
  if (matches == 1) return found;
  return refuse(fmt::format(
      "digest is '{}', with which {} of the {} entries begin; allowed: the first digits of exactly "
      "one, see `octile cache list`",
      prefix, matches == 0 ? "none" : std::to_string(matches), entries.size()));
}

void print_fields(const Json& object) {
  std::size_t width = 0;
  for (const auto& item : object.items()) width = std::max(width, item.key().size());
  for (const auto& item : object.items()) {
    const std::string value =
        item.value().is_string() ? item.value().get<std::string>() : item.value().dump();
    fmt::print("{:<{}}  {}\n", item.key(), width, value);
  }
}

Status show(const std::vector<cache::Listing>& entries, const Options& options) {
  const auto found = find(entries, options.digest);
  if (!found) return tl::unexpected<Error>(found.error());
  const cache::Listing& listing = **found;
  if (!options.source) {
    if (options.json) {
      print_json(to_json(listing));
    } else {
      print_fields(to_json(listing));
    }
    return {};
  }
  if (!listing.entry) {
    return fail(ErrorCode::kInternal,
                fmt::format("{} is damaged: {}", listing.path, listing.entry.error()));
  }
  if (options.json) {
    print_json({{"digest", digest_of(listing)}, {"source", listing.entry->identity.source}});
  } else {
    fmt::print("{}", listing.entry->identity.source);
  }
  return {};
}

Status path(const cache::StoreOptions& store, bool json) {
  if (json) {
    print_json({{"root", store.writable_root}, {"read_only_roots", store.read_only_roots}});
    return {};
  }
  fmt::print("{}\n", store.writable_root);
  for (const std::string& root : store.read_only_roots) fmt::print("{} (read only)\n", root);
  return {};
}

Status run(const Options& options) {
  const auto library = LibraryHandle::create();
  if (!library) return tl::unexpected<Error>(library.error());
  cache::Store& store = library->get()->library.engine.store();
  if (options.path->parsed()) return path(store.options(), options.json);
  const std::vector<cache::Listing> entries = store.list();
  return options.list->parsed() ? list(entries, options.json) : show(entries, options);
}

}  // namespace

Command add_cache(CLI::App& root) {
  CLI::App* app = root.add_subcommand("cache", "look into the kernel cache");
  app->require_subcommand(1);
  auto options = std::make_shared<Options>();
  options->list = app->add_subcommand("list", "every entry of every root");
  options->show = app->add_subcommand("show", "what one entry says");
  options->path =
      app->add_subcommand("path", "the folders the cache is in, the writable one first");
  options->show->add_option("digest", options->digest, "first digits of the entry's digest")
      ->required();
  options->show->add_flag("--source", options->source, "print its CUDA source instead");
  for (CLI::App* sub : {options->list, options->show, options->path}) {
    add_json_option(*sub, options->json);
  }
  return {app, [options] { return run(*options); }};
}

}  // namespace octile::tools
