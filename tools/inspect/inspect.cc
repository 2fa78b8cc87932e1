// octile inspect: what FP8 does to the weights of a checkpoint, tensor by tensor.
#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "tools/command.h"
#include "tools/common/output.h"
#include "tools/common/terminal.h"
#include "tools/inspect/measured.h"
#include "tools/inspect/pair.h"
#include "tools/inspect/report.h"
#include "tools/inspect/stored_codes.h"
#include "tools/inspect/subjects.h"

namespace octile::tools {
namespace {

constexpr int kFound = 1;  // the exit status if a tensor is not finite, or cannot be read

struct Options {
  std::vector<std::string> paths;
  std::vector<std::string> recipes;
  std::vector<std::string> filter;
  std::vector<std::string> transposed;
  std::int64_t top = 20;
  double sample = 1;
  bool pair = false;
  bool wide = false;
  bool json = false;
  bool progress = false;
};

// Prints a record, at once.
Status print_record(const Json& record) {
  print_stdout("{}\n", record.dump_ascii());
  return check_stdout();
}

void print_paragraph(const std::string& text) {
  print_stdout("{}\n", wrapped(text, line_width(), 2));
}

void print_problems(const std::vector<std::string>& sentences) {
  for (const std::string& sentence : sentences) print_error(sentence);
}

// Gives memory that parsing headers took back to the system, before panels are read.
void trim_memory() {
#if defined(__GLIBC__)
  ::malloc_trim(0);
#endif
}

Result<RecipeTypes> recipes_of(const Options& options, const Subjects& subjects) {
  if (!options.recipes.empty()) return RecipeTypes::of(options.recipes);
  return RecipeTypes::of({subjects.recipe.empty() ? "blockwise" : subjects.recipe});
}

// Returns the record of a subject. FP8 is quantised again only by recipes that the user names.
Result<Json> measure_one(const Options& options, const RecipeTypes& recipes, const Subject& subject,
                         bool states_pow2, Report& report) {
  const bool is_fp8 = subject.first().is_fp8();
  const bool quantise = subject.is_quantised && (!is_fp8 || !options.recipes.empty());
  const auto types = quantise ? recipes.types() : std::span<const TensorType>();
  auto measured = measure(subject, types, options.sample);
  if (!measured) return tl::unexpected<Error>(measured.error());
  if (!is_fp8) return report.add(subject, *measured);
  const auto codes = read_stored_codes(subject);
  if (!codes) return tl::unexpected<Error>(codes.error());
  for (const std::string& remark : remarks_of(subject, *codes, states_pow2)) report.remark(remark);
  return report.add(subject, *codes, *measured);
}

// Adds a sentence that is not there yet: those of a file that was cut are equal.
void add_problem(std::vector<std::string>& problems, const std::string& sentence) {
  if (std::ranges::find(problems, sentence) == problems.end()) problems.push_back(sentence);
}

// Measures all subjects; those that cannot be read become problems.
Status measure_all(const Options& options, const RecipeTypes& recipes, Subjects& subjects,
                   Report& report) {
  Progress progress(progress_mode(options.progress));
  std::uint64_t all = 0, done = 0;
  for (const Subject& subject : subjects.all) all += subject.bytes();
  constexpr std::uint64_t kMegabyte = 1'000'000;
  for (const Subject& subject : subjects.all) {
    progress.step("inspect " + subject.name);
    progress.count(done / kMegabyte, all / kMegabyte, "MB");
    const auto record = measure_one(options, recipes, subject, subjects.states_pow2, report);
    done += subject.bytes();
    if (!record) {
      add_problem(subjects.problems, record.error().message);
      continue;
    }
    if (!options.json) continue;
    if (Status ok = print_record(*record); !ok) return ok;
  }
  return {};
}

// Prints the table of --pair and the remarks, or the last record.
Status print_pair_end(const Options& options, std::vector<PairRow> rows, const Pairing& pairing,
                      const std::vector<std::string>& problems) {
  if (options.json) return print_record(pair_totals(rows, problems, pairing.remarks));
  const auto wanted = static_cast<std::size_t>(options.top);
  const std::size_t top = wanted == 0 ? kMostLines : std::min(wanted, kMostLines);
  if (!rows.empty()) {
    const std::size_t more = rows.size() <= top ? 0 : rows.size() - top;
    print_table(pair_table(std::move(rows), top), options.wide);
    print_stdout("\n");
    if (more > 0) {
      print_paragraph(fmt::format("{} more {}; {}", more, more == 1 ? "line" : "lines",
                                  top == kMostLines ? "--json has all" : "--top 0 prints all"));
    }
  }
  for (const std::string& remark : pairing.remarks) print_paragraph(remark);
  return check_stdout();
}

bool is_array_file(const std::string& path) {
  std::error_code ignored;
  return path.ends_with(".npy") && !std::filesystem::is_directory(path, ignored);
}

// Compares the two files or folders of --pair.
Result<int> run_pair(const Options& options, const NamePatterns& filter) {
  const std::optional<NamePatterns> as_stored{NamePatterns()};
  FindOptions find{.filter = filter, .transposed = as_stored, .says_why = true};
  const Subjects a = find_subjects({options.paths[0]}, find);
  find.header_bytes_before = a.header_bytes;
  const Subjects b = find_subjects({options.paths[1]}, find);
  trim_memory();
  std::vector<std::string> problems = a.problems;
  problems.insert(problems.end(), b.problems.begin(), b.problems.end());
  const Pairing pairing = pair_up(a, b, std::ranges::all_of(options.paths, is_array_file));
  if (pairing.both.empty() && problems.empty() && pairing.remarks.empty()) {
    return refuse("--pair: no tensor of one name and shape is in both");
  }
  if (options.json) {
    if (Status ok = print_record(pair_head(options.paths, a, b, pairing)); !ok)
      return tl::unexpected<Error>(ok.error());
  }
  Progress progress(progress_mode(options.progress));
  std::vector<PairRow> rows;
  for (const auto& [first, second] : pairing.both) {
    progress.step("compare " + first->name);
    progress.count(rows.size(), pairing.both.size(), "tensors");
    auto row = compare(*first, *second);
    if (!row) {
      add_problem(problems, row.error().message);
      continue;
    }
    if (options.json) {
      if (Status ok = print_record(pair_json(*row)); !ok) return tl::unexpected<Error>(ok.error());
    }
    if (row->difference.nonfinite > 0) {
      problems.push_back(fmt::format("'{}' has {} elements that are not finite in one of the two",
                                     row->name, row->difference.nonfinite));
    }
    rows.push_back(std::move(*row));
  }
  progress.done();
  if (rows.empty() && problems.empty()) {
    problems.emplace_back("--pair: no tensor of one name and shape is in both");
  }
  if (Status ok = print_pair_end(options, std::move(rows), pairing, problems); !ok)
    return tl::unexpected<Error>(ok.error());
  print_problems(problems);
  return problems.empty() ? 0 : kFound;
}

Status check(const Options& options) {
  const auto is_folder = [](const std::string& path) {
    std::error_code ignored;
    return std::filesystem::is_directory(path, ignored);
  };
  if (const auto folders = std::ranges::count_if(options.paths, is_folder);
      folders > 1 && !options.pair) {
    return refuse(
        fmt::format("{} folders are given, each of which has names and a config.json of its own; "
                    "allowed: one, or --pair of two",
                    folders));
  }
  const bool is_share = options.sample > 0 && options.sample <= 1;  // a NaN is none
  if (!is_share) {
    return refuse(fmt::format("--sample is {}; allowed: above 0, up to 1", options.sample));
  }
  if (!options.pair) return {};
  if (options.paths.size() != 2) {
    return refuse(fmt::format("--pair is given with {} names; allowed: two files or folders",
                              options.paths.size()));
  }
  if (options.recipes.empty() && options.transposed.empty() && options.sample == 1) return {};
  return refuse("--pair is given with --recipe, --transposed or --sample; allowed: without them");
}

// Returns the patterns of --transposed, nothing without it.
Result<std::optional<NamePatterns>> transposed_of(const Options& options) {
  if (options.transposed.empty()) return std::nullopt;
  if (options.transposed == std::vector<std::string>{"none"}) return NamePatterns();
  return NamePatterns::read(options.transposed).map([](NamePatterns patterns) {
    return std::optional(std::move(patterns));
  });
}

// Returns the sentence that says why no tensor is inspected.
std::string nothing_text(const Unread& unread) {
  std::string text = "no tensor is inspected: ";
  const std::size_t start = text.size();
  const auto add = [&](std::int64_t count, const std::string& one, const std::string& many) {
    if (count == 0) return;
    text += text.size() > start ? ", " : "";
    text += count == 1 ? fmt::format("1 {}", one) : fmt::format("{} {}", count, many);
  };
  for (const auto& [dtype, count] : unread.of_type) {
    add(count, fmt::format("is of type {}, which is not read", dtype),
        fmt::format("are of type {}, which is not read", dtype));
  }
  add(unread.scales, "has scales of another tensor", "have scales of other tensors");
  add(unread.without_elements, "has no elements", "have no elements");
  return text.size() == start ? text + "the files have none" : text;
}

// Returns an error if --filter or --transposed names no tensor. Adds a problem if the files have
// none to inspect.
Status check_found(const Options& options, Subjects& subjects, bool names_transposed) {
  if (!subjects.problems.empty()) return {};
  if (subjects.all.empty()) {
    if (options.filter.empty() || subjects.unread.not_matching == 0) {
      subjects.problems.push_back(nothing_text(subjects.unread));
      return {};
    }
    return refuse("--filter matches no tensor; allowed: names of modules or their parts, with *");
  }
  const auto is_one = [](const Subject& s) { return s.is_quantised && s.is_transposed(); };
  if (!names_transposed || std::ranges::any_of(subjects.all, is_one)) return {};
  return refuse(
      "--transposed matches no weight that is quantised; allowed: names of modules or their parts, "
      "with *, or none");
}

Result<int> run(const Options& options) {
  if (Status ok = check(options); !ok) return tl::unexpected<Error>(ok.error());
  const auto filter = NamePatterns::read(options.filter);
  if (!filter) return tl::unexpected<Error>(filter.error());
  if (options.pair) return run_pair(options, *filter);
  const auto transposed = transposed_of(options);
  if (!transposed) return tl::unexpected<Error>(transposed.error());
  const std::optional<NamePatterns>& patterns = *transposed;
  Subjects subjects = find_subjects(options.paths, {.filter = *filter, .transposed = patterns});
  trim_memory();
  const bool names_transposed = patterns && !patterns->is_empty();
  if (Status ok = check_found(options, subjects, names_transposed); !ok)
    return tl::unexpected<Error>(ok.error());
  const auto recipes = recipes_of(options, subjects);
  if (!recipes) return tl::unexpected<Error>(recipes.error());
  const auto top = static_cast<std::size_t>(options.top);
  Report report(subjects, *recipes, top);
  if (options.recipes.empty() && !subjects.not_understood.empty()) {
    report.remark(subjects.not_understood);
  }
  if (options.json) {
    if (Status ok = print_record(report.head(options.sample)); !ok)
      return tl::unexpected<Error>(ok.error());
  } else if (!subjects.all.empty()) {
    print_paragraph(report.headline(options.sample));
    if (Status ok = check_stdout(); !ok) return tl::unexpected<Error>(ok.error());
  }
  if (Status ok = measure_all(options, *recipes, subjects, report); !ok)
    return tl::unexpected<Error>(ok.error());
  if (options.json) {
    if (Status ok = print_record(report.totals()); !ok) return tl::unexpected<Error>(ok.error());
  } else {
    print_stdout("\n");
    for (const TextTable& table : {report.table(), report.codes_table()}) {
      if (table.is_empty()) continue;
      print_table(table, options.wide);
      print_stdout("\n");
    }
    for (const std::string& text : report.conclusions()) print_paragraph(text);
  }
  print_problems(subjects.problems);
  print_problems(report.nonfinite());
  return subjects.problems.empty() && report.nonfinite().empty() ? 0 : kFound;
}

}  // namespace

Command add_inspect(CLI::App& root) {
  CLI::App* app = add_subcommand(
      root, "inspect", "measure what FP8 does to the weights of a checkpoint or an array",
      "Exit status: 0 done, 1 failed, or a tensor has NaN or infinity or cannot be read, 2 bad "
      "usage, 130 interrupted.");
  auto options = std::make_shared<Options>();
  add_option(*app, "files", options->paths,
             ".safetensors and .npy files, and folders, whose config.json names the recipe and "
             "layers that stay in BF16")
      .require();
  add_list(*app, "--recipe", options->recipes,
           "recipes to quantise by; by default what a config.json states, else blockwise: " +
               recipe_names())
      .complete_with([] {
        std::vector<std::string> names;
        for (const Recipe& recipe : recipes()) names.emplace_back(recipe.name);
        return names;
      });
  add_list(*app, "--filter", options->filter,
           "only tensors with these parts in their names, with *: layers.3, *.down_proj");
  add_list(
      *app, "--transposed", options->transposed,
      "weights that are stored as [k, n], with these parts in their names, with *; none: each is "
      "[n, k]. By default shapes, biases and config.json say so")
      .complete_with([] { return std::vector<std::string>{"none"}; });
  add_flag(*app, "--pair", options->pair,
           "compare two files or folders tensor by tensor: an original and what was made of it");
  add_option(*app, "--top", options->top,
             "lines of the table, the worst first; 0: all, up to 20,000")
      .show_default()
      .in_range(0, 1'000'000'000);
  add_option(*app, "--sample", options->sample,
             "measure this share of each tensor, spread evenly over it")
      .show_default();
  add_wide_option(*app, options->wide);
  add_json_option(*app, options->json);
  add_progress_option(*app, options->progress);
  return {app, [options] { return run(*options); }};
}

}  // namespace octile::tools
