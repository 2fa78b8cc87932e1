// Writes OUT, a C++ file with files compressed by zstd, in the form that tools/page/assets.h
// declares. The build runs it: octile_embed_compressed OUT FILE...
#include <fmt/format.h>
#include <zstd.h>

#include <cstddef>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

namespace octile::build {
namespace {

constexpr int kLevel = 19;

std::string read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string compressed(const std::string& text) {
  std::string frame(ZSTD_compressBound(text.size()), '\0');
  const std::size_t size =
      ZSTD_compress(frame.data(), frame.size(), text.data(), text.size(), kLevel);
  if (ZSTD_isError(size) != 0) throw std::runtime_error(ZSTD_getErrorName(size));
  frame.resize(size);
  return frame;
}

// Returns string literals of one line each. Octal escapes end after three digits.
std::string literal(const std::string& bytes) {
  constexpr std::size_t kBytesInLine = 64;
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (i % kBytesInLine == 0) text += i == 0 ? "\"" : "\"\n    \"";
    text += fmt::format("\\{:03o}", static_cast<unsigned char>(bytes[i]));
  }
  return text + "\"";
}

void embed(int count, char** arguments) {
  std::string table;
  for (int i = 2; i < count; ++i) {
    const std::string path = arguments[i], text = read(path), bytes = compressed(text);
    table += fmt::format("      {{\"{}\",\n    {},\n    {}, {}}},\n",
                         path.substr(path.find_last_of('/') + 1), literal(bytes), bytes.size(),
                         text.size());
  }
  std::ofstream out(arguments[1], std::ios::binary | std::ios::trunc);
  out << "#include <array>\n\n#include \"tools/page/assets.h\"\n\nnamespace octile::tools {\n\n"
         "std::span<const CompressedFile> page_files() {\n"
         "  static constexpr auto kFiles = std::to_array<CompressedFile>({\n"
      << table << "  });\n  return kFiles;\n}\n\n}  // namespace octile::tools\n";
  if (!out.flush()) throw std::runtime_error(std::string("cannot write ") + arguments[1]);
}

}  // namespace
}  // namespace octile::build

int main(int count, char** arguments) {
  if (count < 3) {
    std::fputs("octile_embed_compressed OUT FILE...\n", stderr);
    return 2;
  }
  try {
    octile::build::embed(count, arguments);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "octile_embed_compressed: %s\n", e.what());
    return 1;
  }
  return 0;
}
