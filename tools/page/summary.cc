#include "tools/page/summary.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "octile/octile.h"
#include "runtime/measure/statistics.h"

namespace octile::tools {
namespace {

std::string counted(std::size_t count, const std::string& noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string gains_sentence(const std::vector<PageRow>& rows) {
  double logarithms = 0;
  std::size_t count = 0, faster = 0;
  const PageRow* best = nullptr;
  double most = 0;  // the gain of `best`
  for (const PageRow& row : rows) {
    const double gain = row.gain.value_or(0);
    if (gain <= 0) continue;
    logarithms += std::log(gain);
    ++count;
    if (gain > 1) ++faster;
    if (best == nullptr || gain > most) {
      best = &row;
      most = gain;
    }
  }
  if (count == 0) return {};
  std::string text = fmt::format(
      " Tuned kernels are {:.3f} times as fast as the default in the geometric mean of {}; for {} "
      "of them the default was the fastest.",
      std::exp(logarithms / static_cast<double>(count)), counted(count, "decision"),
      count - faster);
  if (faster > 0) {
    text += fmt::format(" The largest gain is {:.2f}, of {} at {} tokens.", most,
                        best->layer.empty() ? best->label : best->layer, best->tokens.value_or(0));
  }
  return text;
}

std::string verdict_sentence(const PageContent& content) {
  std::string text;
  for (const ModelVerdict& total : content.totals) {
    if (!total.too_large.empty()) {
      const std::string sentence = fmt::format(
          " The sum is missing, because one rank does not hold the model: {}.", total.too_large);
      if (text.find(sentence) == std::string::npos) text += sentence;
    }
    if (!total.too_large.empty() || total.fp8_us <= 0 || total.best_mix_us <= 0) continue;
    // One sentence a mode: of its largest count.
    const bool is_last = std::ranges::none_of(content.totals, [&](const ModelVerdict& other) {
      return other.mode == total.mode && other.tokens > total.tokens;
    });
    if (!is_last) continue;
    text += fmt::format(
        " In {} at {} tokens FP8 {} in {} of {}: all in FP8 is {:.2f} times as fast as BF16, the "
        "best mix {:.2f} times{}.",
        name_of(total.mode), total.tokens, total.by.are_measured() ? "pays" : "is estimated to pay",
        total.pays, counted(static_cast<std::size_t>(total.by.all()), "layer"),
        total.bf16_us / total.fp8_us, total.bf16_us / total.best_mix_us,
        total.by.are_measured() ? "" : fmt::format(" ({})", total.by.text()));
  }
  return text;
}

// Texts of records, each once, in the order of the alphabet.
class Facts {
 public:
  void add(const std::string& text) {
    if (!text.empty()) texts_.insert(text);
  }
  // Returns the first ones, and how many are left.
  std::string joined() const {
    constexpr std::size_t kMost = 4;
    std::vector<std::string> some;
    for (const std::string& text : texts_) {
      if (some.size() < kMost) some.push_back(text);
    }
    std::string text = fmt::format("{}", fmt::join(some, "; "));
    if (texts_.size() > kMost) text += fmt::format("; and {} others", texts_.size() - kMost);
    return text;
  }
  std::string range() const {
    if (texts_.empty()) return {};
    return *texts_.begin() == *texts_.rbegin() ? *texts_.begin()
                                               : *texts_.begin() + " to " + *texts_.rbegin();
  }

 private:
  std::set<std::string> texts_;
};

std::string device_text(const PageContent& content) {
  if (!content.device) return content.device_name;
  const DeviceSpec& d = *content.device;
  return fmt::format(
      "{}, compute capability {}, {} SMs at {:.2f} GHz, {:.0f} TFLOP/s in FP8 by its datasheet, "
      "{:.2f} TB/s of memory{}",
      content.device_name, d.capability(), d.sm_count, d.clock_ghz, d.fp8_tflops, d.dram_tbps,
      d.is_measured ? "" : " (no card of this name was timed: its speeds are a datasheet's)");
}

std::string protocol_text(const Record& record) {
  const Protocol& p = record.protocol;
  return fmt::format("{}: {}{}{}{}{}", record.tool, p.timing,
                     p.rounds > 0 ? fmt::format(", {} rounds", p.rounds) : "",
                     p.interleaved ? ", interleaved" : "", p.l2.empty() ? "" : ", L2 " + p.l2,
                     p.note.empty() ? "" : ", " + p.note);
}

std::string clock_text(const PageContent& content) {
  std::vector<double> clocks;
  std::int64_t throttled = 0;
  for (const cache::TuningRecord& record : content.tuned) {
    if (record.conditions.sm_clock_mhz > 0) clocks.push_back(record.conditions.sm_clock_mhz);
    throttled += record.conditions.throttled_rounds;
  }
  if (clocks.empty()) return {};
  return fmt::format(
      "SM clock {:.0f} MHz in the median; {} repeated because the clock was "
      "throttled",
      median(clocks), counted(static_cast<std::size_t>(throttled), "round"));
}

std::string candidates_text(const PageContent& content) {
  std::int64_t timed = 0, wrong = 0;
  for (const cache::TuningRecord& record : content.tuned) {
    timed += record.counts.timed;
    wrong += record.counts.failed_verify;
  }
  if (timed == 0) return {};
  return fmt::format("{} configurations were verified and timed; {} gave wrong results", timed,
                     wrong);
}

}  // namespace

std::string page_title(const PageContent& content) {
  return fmt::format(
      "{} on {}",
      content.models.empty() ? "FP8 kernels" : fmt::format("{}", fmt::join(content.models, ", ")),
      content.device_name);
}

std::string summary(const PageContent& content, const std::vector<PageRow>& rows) {
  std::string text =
      fmt::format("{} on {}.", counted(rows.size(), "measurement"), content.device_name);
  return text + verdict_sentence(content) + gains_sentence(rows);
}

std::vector<std::pair<std::string, std::string>> method(const PageContent& content) {
  Facts protocols, dates, compilers, builds, libraries, commits, drivers, checks;
  for (const cache::TuningRecord& record : content.tuned) {
    protocols.add(record.protocol);
    dates.add(record.date);
    compilers.add(record.toolchain.compiler);
    builds.add(record.toolchain.build);
  }
  for (const Record& record : content.measured) {
    protocols.add(protocol_text(record));
    dates.add(record.date);
    libraries.add(record.version);
    commits.add(record.commit);
    drivers.add(record.card.driver);
    checks.add(record.check);
  }
  std::vector<std::pair<std::string, std::string>> facts{
      {"card", device_text(content)},
      {"driver", drivers.joined()},
      {"timed by", protocols.joined()},
      {"conditions", clock_text(content)},
      {"searched", candidates_text(content)},
      {"checked", checks.joined()},
      {"compiler", compilers.joined()},
      {"its build", builds.joined()},
      {"library", libraries.joined()},
      {"commit", commits.joined()},
      {"dates", dates.range()},
      {"page by", fmt::format("octile {}.{}.{}", OCTILE_VERSION_MAJOR, OCTILE_VERSION_MINOR,
                              OCTILE_VERSION_PATCH)}};
  std::erase_if(facts, [](const auto& fact) { return fact.second.empty(); });
  return facts;
}

}  // namespace octile::tools
