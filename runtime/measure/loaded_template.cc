#include "runtime/measure/loaded_template.h"

#include <array>
#include <string_view>
#include <utility>

#include "generator/families.h"
#include "runtime/compiler/compiler_pool.h"
#include "runtime/engine/engine.h"

namespace octile {
namespace {

std::array<std::string_view, 3> library_of(const DeviceSpec& device) {
  return {"lib/types.cuh", launch_library(device), "lib/memory.cuh"};
}

}  // namespace

Result<LoadedTemplate> LoadedTemplate::compile(const GpuSession& gpu, const Prologue& prologue,
                                               const std::string& path, const std::string& name) {
  const TemplateBody body{path, "OCTILE_KERNEL_NAME", name};
  const auto source =
      prologue.render(embedded_templates(), library_of(gpu.spec()), std::span(&body, 1));
  if (!source) return tl::unexpected<Error>(source.error());
  // Few templates are compiled in a run, so no process is kept for more.
  CompilerPool compiler([](const std::string&) {});
  const auto output = compiler.compile(name + ".cu", *source, compile_options(gpu.spec()));
  if (!output) return tl::unexpected<Error>(output.error());
  const std::shared_ptr<const Driver>& driver = gpu.driver();
  CUlibrary library = nullptr;
  if (Status ok =
          driver->check((*driver)->cuLibraryLoadData(&library, output->cubin.data(), nullptr,
                                                     nullptr, 0, nullptr, nullptr, 0),
                        "cuLibraryLoadData");
      !ok) {
    return tl::unexpected<Error>(ok.error());
  }
  LoadedTemplate loaded(driver, library);
  KernelHandle& kernel = loaded.kernel_;
  kernel.waits_itself = gpu.spec().has_pdl;
  Status ready = driver->check(
      (*driver)->cuLibraryGetKernel(&kernel.anywhere, library, name.c_str()), "cuLibraryGetKernel");
  if (ready) {
    ready = driver->check((*driver)->cuKernelGetFunction(&kernel.in_primary, kernel.anywhere),
                          "cuKernelGetFunction");
  }
  if (!ready) return tl::unexpected<Error>(ready.error());
  return loaded;
}

Result<const LoadedTemplate*> LoadedTemplates::get(const Prologue& prologue,
                                                   const std::string& path,
                                                   const std::string& name) {
  std::pair<std::string, std::string> key(path, prologue.explain());
  if (const auto found = loaded_.find(key); found != loaded_.end()) return &found->second;
  auto compiled = LoadedTemplate::compile(gpu_, prologue, path, name);
  if (!compiled) return tl::unexpected<Error>(compiled.error());
  return &loaded_.emplace(std::move(key), std::move(*compiled)).first->second;
}

LoadedTemplate::~LoadedTemplate() {
  if (library_ != nullptr) (*driver_)->cuLibraryUnload(library_);
}

LoadedTemplate::LoadedTemplate(LoadedTemplate&& other) noexcept
    : driver_(std::move(other.driver_)),
      library_(std::exchange(other.library_, nullptr)),
      kernel_(other.kernel_) {}

Status LoadedTemplate::launch(unsigned blocks, unsigned threads, void** parameters,
                              CUstream stream) const {
  const LaunchSite site{.driver = *driver_, .stream = stream, .in_primary = true};
  return octile::launch(site, kernel_, launch_config(site, blocks, threads), parameters);
}

}  // namespace octile
