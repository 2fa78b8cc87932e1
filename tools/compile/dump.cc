#include "tools/compile/dump.h"

#include <fmt/format.h>

#include <filesystem>
#include <string_view>
#include <system_error>

#include "runtime/api/boundary.h"
#include "runtime/compiler/cubin.h"
#include "runtime/engine/describe.h"
#include "tools/command.h"
#include "tools/common/handles.h"
#include "tools/common/output.h"
#include "tools/common/output_file.h"
#include "tools/compile/disassemble.h"
#include "tools/compile/resources.h"

namespace octile::tools {
namespace {

std::string_view text_of(const std::vector<std::uint8_t>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The files of one kernel, and a sentence about the one that could not be made.
class Dump {
 public:
  Dump(std::string base, const KernelBuild& kernel) : base_(std::move(base)), kernel_(kernel) {}

  Status write() {
    Status ok = add(".cu", kernel_.emitted.source);
    if (ok) ok = add(".cubin", text_of(kernel_.cubin));
    if (ok) ok = add(".json", description() + "\n");
    if (!ok) return ok;
    const auto sass = disassemble(kernel_.cubin);
    if (sass) return add(".sass", *sass);
    lacking_ = sass.error().message;
    return {};
  }

  void print(bool json) const {
    if (json) {
      print_json({{"files", files_}, {"lacking", lacking_.empty() ? Json() : Json(lacking_)}});
      return;
    }
    for (const std::string& file : files_) print_stdout("{}\n", printable_line(file));
    if (!lacking_.empty()) print_stderr("octile: no machine code: {}\n", lacking_);
  }

 private:
  Status add(const char* suffix, std::string_view bytes) {
    files_.push_back(base_ + suffix);
    return write_output_file(files_.back(), bytes);
  }

  std::string description() const {
    Json object = octile::describe(kernel_);
    const auto cubin = read_cubin(kernel_.cubin);
    object.set("elf", cubin ? resources(*cubin) : Json{{"damaged", cubin.error().message}});
    object.set("options", kernel_.emitted.options);
    return object.dump_ascii(2);
  }

  std::string base_;
  const KernelBuild& kernel_;
  std::vector<std::string> files_;
  std::string lacking_;
};

}  // namespace

Status dump_kernel(const Problem& problem, const KernelConfig& config, const DeviceSpec& device,
                   const std::string& folder, bool json) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    return fail(ErrorCode::kInternal, fmt::format("--dump is '{}', which cannot be created: {}",
                                                  folder, error.message()));
  }
  const auto library = LibraryHandle::create();
  if (!library) return tl::unexpected<Error>(library.error());
  const auto built = library->get()->library.engine.build(problem, config, device);
  if (!built) return tl::unexpected<Error>(built.error());
  const KernelBuild& kernel = *built->kernel;
  Dump dump((std::filesystem::path(folder) / kernel.emitted.name).string(), kernel);
  if (Status ok = dump.write(); !ok) return ok;
  dump.print(json);
  return {};
}

}  // namespace octile::tools
