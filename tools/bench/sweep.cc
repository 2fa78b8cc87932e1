#include "tools/bench/sweep.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "tools/bench/compile_first.h"
#include "tools/bench/session.h"
#include "tools/command.h"
#include "tools/common/output.h"
#include "tools/common/text_table.h"

namespace octile::tools {
namespace {

// A layer's input was just written, and L2 holds much of it. So few tensors take turns.
constexpr int kTensors = 8;
constexpr std::int64_t kMostSweptRows = 4096;

// The fields that follow rows and columns in a problem's text.
constexpr const char* kSwept[] = {
    "x=bf16 q=e4m3:1x128 out=row",
    "x=bf16 q=e4m3:1x128 out=col",
    "x=bf16 q=e4m3:1x128 out=both",
    "x=bf16 q=e4m3:128x128 out=row",
    "x=bf16 q=e4m3:128x128 out=both",
    "x=bf16 q=e4m3:row out=row",
    "x=bf16 q=e4m3:tensor out=row",
    "x=bf16 q=e4m3:1x32 out=row",
    "x=bf16 q=e4m3:1x128 out=row src=silu_mul",
    "x=bf16 q=e4m3:1x128 out=row src=rmsnorm",
    "x=bf16 q=e4m3:1x128 out=row group=contiguous",
};

struct SweepOptions : SessionOptions {
  SweepOptions() { rounds = 15; }

  std::vector<std::int64_t> widths{7168};
  std::vector<std::int64_t> rows;
  std::vector<std::string> selected;
  bool sweep = false;
  bool wide = false;
  bool progress = false;
};

Status check_options(const SweepOptions& options) {
  if (options.sweep && !options.rows.empty()) {
    return refuse("--sweep and --tokens are given; allowed is one of the two");
  }
  for (const std::int64_t rows : options.rows) {
    if (rows < 1) return refuse(fmt::format("--tokens is {}; allowed: rows, at least 1", rows));
  }
  return {};
}

Result<Sweep> read_sweep(const SweepOptions& options) {
  auto problems = sweep_problems(options.widths, options.selected);
  if (!problems) return tl::unexpected<Error>(problems.error());
  Sweep sweep{std::move(*problems), options.rows};
  if (options.sweep) sweep.rows = sweep_rows();
  if (sweep.rows.empty()) sweep.rows = {kMostSweptRows};
  return sweep;
}

// Every bench of a quantiser times a stream.
double stream_us(const Record& record) { return first_peer_values(record).median; }

TextTable table_of(const std::vector<Record>& records) {
  TextTable table({"<shape", "octile us", "stream us", "bound us", "of bound", "<equal"});
  table.cut("shape", 24).leave_out({"stream us"});
  for (const Record& r : records) {
    table.add_row({bench_label(r), fmt::format("{:.2f}", r.values.median),
                   fmt::format("{:.2f}", stream_us(r)), fmt::format("{:.2f}", bound_us(r)),
                   fmt::format("{:.2f}", r.values.median / bound_us(r)),
                   !r.ok                        ? "WRONG"
                   : r.check.starts_with("not") ? "-"
                                                : "yes"});
  }
  return table;
}

std::vector<Work> works_of(const Sweep& sweep) {
  std::vector<TokenRange> counts;
  for (const std::int64_t rows : sweep.rows) counts.push_back({rows, rows});
  std::vector<Work> works;
  for (const Problem& problem : sweep.problems) works.push_back({"", problem, counts});
  return works;
}

Result<std::vector<Record>> run_sweep(const BenchSession& session, const Sweep& sweep,
                                      Progress& progress) {
  BenchContext context = session.context();
  context.slots = kTensors;
  std::vector<Record> records;
  const std::size_t all = sweep.problems.size() * sweep.rows.size();
  progress.step("compiling");
  compile_first(context, works_of(sweep));
  for (const Problem& problem : sweep.problems) {
    for (const std::int64_t rows : sweep.rows) {
      progress.count(records.size(), all, "shapes timed");
      auto record = bench(context, problem, rows);
      if (!record) return tl::unexpected<Error>(record.error());
      record->details.set("allowance_us", kSweepAllowanceUs);
      records.push_back(std::move(*record));
      if (Status ok = session.keep({records.back()}); !ok) return tl::unexpected<Error>(ok.error());
    }
  }
  return records;
}

Status run(const SweepOptions& options) {
  if (Status ok = check_options(options); !ok) return ok;
  const auto sweep = read_sweep(options);
  if (!sweep) return tl::unexpected<Error>(sweep.error());
  const auto session = BenchSession::open("bench quantize", options, false);
  if (!session) return tl::unexpected<Error>(session.error());
  Progress progress(progress_mode(options.progress));
  const auto records = run_sweep(*session, *sweep, progress);
  progress.done();
  if (!records) return tl::unexpected<Error>(records.error());
  if (!options.json) print_table(table_of(*records), options.wide);
  return session->finish(*records, "a tensor is wrong");
}

}  // namespace

std::vector<std::int64_t> sweep_rows() {
  std::vector<std::int64_t> rows;
  for (std::int64_t count = 1; count <= kMostSweptRows; count *= 2) rows.push_back(count);
  return rows;
}

Result<std::vector<Problem>> sweep_problems(const std::vector<std::int64_t>& widths,
                                            const std::vector<std::string>& selected) {
  std::vector<Problem> problems;
  for (const std::int64_t cols : widths) {
    if (cols < 1) return refuse(fmt::format("--cols is {}; allowed: columns, at least 1", cols));
    for (const char* rest : kSwept) {
      const std::string text = fmt::format("quantize rows=? cols={} {}", cols, rest);
      const bool wanted =
          selected.empty() || std::ranges::any_of(selected, [&](const std::string& word) {
            return text.find(word) != std::string::npos;
          });
      if (!wanted) continue;
      auto problem = parse_problem(text);
      if (!problem) {
        return refuse(fmt::format("--cols is {}; {}", cols, problem.error().message));
      }
      problems.push_back(std::move(*problem));
    }
  }
  if (!problems.empty()) return problems;
  return refuse(fmt::format("--select is '{}', which no problem of the sweep contains",
                            fmt::join(selected, ",")));
}

double bound_us(const Record& record) { return stream_us(record) + kSweepAllowanceUs; }

std::function<std::optional<Status>()> add_bench_quantize(CLI::App& bench) {
  CLI::App* app = add_subcommand(
      bench, "quantize",
      "time quantisers over row counts and widths, beside a stream of the same bytes: tensors that "
      "were just written, as a layer's input was");
  auto options = std::make_shared<SweepOptions>();
  add_flag(*app, "--sweep", options->sweep, "every power of two from 1 to 4096 rows");
  add_list(*app, "--tokens", options->rows, "row counts instead; default 4096");
  add_list(*app, "--cols", options->widths, "columns; default 7168");
  add_list(*app, "--select", options->selected,
           "only problems whose text contains one of these: 1x128,out=both");
  add_timing_options(*app, *options);
  add_wide_option(*app, options->wide);
  add_json_option(*app, options->json);
  add_progress_option(*app, options->progress);
  return when_given(app, options, run);
}

}  // namespace octile::tools
