// octile cache show: prints one entry, its source, or its machine code.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "runtime/api/boundary.h"
#include "runtime/compiler/cubin.h"
#include "tools/cache/entries.h"
#include "tools/cache/verbs.h"
#include "tools/common/output.h"
#include "tools/compile/disassemble.h"
#include "tools/compile/resources.h"

namespace octile::tools::verbs {
namespace {

using octile::cache::Entry;
using octile::cache::Listing;
using Read = tl::expected<Entry, octile::cache::EntryError>;

struct ShowOptions {
  std::string digest;
  bool source = false;
  bool sass = false;
  bool json = false;
};

void print_fields(const Json& object) {
  std::size_t width = 0;
  for (const auto& item : object.items()) width = std::max(width, item.name.size());
  for (const auto& [name, value] : object.items()) {
    print_stdout("{:<{}}  {}\n", name, width,
                 printable_line(value.string() == nullptr ? value.dump() : *value.string()));
  }
}

void print_resources(const CubinInfo& cubin) {
  for (const CubinKernel& k : cubin.kernels) {
    int parameter_bytes = 0;
    for (const CubinParameter& p : k.parameters) parameter_bytes += p.size_bytes;
    print_stdout(
        "\nELF image for sm_{}: {}\n"
        "  {} registers, {} B of frame, {} B of stack, {} B of static shared memory,\n"
        "  at most {} threads, {} parameters of {} B\n",
        cubin.sm, k.name, k.registers, k.frame_bytes, k.min_stack_bytes, k.static_smem_bytes,
        k.max_threads, k.parameters.size(), parameter_bytes);
  }
}

// Returns the head of the entry and what only the whole entry says. For an entry that is
// damaged or cannot be read it returns what is wrong.
Json describe(const Listing& listing, const Read& entry) {
  Json object = to_json(listing);
  if (!entry) {
    object.set(word_of(entry.error()), entry.error().sentence);
    return object;
  }
  object.set("options", entry->identity.options);
  object.set("source_bytes", entry->identity.source.size());
  return object;
}

Result<int> print_entry(const Listing& listing, const Read& entry, bool json) {
  Json object = describe(listing, entry);
  if (!entry) {
    json ? print_json(object) : print_fields(object);
    return entry.error().unread ? kUnread : kDamaged;
  }
  const auto cubin = read_cubin(entry->cubin);
  if (json) {
    object.set("elf", cubin ? resources(*cubin) : Json{{"damaged", cubin.error().message}});
    print_json(object);
  } else {
    print_fields(object);
    if (cubin) print_resources(*cubin);
    if (!cubin) print_stdout("\nELF image: {}\n", cubin.error().message);
  }
  return cubin ? 0 : kDamaged;
}

// Prints the source or the machine code: the text alone, or as one field beside the digest.
int print_text(const Listing& listing, const char* field, const std::string& text, bool json) {
  if (json) {
    print_json({{"digest", digest_of(listing)}, {field, text}});
  } else {
    print_stdout("{}", text);
  }
  return 0;
}

Result<int> show(const Listing& listing, const Read& entry, const ShowOptions& options) {
  if (!options.source && !options.sass) return print_entry(listing, entry, options.json);
  if (!entry && entry.error().unread) return fail(ErrorCode::kInternal, entry.error().sentence);
  if (!entry) {
    return fail(ErrorCode::kInternal,
                fmt::format("{} is damaged: {}; compiling its problem again replaces it",
                            listing.path, entry.error().sentence));
  }
  if (options.source) return print_text(listing, "source", entry->identity.source, options.json);
  const auto sass = disassemble(entry->cubin);
  if (!sass) return tl::unexpected<Error>(sass.error());
  return print_text(listing, "sass", *sass, options.json);
}

// The digests that a shell offers. Warnings would disturb the line that is typed.
std::vector<std::string> shown_digests() {
  std::vector<std::string> digests;
  const auto library = LibraryHandle::create_silent();
  if (!library) return digests;
  for (const Listing& listing : library->get()->library.engine.store().list())
    digests.push_back(digest_of(listing).substr(0, kShownDigits));
  return digests;
}

Result<int> run_show(const ShowOptions& options) {
  const auto library = LibraryHandle::create();
  if (!library) return tl::unexpected<Error>(library.error());
  octile::cache::Store& store = library->get()->library.engine.store();
  std::vector<octile::cache::UnreadPart> unread;
  const std::vector<Listing> entries = store.list(&unread);
  const auto found = find_entry(entries, unread, options.digest);
  if (!found) return tl::unexpected<Error>(found.error());
  return show(**found, store.read(**found), options);
}

}  // namespace

Command add_show(CLI::App& cache) {
  CLI::App* app =
      add_subcommand(cache, "show", "print one entry, and what its ELF image needs of the device",
                     "Exit status: 0 printed, 1 failed, 2 bad usage, 3 damaged or not read, as "
                     "printed, 130 interrupted.");
  auto options = std::make_shared<ShowOptions>();
  add_option(*app, "digest", options->digest, "first digits of the entry's digest")
      .require()
      .complete_with(shown_digests);
  const Option source =
      add_flag(*app, "--source", options->source, "print its CUDA source instead");
  add_flag(*app, "--sass", options->sass,
           "print its machine code instead, with nvdisasm or cuobjdump of the CUDA toolkit")
      .exclude(source);
  add_json_option(*app, options->json);
  return {app, [options] { return run_show(*options); }};
}

}  // namespace octile::tools::verbs
