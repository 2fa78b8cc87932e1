#include "runtime/compiler/compile_log.h"

#include <charconv>
#include <optional>

namespace octile {
namespace {

bool contains(std::string_view line, std::string_view part) {
  return line.find(part) != std::string_view::npos;
}

// Returns the text between `before` and `after`, or nullopt if either is missing.
std::optional<std::string_view> between(std::string_view line, std::string_view before,
                                        std::string_view after) {
  const std::size_t start = line.find(before);
  if (start == std::string_view::npos) return std::nullopt;
  line.remove_prefix(start + before.size());
  const std::size_t end = line.find(after);
  if (end == std::string_view::npos) return std::nullopt;
  return line.substr(0, end);
}

// Returns the number directly before `unit`: 936 in "520 bytes stack, 936 bytes spill stores".
std::optional<int> number_before(std::string_view line, std::string_view unit) {
  const std::size_t end = line.find(unit);
  if (end == std::string_view::npos) return std::nullopt;
  const std::size_t space = line.find_last_not_of("0123456789", end == 0 ? 0 : end - 1);
  const std::size_t start = space == std::string_view::npos ? 0 : space + 1;
  int number = 0;
  const auto [stop, error] = std::from_chars(line.data() + start, line.data() + end, number);
  if (error != std::errc{} || stop != line.data() + end) return std::nullopt;
  return number;
}

// Returns true if the line reports a lost schedule. It checks code and text, because not every
// release prints the code.
bool loses_schedule(std::string_view line) {
  return contains(line, "Potential Performance Loss") || contains(line, "(C7508)") ||
         contains(line, "(C7510)") || contains(line, "(C7514)");
}

void read_resources(std::string_view line, std::string_view function, LoggedKernel* kernel) {
  if (const auto stores = number_before(line, " bytes spill stores"))
    kernel->spill_store_bytes += *stores;
  if (const auto loads = number_before(line, " bytes spill loads"))
    kernel->spill_load_bytes += *loads;
  if (const auto stack = number_before(line, " bytes stack frame");
      stack && function == kernel->name)
    kernel->stack_bytes = *stack;
  if (contains(line, ": Used "))
    if (const auto registers = number_before(line, " registers")) kernel->registers = *registers;
}

}  // namespace

CompileLog parse_compile_log(std::string_view log) {
  CompileLog result;
  std::string_view function;  // named by the last "Function properties for"
  while (!log.empty()) {
    const std::size_t end = log.find('\n');
    const std::string_view line = log.substr(0, end);
    log.remove_prefix(end == std::string_view::npos ? log.size() : end + 1);

    if (contains(line, "Insufficient registers") && result.insufficient_registers.empty())
      result.insufficient_registers = line;
    if (loses_schedule(line)) result.lost_schedules.emplace_back(line);
    if (loses_schedule(line) || contains(line, ": warning") || line.starts_with("ptxas warning"))
      result.warnings.emplace_back(line);
    if (const auto entry = between(line, "Compiling entry function '", "'"))
      result.kernels.push_back({.name = std::string(*entry)});
    constexpr std::string_view kProperties = "Function properties for ";
    if (const std::size_t at = line.find(kProperties); at != std::string_view::npos)
      function = line.substr(at + kProperties.size());
    if (!result.kernels.empty()) read_resources(line, function, &result.kernels.back());
  }
  return result;
}

}  // namespace octile
