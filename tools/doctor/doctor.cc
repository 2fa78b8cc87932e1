// octile doctor: prints what this machine has, what is missing, and what that costs.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <string_view>
#include <vector>

#include "cache/measured_device.h"
#include "generator/families.h"
#include "runtime/api/boundary.h"
#include "runtime/base/environment.h"
#include "runtime/engine/target.h"
#include "tools/command.h"
#include "tools/common/output.h"
#include "tools/common/records.h"
#include "tools/common/terminal.h"
#include "tools/doctor/measure.h"
#include "tools/doctor/report.h"
#include "tools/doctor/self_test.h"
#include "tools/doctor/surroundings.h"

namespace octile::tools {
namespace {

constexpr const char* kDefaultDevice = "cuda";

struct Options {
  bool json = false;
  bool matrix = false;
  bool measure = false;
  bool report = false;
  bool skip_test = false;
  std::string device = kDefaultDevice;
  std::string records;
};

Json environment_json() {
  Json variables = Json::array();
  for (const EnvironmentVariable& v : environment_variables()) {
    const auto value = environment_value(v.name);
    variables.push_back(
        {{"name", v.name}, {"meaning", v.meaning}, {"value", value ? Json(*value) : Json()}});
  }
  return variables;
}

// The variables that are set, each with its meaning under it, and the names of the others.
std::string environment_text() {
  std::string text;
  std::string others;
  for (const EnvironmentVariable& v : environment_variables()) {
    const auto value = environment_value(v.name);
    if (!value) {
      others += fmt::format("{}{}", others.empty() ? "" : ", ", v.name);
      continue;
    }
    text += fmt::format("  {:<22}  {}\n", v.name, *value);
    text += wrapped("      " + std::string(v.meaning), line_width(), 6) + "\n";
  }
  if (others.empty()) return text;
  return text + wrapped("  not set: " + others + "; octile(1) explains them", line_width(), 4) +
         "\n";
}

// Prints a heading and sentences under it; nothing if there are none.
void print_sentences(const char* heading, const std::vector<std::string>& sentences) {
  if (sentences.empty()) return;
  print_stdout("\n{}\n", heading);
  for (const std::string& sentence : sentences)
    print_stdout("{}\n", wrapped("  " + sentence, line_width(), 4));
}

Json matrix_json() {
  Json rows = Json::array();
  for (const SupportRow& row : support_matrix()) {
    rows.push_back({{"operation", row.operation},
                    {"problem", row.pattern},
                    {"supported", row.supported},
                    {"remark", row.reason}});
  }
  return rows;
}

// The first line names what is missing and the last lines say it in full, because the lists between
// them may be longer than a screen.
void print_text(const Surroundings& s) {
  const auto found = [](const std::string& path, const std::string& version) {
    return path.empty() ? std::string("missing") : fmt::format("{} ({})", version, path);
  };
  if (!s.missing.empty()) {
    std::vector<std::string_view> names;
    for (const Missing& m : s.missing) names.push_back(m.what);
    print_stdout("missing    {}; what that costs is at the end\n", fmt::join(names, ", "));
  }
  print_stdout("driver     {}\n", found(s.driver_path, s.driver_version));
  for (const FoundDevice& d : s.devices) {
    print_stdout("device     cuda:{}: {}, {}, {} SMs{}\n", d.ordinal, d.spec.full_name,
                 d.spec.arch(), d.spec.sm_count,
                 !d.usable            ? ": no kernel here runs on it"
                 : d.spec.is_measured ? ""
                                      : ": no such card was timed; `octile doctor --measure` "
                                        "measures its speeds");
    if (!d.usable) continue;
    for (const RefusedOperation& refused : refused_operations(d.spec))
      print_stdout("           without kernels for {}: {}\n", refused.operation, refused.reason);
  }
  print_stdout("NVRTC      {}\n", found(s.nvrtc_path, s.nvrtc_version));
  print_stdout("compiles   {}\n",
               s.compiler_program.empty() ? "in the calling process" : "in " + s.compiler_program);
  print_stdout("tests      {}\n", s.prover_program.empty()
                                      ? "no kernels before their first use: " + s.why_no_prover
                                      : "kernels of untested GPUs in " + s.prover_program);
  print_stdout("cache      {}{}\n", s.cache_root.empty() ? "none" : s.cache_root,
               s.cache_writable ? "" : ": not writable");
  for (const std::string& root : s.read_only_roots)
    print_stdout("cache      {} (read only)\n", root);
  if (s.tuning.empty()) print_stdout("tuning     off: every kernel is the cost model's choice\n");
  for (const cache::TuningSet::Source& source : s.tuning) {
    print_stdout("tuning     {} record{} in {}\n", source.records, source.records == 1 ? "" : "s",
                 source.origin);
  }
  print_stdout("\nNVRTC was looked for in\n{}", nvrtc_search_text(s));
  print_stdout("\nenvironment\n{}", environment_text());
  print_sentences("settings that are not taken", s.bad_settings);
  print_sentences("advice", s.advice);
}

void print_missing(const Surroundings& s) {
  if (s.missing.empty()) {
    print_stdout("\nnothing is missing\n");
  } else {
    print_stdout("\nmissing\n{}", missing_text(s));
  }
}

// Measures a device and keeps the result for plans to use.
Status run_measure(const Options& options) {
  if (Status ok = check_records_file(options.records); !ok) return ok;
  const auto library = LibraryHandle::create();
  if (!library) return tl::unexpected<Error>(library.error());
  const std::string& root = library->get()->library.engine.options().writable_root;
  if (root.empty()) {
    return refuse(
        "there is no writable cache folder to keep the description in; allowed: a folder "
        "named by OCTILE_CACHE_DIR, XDG_CACHE_HOME or HOME");
  }
  const auto measured = measure_device(options.device);
  if (!measured) return tl::unexpected<Error>(measured.error());
  const cache::MeasuredDevices file(root);
  const DeviceSpec* const known = find_device(measured->device.name);
  const bool is_known = known != nullptr && known->is_measured;
  if (const auto kept = file.put(measured->device); !kept) {
    return fail(ErrorCode::kInternal, kept.error().sentence);
  }
  if (Status ok = keep_records(options.records, measured->records); !ok) return ok;
  if (options.json) {
    Json document = to_json(*measured);
    document.set("path", file.path());
    document.set("used", !is_known);
    print_json(document);
    return {};
  }
  print_stdout("{}", to_text(*measured));
  print_stdout("\nkept in {}\n", file.path());
  if (is_known) {
    print_stdout("{} is a device that the library knows; plans use its own description\n",
                 measured->device.name);
  }
  return {};
}

// Prints what a person can send of a card that nobody has measured.
Status run_report(const Options& options) {
  const auto library = LibraryHandle::create();
  if (!library) return tl::unexpected<Error>(library.error());
  const auto report = card_report(*library, look_around(*library), options.device);
  if (!report) return tl::unexpected<Error>(report.error());
  print_json(*report);
  return {};
}

// A part of a card, and what was found of it.
void print_part(const std::string& part, const Json& found, const std::string& bits) {
  std::string line = fmt::format("  {}: {}{}", part, *found.at("verdict").string(), bits);
  if (const Json& remembered = found.at("remembered"); !remembered.is_null())
    line += fmt::format("; what was found on {} serves: {}", *remembered.at("date").string(),
                        *remembered.at("verdict").string());
  print_stdout("{}\n", wrapped(line, line_width(), 4));
}

void print_self_test(const SelfTest& test) {
  print_stdout("\nself-test on {}, {:.1f} s\n{}\n", test.device, test.seconds,
               wrapped("  " + test.verdict, line_width(), 4));
  print_part("quantisers", test.card.quantisers, "");
  for (const Json& unit : test.card.units) {
    const std::string bits =
        unit.at("sum_bits").is_null()
            ? ""
            : fmt::format("; it keeps {} bits of a sum", unit.at("sum_bits").integer().value_or(0));
    print_part("matrix unit " + *unit.at("unit").string(), unit, bits);
  }
}

Status check_device_of_tests(const std::string& device) {
  const auto target = resolve_target(device);
  if (!target) return tl::unexpected<Error>(target.error());
  if (target->kind == TargetKind::kLive) return {};
  return refuse(fmt::format("--device is {}; allowed: a live GPU, cuda or cuda:N", device));
}

// Tests every GPU on which kernels run, or the one that is asked for.
std::vector<SelfTest> self_tests(const Options& options, const LibraryHandle& library,
                                 const Surroundings& surroundings) {
  std::vector<std::string> devices;
  if (options.device != kDefaultDevice) {
    devices.push_back(options.device);
  } else {
    for (const FoundDevice& device : surroundings.devices)
      if (device.usable) devices.push_back(fmt::format("cuda:{}", device.ordinal));
  }
  std::vector<SelfTest> tests;
  if (options.skip_test) return tests;
  for (const std::string& device : devices) {
    Progress progress(progress_mode(false));
    progress.step("testing " + device);
    tests.push_back(test_device(library, device));
    progress.done();
  }
  return tests;
}

Status run(const Options& options) {
  if (options.measure && options.matrix) {
    return refuse("--measure and --matrix are given; allowed: one of them");
  }
  if (options.report && (options.measure || options.matrix)) {
    return refuse(fmt::format("--report and {} are given; allowed: one of them",
                              options.measure ? "--measure" : "--matrix"));
  }
  if (options.measure) return run_measure(options);
  if (options.device != kDefaultDevice && (options.matrix || options.skip_test)) {
    return refuse(fmt::format("--device is {} with {}; allowed: with a test, --measure or --report",
                              options.device, options.matrix ? "--matrix" : "--no-self-test"));
  }
  if (!options.records.empty()) {
    return refuse(fmt::format("--records is '{}'; allowed: only with --measure", options.records));
  }
  if (options.report) return run_report(options);
  if (options.matrix) {
    if (options.json) {
      print_json(matrix_json());
    } else {
      print_stdout("{}\n{}", support_matrix_markdown(), machines_markdown());
    }
    return {};
  }
  if (options.device != kDefaultDevice)
    if (Status ok = check_device_of_tests(options.device); !ok) return ok;
  const auto library = LibraryHandle::create();
  if (!library) return tl::unexpected<Error>(library.error());
  const Surroundings surroundings = look_around(*library);
  if (!options.json) print_text(surroundings);
  const std::vector<SelfTest> tests = self_tests(options, *library, surroundings);
  if (options.json) {
    Json document = to_json(surroundings);
    document.set("environment", environment_json());
    Json all = Json::array();
    for (const SelfTest& test : tests) all.push_back(to_json(test));
    document.set("self_tests", std::move(all));
    print_json(document);
  } else {
    for (const SelfTest& test : tests) print_self_test(test);
    print_missing(surroundings);
  }
  const auto wrong = std::ranges::find(tests, false, &SelfTest::ok);
  if (wrong == tests.end()) return {};
  return fail(ErrorCode::kInternal, fmt::format("doctor: the self-test on {} is not passed: {}",
                                                wrong->device, what_is_wrong(*wrong)));
}

}  // namespace

Command add_doctor(CLI::App& root) {
  CLI::App* app = add_subcommand(
      root, "doctor", "print what this machine has, what is missing, and what that costs");
  auto options = std::make_shared<Options>();
  add_json_option(*app, options->json);
  add_flag(*app, "--matrix", options->matrix,
           "print instead which combinations of types are supported");
  add_flag(*app, "--no-self-test", options->skip_test,
           "do not test the GPUs: neither kernels by known answers, nor a layer that is quantised, "
           "multiplied and compared with the host");
  add_flag(*app, "--measure", options->measure,
           "measure instead a GPU's clock, memory and launch, in ten seconds, and keep them in the "
           "cache folder: plans choose kernels by them on a GPU that the library has not timed");
  add_flag(
      *app, "--report", options->report,
      "print instead one JSON about a GPU that nobody has measured, to send: what its matrix "
      "units and quantisers compute, how many bits of a sum they keep, its speeds, and the times "
      "of ten GEMMs beside cuBLASLt");
  add_gpu_option(*app, options->device);
  add_records_option(*app, options->records);
  return {app, [options] { return run(*options); }};
}

}  // namespace octile::tools
