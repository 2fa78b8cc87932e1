// octile cache list: lists the entries of every root.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "generator/core/nearest.h"
#include "generator/families.h"
#include "runtime/api/boundary.h"
#include "tools/cache/entries.h"
#include "tools/cache/filter.h"
#include "tools/cache/verbs.h"
#include "tools/common/output.h"
#include "tools/common/text_table.h"
#include "tools/compile/kernel_report.h"

namespace octile::tools::verbs {
namespace {

using octile::cache::Listing;

struct ListOptions {
  EntryFilter filter;
  std::string sort;
  std::vector<std::string> columns;  // empty: kDefaultColumns
  bool reverse = false;
  bool wide = false;
  bool json = false;
};

const std::vector<std::string> kDefaultColumns{"digest", "architecture", "size", "date", "kernel"};
constexpr const char* kAll = "all";

// A column: its heading, the text of a row, and the number by which rows are ordered.
struct Column {
  const char* name;
  bool words;
  std::string (*text)(const Listing&);
  double (*number)(const Listing&);  // null: rows are ordered by the text
};

// A column shows "-" for an entry whose head is not known, which sorts first.
template <typename Value>
std::string of_head(const Listing& listing, Value value) {
  return listing.head ? fmt::format("{}", value(*listing.head)) : "-";
}
template <typename Value>
double number_of(const Listing& listing, Value value) {
  return listing.head ? static_cast<double>(value(*listing.head)) : -1;
}

constexpr auto kRegisters = [](const octile::cache::Head& e) { return e.metadata.registers; };
constexpr auto kSmem = [](const octile::cache::Head& e) {
  return e.metadata.static_smem_bytes + e.metadata.dynamic_smem_bytes;
};
constexpr auto kSpills = [](const octile::cache::Head& e) {
  return e.metadata.spill_store_bytes + e.metadata.spill_load_bytes;
};
constexpr auto kCompile = [](const octile::cache::Head& e) { return e.metadata.compile_ms; };

// Returns a problem in short and the configuration, which tells kernels of one problem apart.
std::string label_of(const octile::cache::Metadata& metadata) {
  const auto problem = parse_problem(metadata.problem);
  return fmt::format("{}: {}", problem ? short_text(*problem) : metadata.problem, metadata.config);
}

std::string why_unread(const Listing& listing) {
  const octile::cache::EntryError& error = listing.head.error();
  if (listing.other_version) return error.sentence;
  return fmt::format("{}: {}", error.unread ? "not read" : "damaged", error.sentence);
}

// Columns of bytes have one unit each, so that their rows compare.
constexpr std::array kColumns{
    Column{"digest", true, [](const Listing& l) { return digest_of(l).substr(0, kShownDigits); },
           nullptr},
    Column{
        "architecture", true,
        [](const Listing& l) { return of_head(l, [](const auto& e) { return e.architecture; }); },
        nullptr},
    Column{"size", false, [](const Listing& l) { return kib_text(static_cast<double>(l.bytes)); },
           [](const Listing& l) { return static_cast<double>(l.bytes); }},
    Column{
        "date", true,
        [](const Listing& l) { return of_head(l, [](const auto& e) { return e.metadata.date; }); },
        nullptr},
    Column{"kernel", true,
           [](const Listing& l) { return l.head ? label_of(l.head->metadata) : why_unread(l); },
           nullptr},
    Column{"problem", true,
           [](const Listing& l) { return l.head ? l.head->metadata.problem : why_unread(l); },
           nullptr},
    Column{"config", true,
           [](const Listing& l) {
             return of_head(l, [](const auto& e) { return e.metadata.config; });
           },
           nullptr},
    Column{"name", true,
           [](const Listing& l) { return of_head(l, [](const auto& e) { return e.entry_name; }); },
           nullptr},
    Column{"toolchain", true,
           [](const Listing& l) {
             return of_head(l, [](const auto& e) { return e.toolchain.text(); });
           },
           nullptr},
    Column{"registers", false, [](const Listing& l) { return of_head(l, kRegisters); },
           [](const Listing& l) { return number_of(l, kRegisters); }},
    Column{"smem", false,
           [](const Listing& l) {
             return of_head(l, [](const auto& e) { return kib_text(kSmem(e)); });
           },
           [](const Listing& l) { return number_of(l, kSmem); }},
    Column{"spills", false,
           [](const Listing& l) {
             return of_head(l, [](const auto& e) { return fmt::format("{} B", kSpills(e)); });
           },
           [](const Listing& l) { return number_of(l, kSpills); }},
    Column{"compile_ms", false,
           [](const Listing& l) {
             return l.head ? fmt::format("{:.0f}", l.head->metadata.compile_ms) : "-";
           },
           [](const Listing& l) { return number_of(l, kCompile); }},
    Column{"path", true, [](const Listing& l) { return l.path; }, nullptr},
};

std::string column_names() {
  std::string names;
  for (const Column& column : kColumns)
    names += (names.empty() ? "" : ", ") + std::string(column.name);
  return names;
}

std::vector<std::string> all_column_names() {
  std::vector<std::string> names;
  for (const Column& column : kColumns) names.emplace_back(column.name);
  return names;
}

Result<const Column*> find_column(const std::string& name, const char* option) {
  const auto* const found =
      std::ranges::find_if(kColumns, [&](const Column& column) { return name == column.name; });
  if (found != kColumns.end()) return found;
  std::vector<std::string_view> names;
  for (const Column& column : kColumns) names.emplace_back(column.name);
  return refuse(fmt::format("{} has '{}'{}; allowed: {}", option, name, did_you_mean(name, names),
                            column_names()));
}

Result<std::vector<const Column*>> read_columns(const std::vector<std::string>& names) {
  std::vector<const Column*> columns;
  for (const std::string& name : names.empty() ? kDefaultColumns : names) {
    if (name == kAll) {
      for (const Column& column : kColumns) columns.push_back(&column);
      continue;
    }
    const auto column = find_column(name, "--columns");
    if (!column) return tl::unexpected<Error>(column.error());
    columns.push_back(*column);
  }
  return columns;
}

// Entries that compare equal stay in the order of roots and file names.
void sort_by(const Column& column, bool reverse, std::vector<Listing>& entries) {
  const auto before = [&](const Listing& a, const Listing& b) {
    return column.number != nullptr ? column.number(a) < column.number(b)
                                    : column.text(a) < column.text(b);
  };
  std::ranges::stable_sort(entries, [&](const Listing& a, const Listing& b) {
    return reverse ? before(b, a) : before(a, b);
  });
}

void print_entries(const std::vector<Listing>& entries, const std::vector<const Column*>& columns,
                   bool wide) {
  std::vector<std::string> headings;
  for (const Column* column : columns) {
    headings.push_back((column->words ? "<" : "") + std::string(column->name));
  }
  TextTable table(headings);
  table.cut("kernel", 40).cut("problem", 24).cut("config", 24);
  table.leave_out({"architecture", "date", "size"});
  double bytes = 0;
  for (const Listing& listing : entries) {
    bytes += static_cast<double>(listing.bytes);
    std::vector<std::string> row;
    for (const Column* column : columns) row.push_back(column->text(listing));
    table.add_row(std::move(row));
  }
  if (!entries.empty()) {
    print_table(table, wide);
    print_stdout("\n");
  }
  print_stdout("  {} entr{}, {}\n", entries.size(), entries.size() == 1 ? "y" : "ies",
               bytes_text(bytes));
}

Result<int> run_list(const ListOptions& options) {
  if (options.json && !options.columns.empty()) {
    return refuse("--columns and --json are given; allowed: one of them, JSON has every field");
  }
  const auto columns = read_columns(options.columns);
  if (!columns) return tl::unexpected<Error>(columns.error());
  const Column* order = nullptr;
  if (!options.sort.empty()) {
    const auto column = find_column(options.sort, "--sort");
    if (!column) return tl::unexpected<Error>(column.error());
    order = *column;
  }
  const auto library = LibraryHandle::create();
  if (!library) return tl::unexpected<Error>(library.error());
  auto selection = options.filter.select(library->get()->library.engine.store());
  if (!selection) return tl::unexpected<Error>(selection.error());
  std::vector<Listing>& entries = selection->entries;
  if (order != nullptr) {
    sort_by(*order, options.reverse, entries);
  } else if (options.reverse) {
    std::ranges::reverse(entries);
  }
  if (options.json) {
    Json all = Json::array();
    for (const Listing& listing : entries) all.push_back(to_json(listing));
    for (const std::string& sentence : selection->unread) all.push_back({{"unread", sentence}});
    print_json(all);
  } else {
    // Columns that were asked for are all shown.
    print_entries(entries, *columns, options.wide || !options.columns.empty());
  }
  const bool all_read = std::ranges::none_of(
      entries, [](const Listing& l) { return !l.head && l.head.error().unread; });
  return all_read && selection->unread.empty() ? 0 : kUnread;
}

}  // namespace

Command add_list(CLI::App& cache) {
  CLI::App* app =
      add_subcommand(cache, "list", "list the entries of every root",
                     "Exit status: 0 all are listed, 1 failed, 2 bad usage, 3 a root or folder "
                     "could not be read, 130 interrupted.");
  auto options = std::make_shared<ListOptions>();
  options->filter.add_to(*app);
  add_option(*app, "--sort", options->sort,
             "order by a column: " + column_names() + "; default: root and file name")
      .complete_with(all_column_names);
  add_flag(*app, "--reverse", options->reverse, "reverse the order");
  tools::add_list(*app, "--columns", options->columns,
                  "columns of the table, by the same names, or all, however wide; default " +
                      fmt::format("{}", fmt::join(kDefaultColumns, ",")))
      .complete_with(all_column_names);
  add_wide_option(*app, options->wide);
  add_json_option(*app, options->json);
  return {app, [options] { return run_list(*options); }};
}

}  // namespace octile::tools::verbs
