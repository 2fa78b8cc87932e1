#include "tools/compile/kernel_report.h"

#include <fmt/format.h>

#include <cstdint>
#include <map>

#include "tools/common/terminal.h"

namespace octile::tools {
namespace {

std::int64_t integer_of(const Json& kernel, const char* name) {
  return kernel.at(name).integer().value_or(0);
}

double number_of(const Json& kernel, const char* name) {
  return kernel.at(name).number().value_or(0);
}

std::string spills_text(const Json& kernel) {
  const auto stored = integer_of(kernel, "spill_store_bytes");
  const auto loaded = integer_of(kernel, "spill_load_bytes");
  return stored + loaded == 0 ? "none" : fmt::format("{} + {} B", stored, loaded);
}

}  // namespace

TextTable kernel_table(const Json& kernels) {
  TextTable table({"<kernel", "registers", "shared memory", "spills", "compile", "cubin", "cache"});
  table.cut("kernel", 30).leave_out({"cubin", "compile", "shared memory", "registers", "spills"});
  for (const Json& kernel : kernels) {
    if (kernel.contains("error")) continue;
    table.add_row({*kernel.at("name").string(), fmt::format("{}", integer_of(kernel, "registers")),
                   kib_text(number_of(kernel, "smem_bytes")), spills_text(kernel),
                   fmt::format("{:.0f} ms", number_of(kernel, "compile_ms")),
                   kib_text(number_of(kernel, "cubin_bytes")), *kernel.at("cache").string()});
  }
  return table;
}

std::string configuration_lines(const Json& kernels) {
  std::string text;
  for (const Json& kernel : kernels) {
    text += wrapped(fmt::format("  {}: {}", *kernel.at("template").string(),
                                *kernel.at("config").string()),
                    line_width(), 4) +
            "\n";
  }
  return text;
}

std::string chosen_by_line(const Json& kernels) {
  std::map<std::string, int> counts;
  for (const Json& kernel : kernels) {
    for (const Json& use : kernel.at("problems")) {
      for (const Json& by : use.at("chosen_by")) ++counts[*by.string()];
    }
  }
  std::string text;
  for (const char* by :
       {"exact record", "near bucket", "near shape", "sister card", "cost model"}) {
    if (counts[by] != 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", by, counts[by]);
  }
  if (text.empty()) return text;
  return wrapped("  chosen by, in token-count buckets: " + text, line_width(), 4) + "\n";
}

std::string bytes_text(double bytes) {
  constexpr double kKiB = 1024;
  if (bytes < kKiB) return fmt::format("{:.0f} B", bytes);
  if (bytes < kKiB * kKiB) return fmt::format("{:.1f} KiB", bytes / kKiB);
  return fmt::format("{:.1f} MiB", bytes / kKiB / kKiB);
}

std::string kib_text(double bytes) { return fmt::format("{:.1f} KiB", bytes / 1024); }

}  // namespace octile::tools
