// Embedded templates hold no comments, so that neither a comment nor a line's place is part of a
// kernel's identity.
#include "templates/embedded.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "cache/key.h"
#include "generator/core/identity.h"
#include "generator/families.h"
#include "runtime/engine/engine.h"
#include "tests/support/gemm_variants.h"
#include "tests/support/quantize_cells.h"
#include "tools/cmake/blank_comments.h"

namespace octile {
namespace {

using build::blank_comments;

std::string read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Returns `text` with a comment before and behind every line. A macro of several lines gets none
// inside it.
std::string with_more_comments(const std::string& text) {
  std::string changed;
  bool continues = false;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    const bool continued = line.ends_with('\\');
    if (!continues) changed += "// one comma, more\n";
    changed += line + (continued ? "" : "  // behind it") + '\n';
    continues = continued;
    at = end + 1;
  }
  return changed;
}

TEST(BlankComments, KeepsLinesAndLiterals) {
  EXPECT_EQ(blank_comments("// a\nint x = 1;  // b\n\n  y();\n"), "\nint x = 1;\n\n  y();\n");
  EXPECT_EQ(blank_comments("a /* b\n c */ d\n"), "a\n d\n");
  EXPECT_EQ(blank_comments("asm(\"//\\\"// \");// c"), "asm(\"//\\\"// \");");
  EXPECT_EQ(blank_comments("char c = '\"'; // d\n"), "char c = '\"';\n");
  EXPECT_EQ(blank_comments("/* not closed"), "");
  EXPECT_EQ(blank_comments(""), "");
}

TEST(IdentityText, DropsLineDirectivesAndEmptyLines) {
  EXPECT_EQ(identity_text("#line 1 \"a.cu\"\nint x;\n\n  \n y;\n"), "int x;\n y;\n");
  EXPECT_EQ(identity_text("int x;"), "int x;");
  EXPECT_EQ(identity_text("\n"), "");
  EXPECT_NE(identity_text("int x = 1;"), identity_text("int x = 2;"));
}

TEST(IdentityText, DropsWhatATemplateNeedsByItself) {
  EXPECT_EQ(identity_text("a;\n#ifndef OCTILE_EMITTED\n#include \"x.cuh\"\n#endif\nb;\n"),
            "a;\nb;\n");
  EXPECT_EQ(identity_text("#ifndef OCTILE_EMITTED\n#ifdef X\n1;\n#endif\n2;\n#endif\nb;\n"),
            "b;\n");
  EXPECT_EQ(identity_text("#ifdef X\na;\n#endif\n"), "#ifdef X\na;\n#endif\n");
}

// The names of the templates, which a renamed file changes in #line and in the guarded includes.
TEST(EmbeddedTemplates, NamesChangeNoKey) {
  const DeviceSpec& device = *find_device("h200");
  const auto with_other_names = [](std::string text) {
    for (const std::string_view folder : {"lib/", "gemm/", "quantize/"}) {
      const std::string before = "\"" + std::string(folder),
                        after = "\"renamed_" + std::string(folder);
      for (std::size_t at = text.find(before); at != std::string::npos;
           at = text.find(before, at + after.size()))
        text.replace(at, before.size(), after);
    }
    return text;
  };
  const auto expect_same_key = [&](const Problem& problem, const KernelConfig& config) {
    auto kernel = emit(problem, config, device, embedded_templates());
    ASSERT_TRUE(kernel) << to_text(problem);
    const std::string key = cache::key_text(identity_of(*kernel, device));
    for (const TemplateFile& file : embedded_templates())
      EXPECT_EQ(key.find(file.path), std::string::npos) << file.path << " in " << kernel->name;
    const std::string source = kernel->source;
    kernel->source = with_other_names(source);
    EXPECT_GT(kernel->source.size(), source.size() + 10 * 8);
    EXPECT_EQ(cache::key_text(identity_of(*kernel, device)), key) << kernel->name;
  };
  const GemmProblem gemm = tests::splittable_gemm_problem();
  expect_same_key(gemm, default_config(gemm, 4096, device));
  for (const QuantizeProblem& cell : tests::covering_quantize_cells(7168))
    expect_same_key(cell, default_config(cell, 4096, device));
}

TEST(EmbeddedTemplates, AreTheFilesWithoutComments) {
  ASSERT_GT(embedded_templates().size(), 40U);
  for (const TemplateFile& file : embedded_templates()) {
    const std::string on_disk = read(OCTILE_SOURCE_DIR "/templates/" + std::string(file.path));
    ASSERT_FALSE(on_disk.empty()) << file.path;
    EXPECT_EQ(file.text, blank_comments(on_disk)) << file.path;
    EXPECT_EQ(std::ranges::count(file.text, '\n'), std::ranges::count(on_disk, '\n')) << file.path;
  }
}

TEST(EmbeddedTemplates, CommentsChangeNoKey) {
  std::vector<std::string> texts;
  std::vector<TemplateFile> changed;
  for (const TemplateFile& file : embedded_templates()) {
    const std::string on_disk = read(OCTILE_SOURCE_DIR "/templates/" + std::string(file.path));
    texts.push_back(blank_comments(with_more_comments(on_disk)));
  }
  for (std::size_t i = 0; i < texts.size(); ++i) {
    ASSERT_NE(texts[i], embedded_templates()[i].text);
    changed.push_back({embedded_templates()[i].path, texts[i]});
  }
  const DeviceSpec& device = *find_device("h200");
  const auto expect_same_key = [&](const Problem& problem, const KernelConfig& config) {
    const auto as_is = emit(problem, config, device, embedded_templates());
    const auto commented = emit(problem, config, device, changed);
    ASSERT_TRUE(as_is && commented) << to_text(problem);
    EXPECT_NE(as_is->source, commented->source);
    EXPECT_EQ(cache::key_text(identity_of(*as_is, device)),
              cache::key_text(identity_of(*commented, device)))
        << as_is->name;
  };
  const GemmProblem gemm = tests::splittable_gemm_problem();
  for (const GemmConfig& config : tests::covering_gemm_configs(gemm, device))
    expect_same_key(gemm, config);
  for (const QuantizeProblem& cell : tests::quantize_cells(7168))
    expect_same_key(cell, default_config(cell, 4096, device));
}

}  // namespace
}  // namespace octile
