// A host whose locale has other letters and another decimal point: in the Turkish one of ISO
// 8859-9, the lower case of "I" is not a letter of ASCII.
#include <gtest/gtest.h>

#include <clocale>
#include <cstdlib>
#include <locale>

#include "generator/core/device_spec.h"
#include "runtime/base/environment.h"
#include "runtime/driver/device.h"
#include "runtime/measure/record.h"
#include "tests/support/cache_testing.h"
#include "tools/models/document.h"

namespace octile {
namespace {

std::string what_is_wrong() {
  if (std::setlocale(LC_ALL, "tr_TR") == nullptr) return "no locale";
  std::locale::global(std::locale("tr_TR"));
  if (std::string(std::localeconv()->decimal_point) != ",") return "no comma";
  if (normalize_device_name("NVIDIA H200") != "h200") return "NVIDIA H200";
  if (normalize_device_name("NVIDIA H200 MIG 1g.18gb") != "h200-mig-1g-18gb") return "MIG";
  if (find_named("NVIDIA H200") == nullptr) return "find_named";
  if (find_device("h200") == nullptr) return "find_device";
  if (parse_switch("OFF") != std::optional(false)) return "parse_switch";
  if (parse_tuning("PREPARE:1.5")->seconds != 1.5) return "parse_tuning";
  const auto document = tools::parse_document(R"({"a": 1.5})", "d");
  if (!document || document->at("a") != 1.5 || document->dump() != R"({"a":1.5})") return "JSON";
  Record record;
  record.values = measured({1.25, 1.5, 2.75});
  if (to_json(record).at("samples").dump() != "[1.25,1.5,2.75]") return "record";
  return "";
}

TEST(Locale, OfTheHostChangesNothing) {
  const cache::testing::TempDir folder;
  const std::string make =
      "localedef -i tr_TR -f ISO-8859-9 " + (folder / "tr_TR") + " >/dev/null 2>&1";
  if (std::system(make.c_str()) != 0) GTEST_SKIP() << "localedef has no tr_TR";
  ::setenv("LOCPATH", (folder / "").c_str(), 1);
  cache::testing::Child child(what_is_wrong);
  EXPECT_EQ(child.wait(), "");
  ::unsetenv("LOCPATH");
}

}  // namespace
}  // namespace octile
