#include "generator/core/prologue.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

namespace octile {
namespace {

Result<std::string_view> text_of(TemplateSet templates, std::string_view path) {
  const auto it = std::find_if(templates.begin(), templates.end(),
                               [&](const TemplateFile& f) { return f.path == path; });
  if (it == templates.end()) {
    return fail(ErrorCode::kInternal, fmt::format("the template set holds no file '{}' ({} files)",
                                                  path, templates.size()));
  }
  return it->text;
}

// Templates skip their own includes and default prologue if OCTILE_EMITTED is defined, so that
// files can be concatenated as they are. #line lets a compiler's messages name the template's
// lines.
std::string section(std::string_view path, std::string_view text) {
  return fmt::format("#line 1 \"{}\"\n{}\n", path, text);
}

}  // namespace

void Prologue::add_int(std::string_view name, std::int64_t value, std::string_view why) {
  const bool wide = value > INT32_MAX || value < INT32_MIN;
  constants_.push_back(
      {fmt::format("constexpr {} {} = {};", wide ? "long long" : "int", name, value),
       fmt::format("{} = {}", name, value), std::string(why)});
}

void Prologue::add_bool(std::string_view name, bool value, std::string_view why) {
  constants_.push_back({fmt::format("constexpr bool {} = {};", name, value),
                        fmt::format("{} = {}", name, value), std::string(why)});
}

void Prologue::add_float(std::string_view name, float value, std::string_view why) {
  // Printed as bits, so that no decimal conversion changes the value.
  constants_.push_back({fmt::format("constexpr unsigned {}Bits = 0x{:08x}u;", name,
                                    std::bit_cast<std::uint32_t>(value)),
                        fmt::format("{} = {}", name, value), std::string(why)});
}

void Prologue::add_part(std::string_view name, std::string_view type, std::string_view why) {
  constants_.push_back({fmt::format("template <typename P>\nusing {} = {};", name, type),
                        fmt::format("{} = {}", name, type), std::string(why)});
}

void Prologue::add_macro(std::string_view name, std::int64_t value, std::string_view why) {
  macros_.push_back({fmt::format("#define {} {}", name, value), fmt::format("{} = {}", name, value),
                     std::string(why)});
}

void Prologue::add_macro(std::string_view name, std::string_view text, std::string_view why) {
  macros_.push_back({fmt::format("#define {} \"{}\"", name, text),
                     fmt::format("{} = {}", name, text), std::string(why)});
}

void Prologue::add_type(std::string_view macro, std::string_view type, std::string_view why) {
  macros_.push_back({fmt::format("#define {} {}", macro, type), fmt::format("{} = {}", macro, type),
                     std::string(why)});
}

void Prologue::add_text(std::string text, std::string_view summary, std::string_view why) {
  constants_.push_back({std::move(text), std::string(summary), std::string(why)});
}

void Prologue::add_assert(std::string_view expression, std::string_view message) {
  asserts_.push_back(fmt::format("static_assert({}, \"{}\");", expression, message));
}

Result<std::string> Prologue::render(TemplateSet templates,
                                     std::span<const std::string_view> library,
                                     std::span<const TemplateBody> bodies) const {
  std::string source = "#define OCTILE_EMITTED 1\n";
  for (const std::string_view path : library) {
    const Result<std::string_view> text = text_of(templates, path);
    if (!text) return tl::unexpected<Error>(text.error());
    source += section(path, *text);
  }
  source += "#line 1 \"prologue\"\n";
  for (const TemplateBody& body : bodies) {
    if (body.macro.empty()) continue;
    source += fmt::format("#define {} {}\n", body.macro, body.kernel_name);
  }
  source += "namespace cfg {\n";
  for (const Constant& c : constants_) source += c.declaration + "\n";
  source += "}  // namespace cfg\n";
  for (const Constant& m : macros_) source += m.declaration + "\n";
  for (const TemplateBody& body : bodies) {
    const Result<std::string_view> text = text_of(templates, body.path);
    if (!text) return tl::unexpected<Error>(text.error());
    source += section(body.path, *text);
  }
  // The asserts follow the bodies, because they use names that the bodies derive.
  source += "#line 1 \"asserts\"\n";
  for (const std::string& a : asserts_) source += a + "\n";
  return source;
}

std::string Prologue::explain() const {
  std::string text;
  for (const Constant& c : constants_) text += fmt::format("{:<34} ({})\n", c.summary, c.why);
  for (const Constant& m : macros_) text += fmt::format("{:<34} ({})\n", m.summary, m.why);
  return text;
}

}  // namespace octile
