// octile cache why: says whether a problem's kernel would be found, and if not, which entry is
// nearest to it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "cache/file_name.h"
#include "generator/families.h"
#include "runtime/api/boundary.h"
#include "runtime/compiler/cubin.h"
#include "tools/cache/entries.h"
#include "tools/cache/key_difference.h"
#include "tools/cache/verbs.h"
#include "tools/common/output.h"
#include "tools/common/terminal.h"

namespace octile::tools::verbs {
namespace {

using octile::cache::Entry;
using octile::cache::Hit;
using octile::cache::Listing;
using octile::cache::Toolchain;

struct WhyOptions {
  ProblemOptions problem;
  std::vector<std::string> words;  // of the canonical text, quoted or not
  std::int64_t tokens = 4096;
  Option tokens_option;
  std::string device = "h200";
  bool json = false;
};

// The kernel that a plan would look for, and its toolchain.
struct Wanted {
  Problem problem;
  std::int64_t bucket = 0;
  Choice choice;
  EmittedKernel kernel;
  octile::cache::Identity identity;
  std::string digest;
  std::optional<Toolchain>
      toolchain;  // nothing: this process compiles nothing, so any toolchain serves
};

Result<Problem> read_problem(const WhyOptions& options) {
  ProblemOptions problem = options.problem;
  if (!options.words.empty()) {
    if (problem.given()) {
      return refuse(
          "a problem is given twice, as text and by an option; allowed is one of the two");
    }
    problem.set_text(fmt::format("{}", fmt::join(options.words, " ")));
  }
  auto read = problem.read();
  if (!read) return read;
  Status ok = check_tokens_option(options.tokens_option, *read, options.tokens);
  if (ok) ok = check_supported(*read);
  if (!ok) return tl::unexpected<Error>(ok.error());
  return read;
}

Result<Wanted> wanted_kernel(const WhyOptions& options, Engine& engine) {
  auto problem = read_problem(options);
  if (!problem) return tl::unexpected<Error>(problem.error());
  const auto device = device_spec(options.device);
  if (!device) return tl::unexpected<Error>(device.error());
  const TokenAxis axis = token_axis(*problem);
  const std::int64_t tokens = axis.is_dynamic() ? options.tokens : axis.tokens;
  if (is_empty(*problem) || tokens < 1) {
    return refuse(
        fmt::format("'{}' is empty, and no kernel is launched for it; allowed: a problem "
                    "without a dimension of 0",
                    to_text(*problem)));
  }
  // A plan chooses one configuration for all counts of a bucket.
  const std::int64_t bucket = bucket_upper(bucket_of(tokens));
  Choice choice = engine.choose_config(*problem, bucket, *device);
  auto kernel = emit(*problem, choice.config, *device, embedded_templates());
  if (!kernel) return tl::unexpected<Error>(kernel.error());
  octile::cache::Identity identity = identity_of(*kernel, *device);
  std::string digest = octile::cache::digest_hex(octile::cache::key_text(identity));
  std::optional<Toolchain> toolchain;
  if (!engine.options().offline) {
    if (auto known = engine.compiler().toolchain()) toolchain = std::move(*known);
  }
  return Wanted{std::move(*problem), bucket,
                std::move(choice),   std::move(*kernel),
                std::move(identity), std::move(digest),
                std::move(toolchain)};
}

// Returns the entry that would run: the store finds it, and its cubin is the kernel.
std::optional<Hit> find(const Wanted& wanted, octile::cache::Store& store) {
  auto hit = store.peek(wanted.identity, wanted.toolchain);
  if (hit && !validate_cubin(hit->entry.cubin, wanted.identity.architecture,
                             wanted.identity.entry_name, wanted.kernel.parameter_bytes)) {
    return std::nullopt;
  }
  return hit;
}

struct Nearest {
  const Listing* listing = nullptr;
  Entry entry;
};

struct Others {
  std::optional<Nearest> nearest;  // of the entries that can be read
  Json refused = Json::array();    // files under the kernel's own name that cannot be used
};

// Returns what the cache has instead of the kernel. Only one entry at a time is in memory.

Others others(const Wanted& wanted, const std::vector<Listing>& entries,
              octile::cache::Store& store) {
  Others found;
  double most = -1;
  for (const Listing& listing : entries) {
    auto entry = store.read(listing);
    if (!entry) {
      if (digest_of(listing) == wanted.digest)
        found.refused.push_back({{"path", listing.path}, {"reason", entry.error().sentence}});
      continue;
    }
    const double share = key_nearness(wanted.identity, entry->identity);
    if (share <= most) continue;
    most = share;
    found.nearest = Nearest{&listing, std::move(*entry)};
  }
  return found;
}

Json describe_nearest(const Wanted& wanted, const std::optional<Nearest>& nearest) {
  if (!nearest) return nullptr;
  const Entry& entry = nearest->entry;
  Json differences = Json::array();
  for (const KeyDifference& d :
       key_differences(wanted.identity, wanted.toolchain ? &*wanted.toolchain : nullptr,
                       entry.identity, entry.toolchain)) {
    differences.push_back({{"field", d.field}, {"wanted", d.wanted}, {"found", d.found}});
  }
  return {{"digest", digest_of(*nearest->listing)},
          {"path", nearest->listing->path},
          {"problem", entry.metadata.problem},
          {"config", entry.metadata.config},
          {"differences", differences}};
}

Json answer(const Wanted& wanted, octile::cache::Store& store) {
  const auto hit = find(wanted, store);
  Json object{{"problem", to_text(wanted.problem)},
              {"bucket", wanted.bucket},
              {"name", wanted.identity.entry_name},
              {"architecture", wanted.identity.architecture},
              {"config", wanted.kernel.config_text},
              {"chosen_by", name_of(wanted.choice.by)},
              {"digest", wanted.digest},
              {"toolchain", wanted.toolchain ? Json(wanted.toolchain->text()) : Json(nullptr)},
              {"hit", hit.has_value()}};
  if (hit) {
    object.set("path", hit->path);
    object.set("exact_toolchain", hit->exact_toolchain);
    return object;
  }
  std::vector<octile::cache::UnreadPart> unread;
  const std::vector<Listing> entries = store.list(&unread);
  Others found = others(wanted, entries, store);
  object.set("entries", entries.size());
  Json sentences = Json::array();
  for (const auto& part : unread) sentences.push_back(part.sentence);
  object.add("unread", std::move(sentences));
  object.set("refused", std::move(found.refused));
  object.set("nearest", describe_nearest(wanted, found.nearest));
  return object;
}

std::string text_of(const Json& object, const char* field) { return *object.at(field).string(); }

constexpr std::size_t kNameColumns = 15;

// Prints a row of the answer, which continues below its text.
void print_row(std::string_view name, const std::string& text) {
  print_stdout("{:<{}}{}\n", fmt::format("  {}", name), kNameColumns,
               wrapped(text, line_width(), kNameColumns, kNameColumns));
}

void print_nearest(const Json& near, const std::string& config) {
  print_row("nearest", fmt::format("{} ({})", text_of(near, "digest").substr(0, kShownDigits),
                                   text_of(near, "problem")));
  if (text_of(near, "config") != config) {
    print_row("its config", text_of(near, "config"));
    print_row("not", config);
  }
  const Json& differences = near.at("differences");
  for (std::size_t i = 0; i < differences.size(); ++i) {
    const Json& d = differences.at(i);
    print_row(i == 0 ? "differs in" : "and in", text_of(d, "field"));
    print_stdout("    wanted     {}\n    found      {}\n", text_of(d, "wanted"),
                 text_of(d, "found"));
  }
  // The key is this kernel's, so its cubin or its root does not serve.
  if (differences.empty()) print_stdout("  its key is the same, but it is not used; see verify\n");
}

void print_answer(const Json& object, const Engine& engine) {
  print_stdout("{}\n", object.at("hit").boolean().value_or(false) ? "hit" : "miss");
  print_row("kernel", text_of(object, "name"));
  print_row("digest", text_of(object, "digest"));
  print_row("chosen by", text_of(object, "chosen_by"));
  print_row("toolchain", object.at("toolchain").is_null() ? "any: nothing can be compiled here"
                                                          : text_of(object, "toolchain"));
  if (object.at("hit").boolean().value_or(false)) {
    print_row("found at", text_of(object, "path"));
    return;
  }
  for (const Json& file : object.at("refused")) {
    print_row("not used", fmt::format("{}: {}", text_of(file, "path"), text_of(file, "reason")));
  }
  for (const Json& sentence : object.at("unread")) {
    print_stdout("  not read     {}\n", *sentence.string());
  }
  if (object.at("nearest").is_null()) {
    print_stdout("  the cache has no entry that can be read\n");
  } else {
    print_nearest(object.at("nearest"), text_of(object, "config"));
  }
  print_stdout("{}\n", wrapped(engine.options().offline
                                   ? "  OCTILE_OFFLINE forbids compiling it here: unset that, or "
                                     "import an archive that has it (octile cache import)"
                                   : "  the first prepare() of it compiles it; `octile compile` "
                                     "does so ahead of time",
                               line_width(), 4));
}

Result<int> run_why(const WhyOptions& options) {
  const auto library = LibraryHandle::create();
  if (!library) return tl::unexpected<Error>(library.error());
  Engine& engine = library->get()->library.engine;
  const auto wanted = wanted_kernel(options, engine);
  if (!wanted) return tl::unexpected<Error>(wanted.error());
  const Json object = answer(*wanted, engine.store());
  options.json ? print_json(object) : print_answer(object, engine);
  return object.at("hit").boolean().value_or(false) ? 0 : kWouldMiss;
}

}  // namespace

Command add_why(CLI::App& cache) {
  CLI::App* app = add_subcommand(
      cache, "why",
      "say whether a problem's kernel would be found; if not, what is nearest and how it differs",
      "Exit status: 0 it would be found, 1 failed, 2 bad usage, 3 it would be compiled, 130 "
      "interrupted.");
  auto options = std::make_shared<WhyOptions>();
  add_option(*app, "problem", options->words,
             "the problem: its canonical text, MxNxK of a GEMM, or ROWSxCOLS of a tensor to "
             "quantise");
  options->problem.add_to(*app);
  options->tokens_option = add_tokens_option(*app, options->tokens);
  add_target_option(*app, options->device, "the device");
  add_json_option(*app, options->json);
  return {app, [options] { return run_why(*options); }};
}

}  // namespace octile::tools::verbs
