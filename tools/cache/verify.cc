// octile cache verify: checks every entry against its own description.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/api/boundary.h"
#include "tools/cache/check_kernel.h"
#include "tools/cache/entries.h"
#include "tools/cache/filter.h"
#include "tools/cache/verbs.h"
#include "tools/common/on_workers.h"
#include "tools/common/output.h"

namespace octile::tools::verbs {
namespace {

using octile::cache::Entry;
using octile::cache::Listing;

struct VerifyOptions {
  EntryFilter filter;
  bool recompile = false;
  int jobs = 0;
  bool json = false;
  bool progress = false;
};

enum class State {
  kGood,
  kDamaged,
  kUnread,          // nothing is known about it
  kOtherVersion,    // a version of the format that this reader does not know
  kSame,            // good, and compiling it again gives the same bytes
  kDiffers,         // good, and compiling it again gives other bytes
  kNotCompiled,     // good, and the compiler gave nothing to compare with
  kOtherToolchain,  // good, and this machine's compiler is not the entry's
};

std::string_view name_of(State state) {
  switch (state) {
    case State::kGood:
      return "good";
    case State::kDamaged:
      return "damaged";
    case State::kUnread:
      return "unread";
    case State::kOtherVersion:
      return "other version";
    case State::kSame:
      return "same";
    case State::kDiffers:
      return "differs";
    case State::kNotCompiled:
      return "not compiled";
    case State::kOtherToolchain:
      return "other toolchain";
  }
  return "unknown";
}

struct Verdict {
  State state = State::kGood;
  std::string reason;  // empty if the state is good or same
};

Verdict check_entry(const Listing& listing, const tl::expected<Entry, cache::EntryError>& entry) {
  if (!entry && entry.error().unread) {
    return {State::kUnread, sentence_of(listing, entry.error())};
  }
  if (!entry) {
    return {listing.other_version ? State::kOtherVersion : State::kDamaged, entry.error().sentence};
  }
  const Status ok = check_kernel(*entry);
  return ok ? Verdict{} : Verdict{State::kDamaged, ok.error().message};
}

Verdict compile_again(const Entry& entry, Compiler& compiler, const cache::Toolchain& toolchain) {
  if (entry.toolchain != toolchain) {
    return {State::kOtherToolchain,
            fmt::format("compiled by {}, here is {}", entry.toolchain.text(), toolchain.text())};
  }
  const auto output = compiler.compile(entry.identity.entry_name + ".cu", entry.identity.source,
                                       entry.identity.options);
  if (!output) return {State::kNotCompiled, output.error().message};
  if (output->cubin == entry.cubin) return {State::kSame, ""};
  const auto [stored, compiled] = std::ranges::mismatch(entry.cubin, output->cubin);
  return {State::kDiffers,
          fmt::format("the compiler gives {} bytes, the entry has {}; the first "
                      "that differs is at {}",
                      output->cubin.size(), entry.cubin.size(), stored - entry.cubin.begin())};
}

// Returns a verdict on each entry. Good entries are also compiled again, if `recompile`. Each
// worker holds one entry at a time in memory.
Result<std::vector<Verdict>> check(Library& library, const std::vector<Listing>& entries,
                                   bool recompile, Progress& progress) {
  Compiler& compiler = library.engine.compiler();
  std::optional<cache::Toolchain> toolchain;
  if (recompile) {
    auto opened = compiler.open();
    if (!opened) return tl::unexpected<Error>(opened.error());
    toolchain = std::move(opened->toolchain);
  }
  std::vector<Verdict> verdicts(entries.size());
  std::atomic<std::size_t> ended = 0;
  for_each_on(library.workers, entries.size(), [&](std::size_t i) {
    const auto entry = library.engine.store().read(entries[i]);
    verdicts[i] = check_entry(entries[i], entry);
    if (toolchain && verdicts[i].state == State::kGood)
      verdicts[i] = compile_again(*entry, compiler, *toolchain);
    progress.count(++ended, entries.size(),
                   recompile ? "entries compiled again" : "entries checked");
  });
  return verdicts;
}

std::size_t count(const std::vector<Verdict>& verdicts, State state) {
  return static_cast<std::size_t>(std::ranges::count(verdicts, state, &Verdict::state));
}

Json to_json(const std::vector<Listing>& entries, const std::vector<Verdict>& verdicts,
             const std::vector<std::string>& unread) {
  Json findings = Json::array();
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (verdicts[i].reason.empty() || verdicts[i].state == State::kUnread) continue;
    findings.push_back({{"digest", digest_of(entries[i])},
                        {"path", entries[i].path},
                        {"state", name_of(verdicts[i].state)},
                        {"reason", verdicts[i].reason}});
  }
  return {{"entries", entries.size()},
          {"good", entries.size() - count(verdicts, State::kDamaged) -
                       count(verdicts, State::kUnread) - count(verdicts, State::kOtherVersion)},
          {"damaged", count(verdicts, State::kDamaged)},
          {"other_version", count(verdicts, State::kOtherVersion)},
          {"same", count(verdicts, State::kSame)},
          {"differs", count(verdicts, State::kDiffers)},
          {"not_compiled", count(verdicts, State::kNotCompiled)},
          {"other_toolchain", count(verdicts, State::kOtherToolchain)},
          {"unread", unread},
          {"findings", findings}};
}

void print_report(const Json& report, bool recompiled) {
  for (const Json& finding : report.at("findings")) {
    print_stdout("{}  {}: {}\n", printable_line(*finding.at("path").string()),
                 *finding.at("state").string(), printable_line(*finding.at("reason").string()));
  }
  for (const Json& sentence : report.at("unread")) {
    print_stdout("not checked: {}\n", printable_line(*sentence.string()));
  }
  print_stdout("  {} checked: {} good, {} damaged, {} of another version of the format\n",
               report.at("entries").dump(), report.at("good").dump(), report.at("damaged").dump(),
               report.at("other_version").dump());
  if (recompiled) {
    print_stdout("  compiled again: {} same, {} differ, {} not compiled, {} of another toolchain\n",
                 report.at("same").dump(), report.at("differs").dump(),
                 report.at("not_compiled").dump(), report.at("other_toolchain").dump());
  }
  if (report.at("damaged") != 0) {
    print_stdout("  A damaged entry is never used; compiling its problem again replaces it.\n");
  }
}

Result<int> run_verify(const VerifyOptions& options) {
  const auto library = LibraryHandle::create(options.jobs);
  if (!library) return tl::unexpected<Error>(library.error());
  Library& internals = library->get()->library;
  Progress progress(progress_mode(options.progress));
  progress.step("reading the cache");
  const auto selection = options.filter.select(internals.engine.store());
  if (!selection) return tl::unexpected<Error>(selection.error());
  std::vector<std::string> unread = selection->missing();
  const auto checked = check(internals, selection->entries, options.recompile, progress);
  if (!checked) return tl::unexpected<Error>(checked.error());
  const std::vector<Verdict>& verdicts = *checked;
  progress.done();
  for (const Verdict& verdict : verdicts)
    if (verdict.state == State::kUnread) unread.push_back(verdict.reason);
  const Json report = to_json(selection->entries, verdicts, unread);
  options.json ? print_json(report) : print_report(report, options.recompile);
  if (count(verdicts, State::kDamaged) > 0) return kDamaged;
  if (!unread.empty() || count(verdicts, State::kNotCompiled) > 0) return kUnread;
  return count(verdicts, State::kDiffers) > 0 ? kDiffers : 0;
}

}  // namespace

Command add_verify(CLI::App& cache) {
  CLI::App* app = add_subcommand(cache, "verify", "check entries against their own descriptions",
                                 "Exit status: 0 all are good, 1 failed, 2 bad usage, 3 some are "
                                 "damaged, or could not be read or compiled, 4 neither and the "
                                 "compiler gives other bytes for some, 130 interrupted.");
  auto options = std::make_shared<VerifyOptions>();
  options->filter.add_to(*app);
  add_flag(*app, "--recompile", options->recompile,
           "also compile each from its source, and compare the bytes");
  add_jobs_option(*app, options->jobs);
  add_json_option(*app, options->json);
  add_progress_option(*app, options->progress);
  return {app, [options] { return run_verify(*options); }};
}

}  // namespace octile::tools::verbs
